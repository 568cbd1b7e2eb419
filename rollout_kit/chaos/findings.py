"""What must hold of every collection, and what was found of it. Pure: no file is read here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ..types import Key

MAX_SHOWN = 5
"""Findings that are printed of each kind: they mostly have one cause."""


class Invariant(Enum):
    """Each in the words that people read."""

    ACCOUNTED = "every planned rollout is accounted for"
    ONCE = "no rollout is there twice"
    KEPT = "no line is lost or broken"
    HONEST = "no reward without its verdict"
    ENDS = "every run ends, in time"
    GONE = "no process is left over"
    SECRET = "no secret is in any file"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold, and where."""

    invariant: Invariant
    what: str
    key: Key | None = None
    path: Path | None = None
    line: int | None = None

    def text(self) -> str:
        place = f"{self.path}{f':{self.line}' if self.line else ''}: " if self.path else ""
        return f"{place}{named(self.key)}{': ' if self.key else ''}{self.what}"

    def figures(self) -> dict[str, Any]:
        return {
            "invariant": self.invariant.name.lower(),
            "what": self.what,
            "key": self.key._asdict() if self.key else None,
            "path": str(self.path) if self.path else None,
            "line": self.line,
        }


def named(key: Key | None) -> str:
    """A key as `+only=` takes it, with the agent."""
    if key is None:
        return ""
    scope = f", scope {key.scope}" if key.scope else ""
    return f"{key.task_id}:{key.rollout_index} of {key.agent}{scope}"


@dataclass(slots=True)
class Report:
    """What was looked at: a note for each invariant that was checked, and the findings."""

    notes: dict[Invariant, str] = field(default_factory=dict)
    unchecked: dict[Invariant, str] = field(default_factory=dict)
    """Why one could not be checked."""
    findings: list[Finding] = field(default_factory=list)

    def checked(self, invariant: Invariant, note: str, findings: Iterable[Finding] = ()) -> None:
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
        """The table, what broke below its invariant."""
        width = max(len(each.value) for each in Invariant)
        for invariant in Invariant:
            note = self.notes.get(invariant) or self.unchecked.get(invariant, "")
            yield f"{invariant.value:<{width}}  {self.state(invariant):<11}  {note}".rstrip()
            found = self.of(invariant)
            yield from (f"    {each.text()}" for each in found[:MAX_SHOWN])
            if len(found) > MAX_SHOWN:
                yield f"    … and {len(found) - MAX_SHOWN:,} more"

    def figures(self) -> Mapping[str, Any]:
        """The same for a program to read."""
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
