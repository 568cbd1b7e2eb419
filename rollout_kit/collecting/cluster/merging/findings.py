"""What is odd about the files that are merged, in sentences."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from ....config.shard import Shard
from ....reading import read_object
from ....store.files import OutputPaths
from ....store.manifest import last_input
from ....types import JsonObject

UNIONS = ("settings", "verifiers", "verifier_parts", "prices")
"""Parts of a manifest that add up."""

SHOWN = 20
"""Missing parts that one sentence names."""

MAX_LISTED = 1_000
"""Entries of each list in the report."""


class MadeBy(NamedTuple):
    """What rollouts have in common: file, agent, scope, settings and verifier."""

    file: int
    agent: str
    scope: str
    settings: str
    verifier: str


@dataclass(slots=True)
class Findings:
    """Lists of sentences; `missing` are rollouts that were planned."""

    missing: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    mixed_settings: list[str] = field(default_factory=list)
    mixed_verifiers: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def to_json(self) -> JsonObject:
        """The lists that are not empty."""
        lists = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: found[:MAX_LISTED] for name, found in lists.items() if found}

    def name_foreign(self, path: Path, number: int) -> None:
        """Name the lines of a file that are no rollouts."""
        if number:
            what = "1 line is no rollout" if number == 1 else f"{number:,} lines are no rollouts"
            self.foreign.append(f"{path}: {what}; left out")

    def name_mixed(self, made: Counter[MadeBy], files: Sequence[OutputPaths]) -> None:
        """Name agents whose rollouts were made with several settings, or have several verifiers."""
        settings: dict[tuple[str, str], Counter[tuple[str, int]]] = {}
        verifiers: dict[str, Counter[tuple[str, int]]] = {}
        for each, number in made.items():
            counted = settings.setdefault((each.agent, each.scope), Counter())
            counted[each.settings, each.file] += number
            verifiers.setdefault(each.agent, Counter())[each.verifier, each.file] += number
        for (agent, _), counted in settings.items():
            if len({name for name, _ in counted}) > 1:
                self.mixed_settings.append(f"{agent}: {_spell(counted, files)}")
        for agent, counted in verifiers.items():
            if len({name for name, _ in counted}) > 1:
                self.mixed_verifiers.append(f"{agent}: {_spell(counted, files)}")

    def name_missing(
        self, held: Counter[int], files: Sequence[OutputPaths], manifests: Sequence[JsonObject]
    ) -> None:
        """Name what the manifests planned and the files do not have; and shards without a file."""
        parts: dict[int, set[int]] = {}
        bases: dict[int, set[Path]] = {}
        for at, (paths, manifest) in enumerate(zip(files, manifests, strict=True)):
            entry = last_input(manifest)
            number, _, count = str(entry.get("shard") or "").partition("/")
            if count.isdecimal():
                parts.setdefault(int(count), set()).add(int(number))
                bases.setdefault(int(count), set()).add(_base_of(paths.main, count))
            planned = (manifest.get("counts") or entry).get("planned", held[at])
            what = ""
            if held[at] < planned:
                what = f"{planned - held[at]:,} of {planned:,} rollouts are missing"
            elif manifest and not manifest.get("finished_at"):
                what = "its run has not ended"
            if what:
                command = manifest.get("command")
                how = f"this continues it:  {command}" if command else "run its command again"
                self.missing.append(f"{paths.main}: {what}; {how}")
        for count, numbers in parts.items():
            without = (Shard(each, count) for each in range(1, count + 1) if each not in numbers)
            missing = [each.spell() for each in without if not _is_empty(each, bases[count])]
            if missing:
                more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
                self.missing.append(f"no file of shard {', '.join(missing[:SHOWN])}{more}")

    def name_tasks(self, source: object, num_known: int, numbers: Iterable[int]) -> None:
        """Name tasks of the input without a rollout, and tasks that it does not have."""
        with_rollouts = set(numbers)
        bare = num_known - sum(number < num_known for number in with_rollouts)
        if bare:
            self.missing.append(f"{bare:,} tasks of {source} have no rollout")
        if beyond := sum(number >= num_known for number in with_rollouts):
            self.foreign.append(f"{beyond:,} tasks are not in {source}; their rollouts come last")


def _base_of(part: Path, count: str) -> Path:
    """The output whose name a part of it has."""
    return part.with_name(re.sub(rf"-\d+-of-{count}(?=\.jsonl$)", "", part.name))


def _is_empty(shard: Shard, bases: Iterable[Path]) -> bool:
    """Whether a part has no tasks, and so no file of rollouts, beside the others."""
    parts = [OutputPaths(shard.path_of(base)) for base in bases]
    return any(
        not part.main.exists() and last_input(read_object(part.manifest)).get("planned") == 0
        for part in parts
    )


def read_sound(path: Path) -> JsonObject:
    """A manifest without what is not of the right type: people and other programs edit them. Empty
    if there is none."""
    if not (found := read_object(path)):
        return {}
    inputs = found.get("inputs")
    entries = inputs if isinstance(inputs, list) else []
    found["inputs"] = [_keep_numbers(each) for each in entries if isinstance(each, dict)]
    for name in ("counts", *UNIONS):
        if name in found and not isinstance(found[name], dict):
            del found[name]
    if "counts" in found:
        found["counts"] = _keep_numbers(found["counts"])
    return found


def _keep_numbers(found: JsonObject) -> JsonObject:
    """Counts that are numbers, and a `shard` that is one."""
    kept = dict(found)
    for name in ("planned", "tasks", "malformed", "num_repeats"):
        if not isinstance(found.get(name, 0), int):
            del kept[name]
    try:
        Shard.parse(found.get("shard"), {})
    except ValueError:
        kept.pop("shard", None)
    return kept


def _spell(counted: Counter[tuple[str, int]], files: Sequence[OutputPaths]) -> str:
    return "; ".join(
        f"{name or '(none)'} in {number:,} of {files[file].main}"
        for (name, file), number in counted.items()
    )
