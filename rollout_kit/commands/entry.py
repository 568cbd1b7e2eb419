"""The common part of all commands: `--help`, loading the configuration, errors, exit codes.

`--help` reads no files and imports nothing that only a run needs.
"""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

from .._version import __version__
from ..config.commands import COMMANDS
from ..config.keys import Command
from ..config.overrides import take_options
from ..errors import ConfigError, RolloutKitError

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

WHOLE_HELP = frozenset({"--help=all", "+help=all", "help=all"})

JSON = frozenset({"+json=true", "++json=true", "json=true"})


def main(name: str | None = None, words: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code. The name and the words are those of the command line
    unless they are given."""
    name = Path(sys.argv[0]).stem if name is None else name
    words = sys.argv[1:] if words is None else list(words)
    sys.exit(guard(name, words, lambda: run(name, words)))


def run(name: str, words: Sequence[str]) -> int:
    """Run a command; returns its exit code. Only its own module is imported."""
    module = COMMANDS[name].module or name.removeprefix("ng_")
    words, notes = take_options(name, words)
    for note in notes:
        print(note, file=sys.stderr)
    return import_module(f".{module}", __package__).main(list(words))


def load(words: Sequence[str], command: type[AnyCommand]) -> "Config[AnyCommand]":
    """Load the configuration of a command; show its warnings and notes. From now on, logs have
    masked secrets."""
    from ..config.load import load

    config = load(words, command)
    _mask_logs(config.secrets)
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for note in config.notes:
        print(note, file=sys.stderr)
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
    prepare()
    try:
        if (HELP | WHOLE_HELP) & set(arguments):
            print(format_help(name, is_whole=bool(WHOLE_HELP & set(arguments))))
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
        discard(sys.stdout)  # the pipe was closed
        return FAILED
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            discard(sys.stdout)
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
    """Parse the keys of a command whose plain words are files of rollouts. Rollouts of NeMo Gym
    are read from a copy in our format."""
    from ..store.nemo_gym import as_ours  # not needed for --help

    keys = parse_plain(arguments, command)
    return keys.model_copy(update={"inputs": list(map(as_ours, getattr(keys, "inputs", ())))})


def parse_plain(arguments: Sequence[str], command: type[AnyCommand]) -> AnyCommand:
    """Parse the keys of a command whose plain words are files, whatever they hold."""
    files = list(filter(_is_file, arguments))
    keys = parse_keys([word for word in arguments if word not in files], command)
    inputs = [*getattr(keys, "inputs", ()), *files]
    if not all(map(str.strip, inputs)):  # pathlib would take it for the present folder
        raise ConfigError("one of the names of files is empty: is a variable of the shell unset?")
    return keys.model_copy(update={"inputs": inputs})


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
    from ..store.tasks import find_earlier_inputs

    is_whole = command.input_jsonl_fpath is None
    notes = list(find_earlier_inputs(files_of(command.inputs))) if is_whole else []
    if command.json_output:
        found = {**found, **({"earlier_inputs": notes} if notes else {})}
    show(found, lambda it: "\n".join([*notes, format_text(it)]), as_json=command.json_output)


def format_help(name: str, *, is_whole: bool = False) -> str:
    """Format the keys of a command by subject, with type, default and description, and examples.
    Of a command with many keys, the most used ones, unless `is_whole`."""
    from ..config.reference import list_groups

    info = COMMANDS[name]
    hidden = set() if info.keys.has_servers else {"config_paths"}
    groups = list_groups(info.keys)
    known = {row.name for group in groups for row in group.rows} - hidden
    shown = known if is_whole or not info.first else set(info.first)
    lines = [f"{name}: {info.summary}", "", "For example:"]
    lines += [*(f"  {each}" for each in info.examples), "", "You give a key as +key=value."]
    if len(known) > len(shown):
        lines[-1] += f" These are the keys that you need most. --help=all shows all {len(known)}."
    for title, rows in groups:
        if rows := [row for row in rows if row.name in shown]:
            lines += ["", f"{title}:"]
        for row in rows:
            default = "required" if row.default is None else f"default {row.default}"
            lines += [f"  {row.name}  ({row.type_name}, {default})", f"      {row.about}"]
    if info.keys.has_servers:
        lines += [
            "",
            "You give a key of a server as ++<instance>.<type>.<implementation>.<key>=value",
        ]
    return "\n".join(lines)


def _indent(text: str) -> str:
    return text.replace("\n", "\n       ")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns."""
    for line in align(rows):
        print(line)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def prepare() -> None:
    """Open the streams that the caller closed, and let none of them fail at a character.

    Otherwise the first socket or output file of the command would become a standard stream.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[attr-defined]


def discard(stream: TextIO) -> None:
    """Let what is still to be written go nowhere; the interpreter writes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush() -> None:
    """Write what is buffered. What a full disk does not take goes nowhere, so that the exit status
    remains that of the command."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError:
            discard(stream)
