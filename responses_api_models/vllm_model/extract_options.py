"""Print the options of `vllm serve` as JSON; run with the Python of vLLM's environment.

    ~/vllm/bin/python -I extract_options.py > vllm_options.json

Names and kinds are those of the argument parser of `vllm serve`, without those that its build
cannot use. The types are the annotations of its dataclasses, for people to read.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import sys
from typing import Any

PARSERS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
"""Modules that make the parser, newest releases first."""


def extract() -> dict[str, object]:
    """The options of `vllm serve`, sorted by name, with vLLM's version."""
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs

    module = _first_of(PARSERS)
    utils = _first_of(("vllm.utils.argparse_utils", "vllm.utils"))
    parser = module.make_arg_parser(utils.FlexibleArgumentParser())
    classes = [AsyncEngineArgs, *(kind for _, kind in inspect.getmembers(module, inspect.isclass))]
    types = {
        field.name: field.type if isinstance(field.type, str) else _written(field.type)
        for kind in classes
        if dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
    }
    options = {
        long[2:].replace("-", "_"): {"type": types.get(action.dest, ""), "takes": _takes(action)}
        for action in parser._actions
        for long in _names(action)
    }
    if not _can_sleep():  # it has the option, and does not start with it
        options.pop("enable_sleep_mode", None)
    version = vllm.__version__.partition("+")[0]
    return {"vllm_version": version, "options": dict(sorted(options.items()))}


def _names(action: argparse.Action) -> list[str]:
    """The names of an option, without those that mean the opposite."""
    opposite = getattr(action, "negative_option_strings", ())  # from 0.33 on also --disable-…
    return [
        name
        for name in action.option_strings
        if name.startswith("--") and not name.startswith("--no-") and name != "--help"
        if name not in opposite
    ]


def _can_sleep() -> bool:
    """Whether this build of vLLM can release a device's memory; one for CPUs or TPUs cannot. On a
    machine without a device the build does not tell."""
    from vllm.platforms import current_platform

    try:
        return current_platform.is_unspecified() or current_platform.is_sleep_mode_available()
    except AttributeError:  # an older release
        return not current_platform.is_cpu()


def _first_of(names: tuple[str, ...]) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module(names[-1])


def _written(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return text.replace("typing.", "")


def _takes(action: argparse.Action) -> str:
    """The kind of an option: `switch` (also as `--no-`), `flag`, `values` (one or more), `repeated`
    (may be given several times), or `value`."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    if action.nargs == 0:
        return "flag"
    if action.nargs in ("+", "*"):
        return "values"
    return "repeated" if isinstance(action, argparse._AppendAction) else "value"


if __name__ == "__main__":
    # vLLM logs while it is imported
    printed, sys.stdout = sys.stdout, sys.stderr
    printed.write(json.dumps(extract(), indent=1) + "\n")
