"""NeMo Gym's model servers and their keys, in terms of ours."""

from collections.abc import Callable

from ..types import JsonObject

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
    "use_completions_api": False,
    "render_chat_template": False,
    "request_prompt_and_generation_token_ids": False,
    "show_vllm_engine_stats": ...,
    "ray_worker_py_executable": ...,
    "library_verifier_timeout_seconds": ...,
    "library_verifier_max_concurrency": ...,
}
"""Keys that need nothing of ours, with the one value for which this holds; `...` is any."""

RAW_PROMPT = "leave it out: rows ask for it here, with responses_create_params.raw_prompt: true"

REFUSED = {
    "sampling_overrides": "give +responses_create_params.<name>=<value>: it wins over every row",
    "default_headers": "only openai_model sends headers, as openai_default_headers",
    "audio_root": "audio is not read from files here: write it into the rows as data URIs",
    "sequential_reasoning_allowed": "leave it out: reasoning after reasoning is allowed here",
    "preserve_reasoning_in_assistant_content": "leave it out: reasoning has its own field here",
    "use_completions_api": RAW_PROMPT,
    "render_chat_template": RAW_PROMPT,
    "tokenizer": "leave it out: the endpoint applies the chat template here",
}
"""Keys whose other values have no counterpart → what to do."""


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
    ids = given.pop("return_token_id_information", None)
    if ids or given.pop("request_prompt_and_generation_token_ids", None):
        given["return_token_ids"] = True
    if given.pop("uses_interleaved_reasoning", True) is False:
        given["drop_input_reasoning_items"] = True
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
    "openai_model": dict,
    "litellm_model": dict,
    "math_with_judge": dict,
}
