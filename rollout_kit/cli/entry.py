"""The common part of all commands: `--help`, loading the configuration, errors, exit codes.

`--help` reads no files and imports nothing that only a run needs.
"""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import PydanticUndefined

from .._version import __version__
from ..config.fields import describe
from ..config.keys.commands import COMMANDS, Command
from ..errors import ConfigError, RolloutKitError
from . import streams

if TYPE_CHECKING:
    from ..config.load import Config

AnyCommand = TypeVar("AnyCommand", bound=Command)

FAILED = 1
INTERRUPTED = 130

VERSION = frozenset({"--version", "-V"})

A_KEY = re.compile(r"[^/=]*=")
"""The start of a word that gives a key; no key has a slash."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of the system about a disk, such as the one of a log, that takes nothing more."""

REFUSED_PATHS = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EROFS,
        errno.ESTALE,
    }
    | FULL
)
"""Errors of the system about a path that was given, or was removed while a command read it."""

HELP = frozenset({"-h", "--help", "+h=true", "+help=true", "h=true", "help=true"})

JSON = frozenset({"+json=true", "++json=true", "json=true"})

EXAMPLES = {
    "ng_run": (
        'ng_run "+config_paths=[configs/quickstart.yaml]"',
        'ng_run "+config_paths=[configs/quickstart.yaml]" +head_server.port=11001',
    ),
    "ng_collect_rollouts": (
        "ng_collect_rollouts +agent_name=mcqa_simple_agent +input_jsonl_fpath=tasks.jsonl "
        "+output_jsonl_fpath=rollouts.jsonl",
        'ng_collect_rollouts "+config_paths=[configs/quickstart.yaml]" '
        "+input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=rollouts.jsonl "
        "+limit=10 +responses_create_params.temperature=0.3",
    ),
    "ng_estimate": (
        'ng_estimate "+config_paths=[configs/quickstart.yaml]" +input_jsonl_fpath=tasks.jsonl '
        "+output_jsonl_fpath=rollouts.jsonl +num_repeats=4",
        "ng_estimate +agent_name=mcqa_simple_agent +input_jsonl_fpath=tasks.jsonl "
        "+output_jsonl_fpath=rollouts.jsonl +num_canary=100 +json=true",
    ),
    "ng_reverify": (
        'ng_reverify "+config_paths=[configs/quickstart.yaml]" +input_jsonl_fpath=rollouts.jsonl '
        "+output_jsonl_fpath=reverified.jsonl",
        "ng_reverify +input_jsonl_fpath=rollouts.d/unverified.jsonl "
        "+output_jsonl_fpath=reverified.jsonl +num_samples_in_parallel=50",
    ),
    "ng_chaos": (
        'ng_chaos "+config_paths=[configs/rehearsal.yaml]" +dataset=example +num_repeats=20 '
        "+output_jsonl_fpath=results/chaos/rollouts.jsonl +kills.collector=10",
        "ng_chaos +check_only=true +input_jsonl_fpath=tasks.jsonl "
        "+output_jsonl_fpath=rollouts.jsonl",
    ),
    "ng_plan_vllm": (
        "ng_plan_vllm +model_name=meta-llama/Llama-3.1-70B-Instruct +gpus=8xH100",
        "ng_plan_vllm +model_name=./model +gpus=2x80GB +max_model_len=16384 +quantization=fp8",
    ),
    "ng_status": ("ng_status", "ng_status +head_server.port=11001 +json=true"),
    "ng_stop": ("ng_stop", "ng_stop +head_server.port=11001"),
    "ng_ctl": (
        "ng_ctl parallelism=128",
        "ng_ctl cancel=c4ca4238a0b92382:0 +drop=true",
    ),
    "ng_init_resources_server": ("ng_init_resources_server +entrypoint=resources_servers/my_env",),
    "ng_test": (
        "ng_test +entrypoint=resources_servers/my_env",
        "ng_test +entrypoint=resources_servers/mcqa",
    ),
    "ng_audit_verifier": (
        "ng_audit_verifier +entrypoint=resources_servers/mcqa",
        'ng_audit_verifier "+config_paths=[my_env.yaml]" +resources_server_name=my_env '
        "+input_jsonl_fpath=rows.jsonl +output_fpath=audit.json",
    ),
    "ng_prepare_data": (
        'ng_prepare_data "+config_paths=[resources_servers/mcqa/configs/mcqa.yaml]" '
        "+output_dirpath=results/data",
        'ng_prepare_data "+config_paths=[my_env.yaml]" +output_dirpath=data '
        "+mode=train_preparation +drop_duplicates=true",
    ),
    "ng_view": (
        "ng_view results/",
        "ng_view rollouts.jsonl +where='reward < 0.5' +static=report.html",
    ),
    "ng_report": (
        "ng_report results/*.jsonl",
        "ng_report before.jsonl after.jsonl +output_fpath=report.html +title='Before and after'",
    ),
    "ng_merge": (
        "ng_merge 'shards/*.jsonl' +output_jsonl_fpath=rollouts.jsonl",
        "ng_merge 'shards/*.jsonl' +output_jsonl_fpath=rollouts.jsonl "
        "+input_jsonl_fpath=tasks.jsonl",
    ),
    "ng_compare": (
        "ng_compare before.jsonl after.jsonl",
        "ng_compare a.jsonl b.jsonl c.jsonl +json=true",
    ),
    "ng_check_tokens": (
        "ng_check_tokens +input_jsonl_fpath=rollouts.jsonl",
        'ng_check_tokens "+config_paths=[configs/demo.yaml]" +input_jsonl_fpath=rollouts.jsonl '
        "+limit=1000 +json=true",
    ),
    "ng_export": (
        "ng_export rollouts.jsonl +format=trl_sft +output_fpath=train.jsonl "
        "+where='reward > 0.5 and num_turns < 8' +drop_truncated=true",
        "ng_export rollouts.jsonl +format=verl_rl +output_fpath=train.parquet +test_fraction=0.1",
    ),
    "ng_pairs": (
        "ng_pairs rollouts.jsonl +output_fpath=pairs.jsonl +rules=[correctness] +max_per_task=4",
        "ng_pairs rollouts.jsonl +format=llamafactory_dpo +output_fpath=pairs.jsonl "
        "+rules_fpath=rules.yaml",
    ),
    "ng_merge_lora": (
        "ng_merge_lora +base=models/base +adapter=checkpoints/lora +output=models/merged",
        "ng_merge_lora +base=Qwen/Qwen3-0.6B +adapter=lora +output=merged +dtype=float32",
    ),
    "ng_simulate_trainer": (
        "ng_simulate_trainer +buffer=http://127.0.0.1:8123 +step_s=2 +steps=50",
        "ng_simulate_trainer '+buffer=redis://localhost:6379/0/run1' +batch=32 +step_s=10",
    ),
    "ng_validate": (
        'ng_validate "+config_paths=[configs/quickstart.yaml]"',
        'ng_validate "+config_paths=[a.yaml,b.yaml]" +policy_model_name=gpt-4o-mini',
    ),
    "ng_list": ("ng_list", "ng_list +nemo_gym=~/Gym +kind=benchmark"),
    "ng_dump_config": (
        'ng_dump_config "+config_paths=[configs/quickstart.yaml]"',
        'ng_dump_config "+config_paths=[configs/quickstart.yaml]" +json=true',
    ),
    "ng_help": ("ng_help", "ng_collect_rollouts --help"),
    "ng_version": ("ng_version", "ng_version +json=true"),
}


