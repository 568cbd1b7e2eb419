"""What scanners have found in files of rollouts, in total and beside what people say."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError, number_of
from ...store.notes.scans import TurnFinding
from ...types import JsonObject, Key
from ..judge_agreement import LABEL, read_value
from ..metrics.intervals import share

SHOWN = 110
"""Characters of an example."""


@dataclass(slots=True)
class ScannerTally:
    """What one scanner has found. `said` counts (it found something, a person says so)."""

    num_rollouts: int = 0
    num_findings: int = 0
    examples: list[JsonObject] = field(default_factory=list)
    said: Counter[tuple[bool, bool]] = field(default_factory=Counter)

    def as_json(self, total: int) -> JsonObject:
        found: JsonObject = {"rollouts": self.num_rollouts, "findings": self.num_findings}
        if total:
            found["share"] = share(self.num_rollouts, total)._asdict()
        if self.said:
            found["labelled"] = self.said.total()
        for name, other in (("precision", (True, False)), ("recall", (False, True))):
            hits, drawn = self.said[True, True], self.said[True, True] + self.said[other]
            if drawn:
                found[name] = {**share(hits, drawn)._asdict(), "of": drawn}
        return {**found, "examples": self.examples}


class ScanTally:
    """Counts findings. `meanings`: a label → what it says, as in loop=yes."""

    def __init__(
        self, names: Sequence[str], meanings: Mapping[str, str], num_examples: int
    ) -> None:
        self._meanings, self._num_examples = meanings, num_examples
        self.scanners = {name: ScannerTally() for name in names}
        self.num_rollouts = 0
        for label, meaning in meanings.items():
            match = LABEL.fullmatch(meaning)
            if match is None or read_value(match["value"]) is None or match["name"] not in names:
                raise ConfigError(
                    f"labels: '{label}': expected a scanner's name with yes or no, such as"
                    f" {names[0]}=yes, got {meaning!r}"
                )

    def add(
        self, file: str, key: Key, findings: Iterable[TurnFinding], labels: Iterable[str]
    ) -> None:
        """Count a rollout with what was found in it, and what people say of it."""
        self.num_rollouts += 1
        own: dict[str, list[TurnFinding]] = {name: [] for name in self.scanners}
        for each in findings:
            if each.scanner in own:
                own[each.scanner].append(each)
        people = dict(self._read_labels(labels))
        for name, tally in self.scanners.items():
            if found := own[name]:
                tally.num_rollouts += 1
                tally.num_findings += len(found)
                if len(tally.examples) < self._num_examples:
                    tally.examples.append(_describe(file, key, found[0]))
            if name in people:
                tally.said[bool(found), people[name]] += 1

    def _read_labels(self, labels: Iterable[str]) -> Iterator[tuple[str, bool]]:
        for label in labels:
            match = LABEL.fullmatch(self._meanings.get(label, label))
            if match is not None and (value := read_value(match["value"])) is not None:
                yield match["name"], bool(value)

    def as_json(self) -> JsonObject:
        scanners = {name: tally.as_json(self.num_rollouts) for name, tally in self.scanners.items()}
        return {"rollouts": self.num_rollouts, "scanners": scanners}


def _describe(file: str, key: Key, finding: TurnFinding) -> JsonObject:
    named = {name: value for name, value in key._asdict().items() if value != ""}
    return {"file": file, **named, "turn": finding.turn, "says": finding.says}


def format_scan(found: Mapping[str, Any]) -> str:
    """The findings for people."""
    new = found["scanned_now"]
    lines = [f"{number_of(found['rollouts'], 'rollout')}, {new:,} of them scanned now"]
    lines += [f"{number:,} left out: {reason}" for reason, number in found["left_out"].items()]
    lines += [f"{number:,} could not be scanned: {why}" for why, number in found["failed"].items()]
    scanners = found["scanners"]
    width = max(map(len, scanners))
    hits = {name: each for name, each in scanners.items() if each["rollouts"]}
    for name, each in sorted(hits.items(), key=lambda pair: -pair[1]["rollouts"]):
        it = each["share"]
        rollouts = number_of(each["rollouts"], "rollout")
        share_text = f"{it['value']:.1%} [{it['low']:.1%}, {it['high']:.1%}]"
        lines += ["", f"{name:<{width}}  {rollouts}, {share_text}", *_format_examples(each)]
        lines += _format_labelled(each)
    for name in (name for name, each in scanners.items() if not each["rollouts"]):
        lines += [*_format_labelled(scanners[name], f"{name}: ")]
    if none := [name for name in scanners if name not in hits]:
        lines += ["", f"Nothing was found by {', '.join(none)}."]
    if hits:
        first = max(hits, key=lambda name: hits[name]["rollouts"])
        files = " ".join(found["files"])
        lines += ["", "Look at them:", f"  ng_view {files} \"+where='{first}' in scans\""]
    return "\n".join(lines)


def _format_examples(scanner: Mapping[str, Any]) -> Iterator[str]:
    for each in scanner["examples"]:
        turn = f"turn {each['turn']}" if each["turn"] else "the rollout"
        says = each["says"] if len(each["says"]) <= SHOWN else f"{each['says'][: SHOWN - 1]}…"
        yield f"  task {each['task_id']}, rollout {each['rollout_index']}, {turn}: {says}"


def _format_labelled(scanner: Mapping[str, Any], begin: str = "") -> Iterator[str]:
    for name in ("precision", "recall"):
        if it := scanner.get(name):
            yield (
                f"  {begin}{name} {it['value']:.2f} [{it['low']:.2f}, {it['high']:.2f}]"
                f" over {it['of']:,} labelled"
            )
