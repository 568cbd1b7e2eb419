"""Computes rewards again from the components that verifiers have stored, without any of them.

The result is an output of its own, with sidecars and metrics; the rollouts that were given stay as
they are.
"""

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from ....errors import ConfigError, number_of
from ....reading import parse_line, read_lines
from ....store.files import OutputPaths, check_apart, write_atomically
from ....store.groups.scores import group_of_line
from ....store.rollouts import RolloutFile
from ....types import JsonObject, Rollout
from .merge import merge_files

NAME = "rollouts.jsonl"


class Components:
    """Counts the components that are there, and multiplies those that are asked for."""

    def __init__(self, factors: Mapping[str, float]) -> None:
        self._factors = factors
        self.known: set[str] = set()
        self.num_rollouts = self.num_groups = 0

    def weigh(self, parts: Mapping[str, float]) -> float:
        """Their sum, each multiplied by its factor, or by 1."""
        self.known |= parts.keys()
        return math.fsum(self._factors.get(name, 1.0) * value for name, value in parts.items())

    def weigh_line(self, rollout: Rollout) -> JsonObject:
        """The line of a rollout. Its own reward is the sum of the factors times its scores, if it
        has the scores that are named."""
        line = rollout.line
        parts = {name: line[name] for name in self._factors if _is_number(line.get(name))}
        self.known |= {name for name in rollout.info.scores if _is_number(line.get(name))}
        if rollout.reward is None or len(parts) < len(self._factors):
            return line
        self.num_rollouts += 1
        return {**line, "reward": self.weigh(parts)}

    def weigh_group(self, line: JsonObject) -> JsonObject:
        """The line of a group, with the rewards of its members."""
        self.num_groups += 1
        members = [
            {**each, "reward": self.weigh(each["components"])}
            if each.get("components") and each.get("reward") is not None
            else each
            for each in line["members"]
        ]
        return {**line, "members": members}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def reweight(path: Path, output: Path, factors: Mapping[str, float], threshold: float) -> str:
    """Write the rollouts of `path` with rewards computed again; what was done, as a sentence.
    ConfigError if no rollout has a component of these names."""
    given, into, components = OutputPaths.of(path), OutputPaths.of(output), Components(factors)
    check_apart(str(path), into)
    if not factors:
        raise ConfigError("factors are missing: +factors.<component>=2, for example")
    with tempfile.TemporaryDirectory(dir=output.absolute().parent) as folder:
        own = OutputPaths(Path(folder) / NAME)
        if given.folder.is_dir():
            shutil.copytree(given.folder, own.folder, ignore=shutil.ignore_patterns("index.bin"))
        groups = given.groups
        if groups.exists():
            write_atomically(own.groups, _iterate_groups(groups, components))
        lines = (components.weigh_line(each) for each in RolloutFile(path).rollouts())
        write_atomically(own.main, (orjson.dumps(line) + b"\n" for line in lines))
        if unknown := factors.keys() - components.known:
            known = ", ".join(sorted(components.known)) or "none"
            raise ConfigError(f"factors.{min(unknown)}: no rollout has it; there are: {known}")
        merge_files([own.main], into, None, threshold)
    counts = [number_of(components.num_rollouts, "rollout")] if components.num_rollouts else []
    counts += [number_of(components.num_groups, "group")] if components.num_groups else []
    return f"{output}: new rewards of {' and '.join(counts)}"


def _iterate_groups(path: Path, components: Components) -> Iterator[bytes]:
    for _, raw in read_lines(path):
        line = parse_line(raw)
        if line is None or group_of_line(line) is None:
            yield raw
        else:
            yield orjson.dumps(components.weigh_group(line)) + b"\n"