def command(name: str) -> Callable[[Callable[[list[str]], int]], Callable[..., None]]:
    """Makes the `main` of a command of a function that takes its words and returns its exit code.
    `main` takes them from the command line, unless it is given some, and exits."""

    def make_main(body: Callable[[list[str]], int]) -> Callable[..., None]:
        def main(argv: list[str] | None = None) -> None:
            words = sys.argv[1:] if argv is None else argv
            sys.exit(guard(name, words, lambda: body(words)))

        return main

    return make_main


def load(words: Sequence[str], command: type[AnyCommand]) -> "Config[AnyCommand]":
    """Load the configuration of a command; show warnings, and log with masked secrets from now."""
    from ..config.load import load

    config = load(words, command)
    _mask_logs(config.secrets)
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return config


def _mask_logs(secrets: frozenset[str]) -> None:
    """Log to the terminal with masked secrets."""
    import logging

    from ..secrets import mask

    class Masking(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return mask(super().format(record), secrets)

    handler = logging.StreamHandler()
    handler.setFormatter(Masking("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def guard(name: str, arguments: Sequence[str], body: Callable[[], int]) -> int:
    """Run `body`, or print help or version; print an error as one message. Return the exit code."""
    streams.prepare()
    try:
        if HELP & set(arguments):
            print(format_help(name))
            return 0
        if VERSION & set(arguments):
            print(f"{name} (rollout_kit {__version__}); for a bug report: ng_version")
            return 0
        code = body()
        sys.stdout.flush()
        return code
    except RolloutKitError as error:
        print(f"error: {_indent(str(error))}", file=sys.stderr)
        if JSON & set(arguments):  # readers of JSON get the error as JSON
            print(json.dumps({"error": str(error)}))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        streams.discard(sys.stdout)  # the pipe was closed
        return FAILED
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            streams.discard(sys.stdout)
            print(f"error: cannot write or print: {error.strerror}", file=sys.stderr)
            return FAILED
        if error.errno not in REFUSED_PATHS or error.filename is None:
            raise
        print(f"error: {os.fsdecode(error.filename)}: {error.strerror}", file=sys.stderr)
        return FAILED


def parse_keys(arguments: Sequence[str], command: type[AnyCommand]) -> AnyCommand:
    """Parse the keys of a command that reads no files."""
    needs_some = any(field.is_required() for field in command.model_fields.values())
    if not arguments and not needs_some:
        return command.model_validate({})
    from ..config.load import parse_keys

    return parse_keys(arguments, command)


def parse_files(arguments: Sequence[str], command: type[AnyCommand]) -> AnyCommand:
    """Parse the keys of a command whose plain words are files of rollouts."""
    from ..store.foreign.nemo_gym import as_ours  # not needed for --help

    files = list(filter(_is_file, arguments))
    keys = parse_keys([word for word in arguments if word not in files], command)
    inputs = [*getattr(keys, "inputs", ()), *files]
    if not all(map(str.strip, inputs)):  # pathlib would take it for the present folder
        raise ConfigError("one of the names of files is empty: is a variable of the shell unset?")
    return keys.model_copy(update={"inputs": list(map(as_ours, inputs))})


def _is_file(word: str) -> bool:
    """Whether a word is the name of a file, which may have a `=`, and no key with its value."""
    if word[:1] in ("+", "~", "-"):
        return False
    return not A_KEY.match(word) or os.path.exists(word)


def show(found: Any, format_text: Callable[[Any], str], *, as_json: bool) -> None:
    """Print a result as JSON, or as text for people."""
    print(json.dumps(found, ensure_ascii=False) if as_json else format_text(found))


def show_of_files(command: Any, found: dict[str, Any], format_text: Callable[[Any], str]) -> None:
    """Print a result over files of rollouts, and which of them hold tasks of earlier inputs."""
    from ..store.outputs import files_of  # not needed for --help
    from ..store.own_tasks import find_earlier_inputs

    is_whole = command.input_jsonl_fpath is None
    notes = list(find_earlier_inputs(files_of(command.inputs))) if is_whole else []
    if command.json_output:
        found = {**found, **({"earlier_inputs": notes} if notes else {})}
    show(found, lambda it: "\n".join([*notes, format_text(it)]), as_json=command.json_output)


def format_help(name: str) -> str:
    """Format every key of a command with its type, default and description, and examples."""
    model, summary = COMMANDS[name]
    lines = [f"{name}: {summary}", "", "Keys, given as +key=value:"]
    for key, kind, default, description in _list_keys(model, ""):
        if key == "config_paths" and not model.has_servers:
            continue
        lines += [f"  {key}  ({kind}{default})", f"      {description}"]
    if model.has_servers:
        lines += ["", "Keys of a server: ++<instance>.<type>.<implementation>.<key>=value"]
    lines += ["", "Examples:", *(f"  {example}" for example in EXAMPLES.get(name, ()))]
    return "\n".join(lines)


def _list_keys(model: Any, prefix: str) -> list[tuple[str, str, str, str]]:
    rows = []
    declared = [cls.__annotations__ for cls in model.__mro__ if cls is not object]

    def rank(name: str) -> int:  # the command's own keys first, common keys last
        return next(place for place, names in enumerate(declared) if name in names)

    for name, field in sorted(model.model_fields.items(), key=lambda item: rank(item[0])):
        key = f"{prefix}{field.alias or name}"
        nested = getattr(field.annotation, "model_fields", None)
        if nested:
            rows += _list_keys(field.annotation, f"{key}.")
            continue
        default = (
            ""
            if field.default is PydanticUndefined
            else f", default {_format_default(field.default)}"
        )
        rows.append((key, describe(field.annotation), default, field.description or ""))
    return rows


def _format_default(default: Any) -> str:
    """Format a default as typed on the command line."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return f"{default:g}" if isinstance(default, float) else str(default) or '""'


def _indent(text: str) -> str:
    return text.replace("\n", "\n       ")
