"""Compares files of rollouts task by task, and says in words what may be concluded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ..config.keys.analysis import CompareConfig
from ..errors import ConfigError, number_of
from ..export.source import Candidate, RolloutSource
from ..metrics.paired import Paired, Side, compare
from ..store.files import OutputPaths
from ..store.groups.scope import arm_of_key
from ..types import JsonObject

MAX_SETTINGS = 20
"""Different settings that are listed."""


@dataclass(slots=True)
class File:
    """One file, or one arm of a file: its rollouts by task, and what they were made with."""

    path: Path
    side: Side
    arms: dict[str, Side] = field(default_factory=dict)
    agents: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    verifiers: set[str] = field(default_factory=set)
    fingerprints: set[str] = field(default_factory=set)

    def settings(self) -> JsonObject:
        """What the rollouts were made with, flat; values that vary within the file are left out."""
        found: JsonObject = {}
        names = {"agent": self.agents, "model": self.models, "verifier": self.verifiers}
        for name, values in names.items():
            found[name] = ", ".join(sorted(values))
        if len(self.fingerprints) == 1:
            try:
                known = orjson.loads(OutputPaths(self.path).manifest.read_bytes())["settings"]
                found |= dict(_flatten(known[next(iter(self.fingerprints))], ""))
            except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
                pass  # the file was moved away from its manifest
        return found


def read_files(command: CompareConfig) -> list[File]:
    """The files to compare, or the arms of a single one; ConfigError if there are not two, or one
    has no verified rollout."""
    paths = [Path(name).expanduser() for name in command.inputs]
    files = [_read(path) for path in paths] if len(paths) > 1 else _read_arms(paths)
    if len(files) < 2:
        raise ConfigError(
            "name two or more files of rollouts, or one with several arms:"
            " ng_compare a.jsonl b.jsonl"
        )
    has_several = any(len(file.agents) > 1 for file in files)
    if not has_several:  # tasks are compared across agents
        for side in (side for file in files for side in (file.side, *file.arms.values())):
            side.tasks = {key.partition("\0")[2]: votes for key, votes in side.tasks.items()}
    for file in files:
        if not file.side.tasks:
            raise ConfigError(f"{file.side.name}: no verified rollout is in it")
    return files


def _read(path: Path) -> File:
    found = File(path, Side(str(path)))
    for candidate in RolloutSource([path]).candidates():
        sides = [found.side]
        if arm := arm_of_key(candidate.key):
            sides.append(found.arms.setdefault(arm, Side(arm)))
        _add(found, candidate, sides)
    return found


def _read_arms(paths: Sequence[Path]) -> list[File]:
    """The arms of a single file, each as a file."""
    arms: dict[str, File] = {}
    for path in paths:
        for candidate in RolloutSource([path]).candidates():
            arm = arm_of_key(candidate.key)
            found = arms.setdefault(arm, File(path, Side(arm or "(no arm)")))
            _add(found, candidate, [found.side])
    return list(arms.values())


def _add(found: File, candidate: Candidate, sides: Sequence[Side]) -> None:
    key, answer = candidate.key, candidate.value("extracted_answer")
    found.agents.add(key.agent)
    found.models.add(candidate.value("model") or "")
    found.verifiers.add(candidate.value("verifier") or "")
    found.fingerprints.add(candidate.value("settings") or "")
    task = f"{key.agent}\0{key.task_id}"
    for side in sides:
        side.add(task, candidate.reward, None if answer is None else str(answer))


def compare_files(command: CompareConfig) -> JsonObject:
    """The comparison as JSON: each file, and the first one with each of the others."""
    first, *others = files = read_files(command)
    settings = [file.settings() for file in files]
    pairs = []
    for other, own in zip(others, settings[1:], strict=True):
        try:
            paired = compare(first.side, other.side)
        except ValueError as error:
            raise ConfigError(f"{first.side.name} and {other.side.name}: {error}") from None
        pairs.append(
            {
                "first": first.side.name,
                "second": other.side.name,
                **asdict(paired),
                "conclusion": conclude(paired),
                "settings": _differences(settings[0], own),
                **({"arms": arms} if (arms := _compare_arms(first, other)) else {}),
            }
        )
    return {"files": [_describe(file, command.pass_threshold) for file in files], "pairs": pairs}


def _compare_arms(first: File, other: File) -> JsonObject:
    """The comparison of each arm that both files have."""
    found: JsonObject = {}
    for arm, side in first.arms.items():
        if arm in other.arms:
            with suppress(ValueError):  # no verified task in common
                paired = compare(side, other.arms[arm])
                found[arm] = {**asdict(paired), "conclusion": conclude(paired)}
    return found


def conclude(paired: Paired) -> str:
    """What may be concluded, in one sentence."""
    if paired.p is None:
        return "Nothing can be concluded from a single task."
    if paired.right:
        ones, others = paired.right
        what = f"{ones:,} of {paired.num_tasks:,} against {others:,}"
    else:
        what = f"{paired.means[0]:.4f} against {paired.means[1]:.4f}"
    p = "p < 0.0001" if paired.p < 0.0001 else f"p = {paired.p:.2g}"
    if not paired.is_seen:
        return f"No difference can be seen: {what}, {p} ({paired.test})."
    better = "second" if paired.difference > 0 else "first"
    return f"The {better} is better: {what}, {p} ({paired.test})."


def format_comparison(found: Mapping[str, Any]) -> str:
    """The comparison for people."""
    return "\n".join([*_file_lines(found["files"]), *_pair_lines(found["pairs"])])


def _file_lines(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width = max(len(file["path"]) for file in files)
    for file in files:
        at_k = "".join(
            f" · {name}@{k} {value:.3f}"
            for name in ("pass", "maj")
            for k, value in file[f"{name}_at_k"].items()
        )
        over = f"{number_of(file['rollouts'], 'rollout')} of {number_of(file['tasks'], 'task')}"
        waiting = f" · {file['unverified']:,} unverified" if file["unverified"] else ""
        yield f"{file['path']:<{width}}  reward {file['reward']:.4f} over {over}{at_k}{waiting}"


def _pair_lines(pairs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for pair in pairs:
        yield ""
        if len(pairs) > 1:
            yield f"{pair['first']} and {pair['second']}:"
        low, high = pair["interval"] or (None, None)
        between = "" if low is None else f" [{low:+.4f}, {high:+.4f}]"
        yield (
            f"Difference {pair['difference']:+.4f}{between} over"
            f" {number_of(pair['num_tasks'], 'common task')}: the second wins {pair['wins']:,},"
            f" loses {pair['losses']:,}, ties {pair['ties']:,}"
        )
        yield pair["conclusion"]
        for arm, found in pair.get("arms", {}).items():
            yield f"  {arm}: {found['difference']:+.4f}. {found['conclusion']}"
        for name, which in (("only_first", "first"), ("only_second", "second")):
            if pair[name]:
                yield f"Only in the {which} file: {number_of(pair[name], 'task')}, not compared"
        settings = list(pair["settings"].items())
        for name, (one, other) in settings[:MAX_SETTINGS]:
            yield f"  {name}: {one} → {other}"
        if len(settings) > MAX_SETTINGS:
            yield f"  … and {len(settings) - MAX_SETTINGS} other settings"


def _describe(file: File, threshold: float) -> JsonObject:
    side = file.side
    return {
        "path": file.side.name,
        "rollouts": side.num_rollouts,
        "unverified": side.num_unverified,
        "tasks": len(side.tasks),
        "reward": side.mean,
        "pass_at_k": side.pass_at_k(threshold),
        "maj_at_k": side.maj_at_k(),
    }


def _differences(one: JsonObject, other: JsonObject) -> dict[str, tuple[Any, Any]]:
    names = [*one, *(name for name in other if name not in one)]
    return {
        name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
    }


def _flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _flatten(child, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
