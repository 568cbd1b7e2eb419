"""The command of a run as a user can type it again, without its secrets."""

import shlex
from collections.abc import Sequence

from ..config.benchmarks.training import name_as_benchmark
from ..config.commands import known_keys
from ..config.keys import RolloutsCommand
from ..config.load import Config
from ..config.overrides import key_of_word
from ..secrets import mask
from .plan import CommandLines, output_paths

OF_SERVERS = frozenset({"config_paths", "head_server", "benchmark"})
"""Keys that choose the servers of a command, beside the keys of the servers themselves."""

ONCE = frozenset({"only", "dry_run", "confirm", "num_canary"})
"""Keys that belong to one call: the command that continues a run does without them."""


def command_lines(name: str, argv: Sequence[str], config: Config[RolloutsCommand]) -> CommandLines:
    """What continues a run of the command `name`, and what verifies its output again."""
    command = config.command
    again = repeat_command(name, argv, config.secrets)
    if command.output_jsonl_fpath is None:
        return CommandLines(again)
    paths = output_paths(command)
    named = name_as_benchmark(argv)
    servers = [word for word in named if key_of_word(word) not in known_keys() - OF_SERVERS]
    files = [
        f"+input_jsonl_fpath={paths.main}",
        f"+output_jsonl_fpath={paths.beside('_reverified.jsonl')}",
    ]
    return CommandLines(again, repeat_command("ng_reverify", [*servers, *files], config.secrets))


def repeat_command(name: str, argv: Sequence[str], secrets: frozenset[str]) -> str:
    """The command line that repeats or continues `name` with these arguments."""
    kept = [word for word in argv if word.lstrip("+").partition("=")[0] not in ONCE]
    kept = [word for word in kept if word.lstrip("+") != "resume=fresh"]  # the output is fresh now
    return shlex.join([name, *(str(mask(word, secrets)) for word in kept)])
