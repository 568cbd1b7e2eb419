"""Makes a file of rollouts of the runs of other tools."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError, number_of
from ..store.files import write_atomically
from ..store.lines import dump_line
from ..types import JsonObject, Key
from .foreign import MALFORMED, Damaged, Foreign, build, malformed
from .recognition import HOW_TO_NAME, NOT_KNOWN, ForeignSource, find_sources

OTHER_FILE = "a file that is no run"


@dataclass(slots=True)
class Import:
    """What was read, and what of it. `kept` counts the rollouts that keep each name because a line
    has no place for it."""

    rollouts: int = 0
    without_reward: int = 0
    of_format: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    """Rollouts that got another index, because an earlier one of their task has theirs."""

    def to_json(self) -> JsonObject:
        return {
            "rollouts": self.rollouts,
            "without_reward": self.without_reward,
            "formats": dict(self.of_format),
            "kept": dict(self.kept),
            "left_out": dict(self.left_out),
            "renumbered": self.moved,
        }


@dataclass(frozen=True, slots=True)
class Wish:
    """How runs are to be read."""

    format: str | None = None
    """The only format that is read."""
    reward_key: str | None = None
    """The score that becomes the reward."""
    agent: str | None = None
    """The agent of all rollouts."""


ALL = Wish()


def import_runs(inputs: list[Path], output: Path, wish: Wish = ALL) -> Import:
    """Write the rollouts of all inputs; ConfigError if there are none."""
    found = Import()
    if output.exists():
        raise ConfigError(f"{output}: exists already; name another file, or move it away")
    for each in inputs:
        if not each.exists():
            raise ConfigError(f"{each}: there is no such file or folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = _lines(inputs, found, wish)
    if (first := next(lines, None)) is None:
        named = ", ".join(map(str, inputs))
        raise ConfigError(f"{named}: {explain_nothing(found)}. {HOW_TO_NAME}")
    write_atomically(output, _chain(first, lines))
    return found


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def explain_nothing(found: Import) -> str:
    """Why nothing was read."""
    if not found.left_out:
        return NOT_KNOWN
    reasons = ", ".join(f"{number:,} × {why}" for why, number in found.left_out.most_common(3))
    return f"{NOT_KNOWN} ({reasons})"


def _lines(inputs: list[Path], found: Import, wish: Wish) -> Iterator[bytes]:
    indexes: dict[tuple[str, str], set[int]] = {}
    positions: dict[str, int] = {}
    for source in _sources(inputs, found, wish.format):
        for each in _rollouts(source, source.path in inputs):
            if isinstance(each, Damaged):
                found.left_out[str(each)] += 1
                continue
            if wish.reward_key is not None:
                each.reward = _choose_reward(each, wish.reward_key, source)
            each.agent = wish.agent or each.agent
            try:
                key = _place(each, indexes, found)
                position = positions.setdefault(key.task_id, len(positions))
                line = build(each, source.format, key, position, found.rollouts + 1)
            except MALFORMED as error:
                why = error if isinstance(error, Damaged) else malformed(error)
                found.left_out[str(why)] += 1
                continue
            found.rollouts += 1
            found.of_format[source.format] += 1
            found.without_reward += each.reward is None
            found.kept.update(list(line.get(source.format) or ()))
            yield dump_line(line)


def _sources(inputs: list[Path], found: Import, format: str | None) -> Iterator[ForeignSource]:
    for path in inputs:
        for each in find_sources(path):
            if isinstance(each, Path):
                found.left_out[OTHER_FILE] += 1
            elif isinstance(each, Damaged):
                found.left_out[str(each)] += 1
            elif format not in (None, each.format):
                found.left_out[f"of the format {each.format}"] += 1
            else:
                yield each


def _rollouts(source: ForeignSource, is_named: bool) -> Iterator[Foreign | Damaged]:
    """The rollouts of a source; ConfigError if one that was named cannot be read to its end."""
    try:
        yield from source.read()
    except (ConfigError, *MALFORMED) as error:
        told = isinstance(error, ConfigError)
        why = str(error) if told else f"{source.path}: {malformed(error)}"
        if is_named:
            raise ConfigError(why) from None
        yield Damaged(f"{why}; what follows in it is not read")


def _choose_reward(each: Foreign, key: str, source: ForeignSource) -> float | None:
    if key not in each.scores:
        names = ", ".join(each.scores) or "none"
        raise ConfigError(
            f"{source.path}: reward_key={key}: a rollout has no such score; its scores: {names}"
        )
    return each.scores[key]


def _place(each: Foreign, indexes: dict[tuple[str, str], set[int]], found: Import) -> Key:
    """A key that no rollout so far has."""
    task_id = each.task_id
    taken = indexes.setdefault((task_id, each.agent), set())
    index = len(taken) if each.index is None else each.index
    if index in taken:
        found.moved += each.index is not None
        index = 1 + max(taken)
    taken.add(index)
    return Key(task_id, each.agent, "", index)


MOST_REASONS = 20
"""Reasons that people get to see. The JSON has all."""


def _list_reasons(left_out: Counter[str]) -> Iterator[str]:
    listed = left_out.most_common(MOST_REASONS)
    yield from (f"  {why}: {number:,}" for why, number in listed)
    if rest := left_out.total() - sum(number for _, number in listed):
        yield f"  for other reasons, which +json=true lists: {rest:,}"


def format_import(found: JsonObject) -> str:
    """The report for people."""
    named = ", ".join(f"{name}: {number:,}" for name, number in found["formats"].items())
    lines = [f"Imported {number_of(found['rollouts'], 'rollout')} ({named})"]
    if number := found["without_reward"]:
        lines.append(f"Without a reward: {number:,}; ng_reverify gives them one")
    if number := found["renumbered"]:
        lines.append(f"Got another rollout_index, because theirs was taken: {number:,}")
    if found["kept"]:
        lines.append("Kept under the name of the format, because a line has no place for it:")
        lines += [f"  {name}: {number:,}" for name, number in sorted(found["kept"].items())]
    if found["left_out"]:
        lines.append("Left out:")
        lines += _list_reasons(Counter(found["left_out"]))
    return "\n".join([*lines, f"Rollouts: {found['output']}"])
