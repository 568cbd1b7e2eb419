"""The scanners that a command asks for: ready ones, regular expressions, rules and functions."""

import ast
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from ...config.keys import ScanConfig
from ...errors import ConfigError, suggest
from ...store.filters.expression import names_in, parse
from .ready import READY_VERSION, SCANNERS

Kind = Literal["ready", "regex", "rule", "function"]

OF_OTHER_FILES = frozenset({"labels", "scans", "group_reward"})
"""Fields that a rollout's line does not hold."""


class ScannerSpec(NamedTuple):
    """One scanner. `text` is the expression, the rule, or FILE:FUNCTION. A rollout is scanned again
    when the version has changed."""

    name: str
    kind: Kind
    text: str
    version: str


def list_scanners(command: ScanConfig) -> list[ScannerSpec]:
    """The scanners of a command: all ready ones if it names none. ConfigError for one that cannot
    be used."""
    others = [*_read_regexes(command.regex), *_read_rules(command.rule)]
    others += _read_functions(command.function)
    given = [command.scanner] if isinstance(command.scanner, str) else command.scanner
    is_default = not (given or others or command.question)
    found = [*map(_find_ready, SCANNERS if is_default else given), *others]
    names = [*(spec.name for spec in found), *command.question]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two scanners are called '{twice}': give one of them another name")
    if ready := next((name for name in names[len(found) - len(others) :] if name in SCANNERS), ""):
        raise ConfigError(f"'{ready}' is the name of a ready scanner: choose another name")
    return found


def _find_ready(name: str) -> ScannerSpec:
    if name not in SCANNERS:
        known = suggest(name, SCANNERS) or f"; there are {', '.join(SCANNERS)}"
        raise ConfigError(f"scanner: there is no scanner '{name}'{known}")
    return ScannerSpec(name, "ready", name, READY_VERSION)


def _read_regexes(given: Mapping[str, str]) -> Iterator[ScannerSpec]:
    for name, text in given.items():
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"regex.{name}: {text!r} is no regular expression: {error}") from None
        yield ScannerSpec(name, "regex", text, _digest(text))


def _read_rules(given: Mapping[str, str]) -> Iterator[ScannerSpec]:
    for name, text in given.items():
        if wrong := sorted(names_in(parse(text)) & OF_OTHER_FILES):
            raise ConfigError(
                f"rule.{name}: a rule cannot ask for {', '.join(wrong)}: choose the rollouts with"
                " +where"
            )
        yield ScannerSpec(name, "rule", ast.unparse(parse(text)), _digest(text))


def _read_functions(given: Mapping[str, str]) -> Iterator[ScannerSpec]:
    for name, text in given.items():
        path, _, function = text.rpartition(":")
        file = Path(path).expanduser()
        if not (path and function.isidentifier() and file.is_file()):
            raise ConfigError(f"function.{name}: expected FILE.py:FUNCTION, got {text!r}")
        version = _digest(function + file.read_text())
        yield ScannerSpec(name, "function", f"{file.resolve()}:{function}", version)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]
