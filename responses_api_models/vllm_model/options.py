"""The options of `vllm serve` as fields of the block, and the block as arguments.

The list is that of the version in vllm_options.json; `installed` finds further options of the
installed version.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from rollout_kit.serving.hosted_model import EndpointConfig
from rollout_kit.serving.service import OPERATIONAL

LISTED = json.loads(Path(__file__).with_name("vllm_options.json").read_text(encoding="utf-8"))

OPTIONS: dict[str, dict[str, str]] = LISTED["options"]
"""Option → vLLM's own type annotation and the option's kind; see extract_options.py."""

GENERATIVE = frozenset(
    {
        "chat_template",
        "default_chat_template_kwargs",
        "dtype",
        "enable_auto_tool_choice",
        "generation_config",
        "hf_overrides",
        "kv_cache_dtype",
        "logprobs_mode",
        "lora_modules",
        "max_model_len",
        "model_impl",
        "override_generation_config",
        "quantization",
        "reasoning_parser",
        "revision",
        "seed",
        "tokenizer",
        "tokenizer_revision",
        "tool_call_parser",
    }
)
"""Options that affect what is generated; the others only affect speed or place."""

OURS = frozenset({"model", "host", "port", "uds", "api_key"})
"""Options that this server sets itself: vLLM's address and key."""

SIMPLE = {"bool": bool, "int": int | str, "float": float, "str": str}
"""Types that can be checked without vLLM; it also accepts some numbers as text (`8k`, `auto`)."""

FRACTION = {"gt": 0, "le": 1}
COUNT = {"ge": 1}
BOUNDS: dict[str, dict[str, int]] = {
    "gpu_memory_utilization": FRACTION,
    "tensor_parallel_size": COUNT,
    "pipeline_parallel_size": COUNT,
    "data_parallel_size": COUNT,
}
"""Options that are checked early, because vLLM finds a wrong value only after minutes."""


def _option(name: str, annotation: str) -> Any:
    extra: Any = None if name in GENERATIVE else OPERATIONAL
    kind: Any = SIMPLE.get(annotation.removesuffix(" | None"), Any)
    if name in BOUNDS:
        kind = float if annotation == "float" else int
    described = f"vLLM's own: {annotation}"
    bounds: Any = BOUNDS.get(name, {})
    return (kind | None, Field(None, json_schema_extra=extra, description=described, **bounds))


# one field per option, so that a typo gives the same error as in any other block
VllmOptions = create_model(
    "VllmOptions",
    __base__=EndpointConfig,
    **{name: _option(name, about["type"]) for name, about in OPTIONS.items()},
)


def arguments(given: Mapping[str, Any]) -> list[str]:
    """The arguments of `vllm serve` for the given options, in their order."""
    return [
        word
        for name, value in given.items()
        if name in OPTIONS and name not in OURS and value is not None
        for word in _words(name, value)
    ]


def further(
    extra_args: list[str] | Mapping[str, Any], options: Mapping[str, Any] = OPTIONS
) -> list[str]:
    """`extra_args` as arguments; a mapping is treated like the options."""
    if isinstance(extra_args, Mapping):
        return [
            word
            for name, value in extra_args.items()
            if value is not None
            for word in _words(name.removeprefix("--").replace("-", "_"), value, options)
        ]
    return [str(each) for each in extra_args]


def _words(name: str, value: Any, options: Mapping[str, Any] = OPTIONS) -> Iterator[str]:
    option = f"--{name.replace('_', '-')}"
    takes = options.get(name, {}).get("takes", "")
    if isinstance(value, bool):
        if value:
            yield option
        elif takes != "flag":
            yield f"--no-{name.replace('_', '-')}"
    elif name == "lora_modules" and isinstance(value, Mapping):
        yield option
        yield from (_adapter(each, where) for each, where in value.items())
    elif takes == "repeated" and isinstance(value, list):
        for each in value:
            yield from (option, _text(each))
    elif isinstance(value, list) and takes != "value":
        yield option
        yield from map(_text, value)
    else:
        yield from (option, _text(value))


def _adapter(name: str, where: Any) -> str:
    """One of `lora_modules`: a path, or vLLM's own description."""
    return json.dumps({"name": name, **where}) if isinstance(where, Mapping) else f"{name}={where}"


def adapter_names(lora_modules: Any) -> list[str]:
    """The names of the adapters, given as `{name: path}`, `name=path`, or vLLM's descriptions."""
    if isinstance(lora_modules, Mapping):
        return [str(name) for name in lora_modules]
    given = lora_modules if isinstance(lora_modules, list) else [lora_modules]
    names = [each.get("name") if isinstance(each, Mapping) else each for each in given]
    return [name.partition("=")[0] for name in names if isinstance(name, str)]


def adapter_places(lora_modules: Any) -> list[Path]:
    """The folders of the adapters that are on this machine."""
    if isinstance(lora_modules, Mapping):
        lora_modules = [{"path": path} for path in lora_modules.values()]
    given = lora_modules if isinstance(lora_modules, list) else [lora_modules]
    paths = [each.get("path") if isinstance(each, Mapping) else each for each in given]
    texts = [path.partition("=")[2] or path for path in paths if isinstance(path, str)]
    places = [Path(text).expanduser() for text in texts]
    return [place for place in places if place.is_dir()]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list | bool) else str(value)
