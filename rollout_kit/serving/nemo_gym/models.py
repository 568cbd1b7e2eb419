"""NeMo Gym's model servers and their keys, in terms of ours."""

from collections.abc import Callable

from ...types import JsonObject

Given = JsonObject

NAMES = {
    ("resources_servers", "math_with_judge"): "math_with_verify",
    ("responses_api_models", "local_vllm_model"): "vllm_model",
    ("responses_api_models", "inference_provider"): "openai_model",
    ("responses_api_models", "litellm_model"): "openai_model",
}
"""Implementations of NeMo Gym that ours replace under another name."""

SILENT: dict[str, object] = {
    "uses_reasoning_parser": ...,
    "sequential_reasoning_allowed": True,
    "replace_developer_role_with_system": ...,
    "preserve_reasoning_in_assistant_content": False,
    "execute_tools": True,
    "supply_prefix_token_ids": False,
    "propagate_context_overflow_errors": False,
    "forward_request_chat_template_kwargs": False,
    "forward_session_id_as_conversation_id": False,
    "request_prompt_and_generation_token_ids": False,
    "show_vllm_engine_stats": ...,
    "ray_worker_py_executable": ...,
    "library_verifier_timeout_seconds": ...,
    "library_verifier_max_concurrency": ...,
}
"""Keys that need nothing of ours, with the one value for which this holds; `...` is any."""

RENDERED = "leave it out, and use_completions_api: the endpoint applies the chat template here"

OF_ENDPOINT_FILE = (
    "endpoint_stale_grace_s",
    "endpoint_connection_retries",
    "endpoint_check_interval_s",
)
"""Keys that say how `endpoint_file` is followed; without it they mean nothing."""

REFUSED = {
    "default_headers": "only openai_model sends headers, as openai_default_headers",
    "audio_root": "audio is not read from files here: write it into the rows as data URIs",
    "sequential_reasoning_allowed": "leave it out: reasoning after reasoning is allowed here",
    "render_chat_template": RENDERED,
    "endpoint_file": "name the server that runs, base_url: http://…, or leave both out to start"
    " vLLM here, which is restarted",
    "propagate_context_overflow_errors": "leave it out: a prompt that is too long ends its rollout"
    " incomplete here, and it is verified",
    "supply_prefix_token_ids": "needs return_token_id_information: true, with which a later turn is"
    " asked for by the tokens of the turns before it",
    "forward_request_chat_template_kwargs": "leave it out: a row's chat_template_kwargs always win"
    " here",
    "forward_session_id_as_conversation_id": "leave it out: a rollout stays at one endpoint here,"
    " and no request names it",
}
"""Keys whose other values have no counterpart → what to do."""


def name_ours(type_: str, implementation: str, given: Given) -> str:
    """Our implementation that takes the place of NeMo Gym's, if there is one."""
    if implementation == "simple_agent" and given.get("execute_tools") is False:
        return "non_executing_simple_agent"
    return NAMES.get((type_, implementation), implementation)


def translate(implementation: str, given: Given) -> tuple[Given, list[str]]:
    """The settings of our implementation, and a line for each key that has no counterpart."""
    adapt = ADAPTERS.get(implementation)
    if adapt is None:
        return given, []
    given = adapt({key: value for key, value in given.items() if not _is_silent(key, value)})
    wrong = [f"{key}: {reason}" for key, reason in REFUSED.items() if given.get(key)]
    return {key: value for key, value in given.items() if key not in REFUSED}, wrong


def _is_silent(key: str, value: object) -> bool:
    return value is None or (key in SILENT and SILENT[key] in (..., value))


def _vllm(given: Given) -> Given:
    if not given.get("endpoint_file"):
        given = {key: value for key, value in given.items() if key not in OF_ENDPOINT_FILE}
    if not (given.get("use_completions_api") and given.get("render_chat_template")):
        given.pop("render_chat_template", None)
        given.pop("tokenizer", None)
    ids = given.pop("return_token_id_information", None)
    if ids or given.pop("request_prompt_and_generation_token_ids", None):
        given["return_token_ids"] = True
        given.pop("supply_prefix_token_ids", None)
    if given.pop("uses_interleaved_reasoning", True) is False:
        given["drop_input_reasoning_items"] = True
    if given.get("reasoning_field") == "both":  # one of them is enough for every vLLM
        given.pop("reasoning_field")
    if given.pop("is_responses_native", False):
        given["upstream_api"] = "responses"
    if not given.get("default_headers"):
        given.pop("default_headers", None)
    return given


def _local_vllm(given: Given) -> Given:
    options = given.pop("vllm_serve_kwargs", None) or {}
    variables = {**(given.pop("env", None) or {}), **(given.pop("vllm_serve_env_vars", None) or {})}
    if home := given.pop("hf_home", None):
        variables["HF_HOME"] = home
    given.pop("api_key", None)
    return {**options, **_vllm(given), **({"env": variables} if variables else {})}


def _provider(given: Given) -> Given:
    renamed = _rename(
        given,
        base_url="openai_base_url",
        api_key="openai_api_key",
        model="openai_model",
        num_concurrent_requests="max_concurrent_requests",
    )
    return {"upstream_api": "chat_completions", **renamed}


def _openai(given: Given) -> Given:
    return _rename(given, max_http_attempts="max_tries")


def _simple_agent(given: Given) -> Given:
    """The keys of `non_executing_simple_agent`, for an agent that executes no tools."""
    if given.pop("execute_tools", True) is False:
        given.pop("max_steps", None)
    return given


def _azure(given: Given) -> Given:
    query = given.pop("default_query", None) or {}
    if version := query.get("api-version"):
        given["api_version"] = version
    return _rename(
        given,
        openai_base_url="azure_endpoint",
        openai_api_key="api_key",
        openai_model="azure_deployment",
        num_concurrent_requests="max_concurrent_requests",
    )


def _rename(given: Given, **names: str) -> Given:
    return {names.get(key, key): value for key, value in given.items()}


ADAPTERS: dict[str, Callable[[Given], Given]] = {
    "vllm_model": _vllm,
    "local_vllm_model": _local_vllm,
    "inference_provider": _provider,
    "azure_openai_model": _azure,
    "openai_model": _openai,
    "simple_agent": _simple_agent,
    "litellm_model": dict,
    "math_with_judge": dict,
}
