"""Invariants of a collection, and a report of the faults found. Reads no files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ...types import Key

MAX_SHOWN = 5
"""Faults printed per invariant; most have a common cause."""


class Invariant(Enum):
    """The value is the text of the report."""

    ACCOUNTED = "every planned rollout is accounted for"
    ONCE = "no rollout is written twice"
    KEPT = "no line is lost or broken"
    HONEST = "no reward without its verdict"
    ENDS = "every run ends in time"
    GONE = "no process is left over"
    SECRET = "no secret is in any file"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: the violated invariant, and where."""

    invariant: Invariant
    what: str
    key: Key | None = None
    path: Path | None = None
    line: int | None = None

    def format(self) -> str:
        place = f"{self.path}{f':{self.line}' if self.line else ''}: " if self.path else ""
        return f"{place}{format_key(self.key)}{': ' if self.key else ''}{self.what}"

    def figures(self) -> dict[str, Any]:
        return {
            "invariant": self.invariant.name.lower(),
            "what": self.what,
            "key": self.key._asdict() if self.key else None,
            "path": str(self.path) if self.path else None,
            "line": self.line,
        }


def format_key(key: Key | None) -> str:
    """Format a key as for `+only=`, followed by the agent."""
    if key is None:
        return ""
    scope = f", scope {key.scope}" if key.scope else ""
    return f"{key.task_id}:{key.rollout_index} of {key.agent}{scope}"


@dataclass(slots=True)
class ChaosReport:
    """Result of a check: a note for each checked invariant, and the faults."""

    notes: dict[Invariant, str] = field(default_factory=dict)
    unchecked: dict[Invariant, str] = field(default_factory=dict)
    """Reason why an invariant could not be checked."""
    findings: list[Finding] = field(default_factory=list)

    def record(self, invariant: Invariant, note: str, findings: Iterable[Finding] = ()) -> None:
        self.unchecked.pop(invariant, None)
        before = self.notes.get(invariant)
        self.notes[invariant] = f"{before} · {note}" if before else note
        self.findings += findings

    @property
    def holds(self) -> bool:
        return not self.findings

    def of(self, invariant: Invariant) -> list[Finding]:
        return [each for each in self.findings if each.invariant is invariant]

    def state(self, invariant: Invariant) -> str:
        if self.of(invariant):
            return "BROKEN"
        return "held" if invariant in self.notes else "not checked"

    def lines(self) -> Iterator[str]:
        """Format as a table, with faults below their invariant."""
        width = max(len(each.value) for each in Invariant)
        for invariant in Invariant:
            note = self.notes.get(invariant) or self.unchecked.get(invariant, "")
            yield f"{invariant.value:<{width}}  {self.state(invariant):<11}  {note}".rstrip()
            found = self.of(invariant)
            yield from (f"    {each.format()}" for each in found[:MAX_SHOWN])
            if len(found) > MAX_SHOWN:
                yield f"    … and {len(found) - MAX_SHOWN:,} more"

    def figures(self) -> Mapping[str, Any]:
        """Convert to JSON."""
        return {
            "holds": self.holds,
            "invariants": {
                each.name.lower(): {
                    "state": self.state(each),
                    "note": self.notes.get(each) or self.unchecked.get(each, ""),
                }
                for each in Invariant
            },
            "findings": [each.figures() for each in self.findings],
        }
