"""What an output's files held when they were opened: which keys are done, pending or refused, and
what they were made with."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..types import JsonObject, Key
from .compact import Keys
from .lines import Head


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a key that failed for good was made with: fingerprints, empty where the line does not
    say."""

    settings: str
    verifier: str
    is_answered: bool

    @classmethod
    def of(cls, row: JsonObject) -> "Refusal":
        block = row["rollout"]
        named = (str(block.get(name, "")) for name in ("settings", "verifier"))
        return cls(*named, is_answered="response" in row)


@dataclass(slots=True)
class Contents:
    """What the files held when they were opened."""

    done: Keys = field(default_factory=Keys)
    pending: dict[Key, int] = field(default_factory=dict)
    """Offset in the unverified file of the last line of each key that the main file has not."""
    refused: set[Key] = field(default_factory=set)
    """Keys that failed for good, as far as `keep_refused` has left them."""
    refusals: dict[Key, list[Refusal]] = field(default_factory=dict)
    malformed: set[tuple[str, int]] = field(default_factory=set)
    """(input, line) of malformed lines that the failures file names already."""
    settings: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(agent, scope) → fingerprints of the settings that its rollouts were generated with."""
    verifiers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(agent, its verifier's fingerprint) → rows."""
    foreign: int = 0
    """Lines that are none of ours, or unreadable: left alone."""
    size: int = 0
    """Of the main file, in bytes."""
    idle: set[int] = field(default_factory=set)
    """Offsets in it of lines that count for nothing: foreign ones, and keys that came before."""

    def keep_refused(self, settings: Mapping[str, str], verifiers: Mapping[str, str]) -> None:
        """Let only those refusals stand that were made with the present settings, and by the
        present verifier, each by agent."""
        self.refused = {
            key
            for key, refusals in self.refusals.items()
            if any(
                each.settings in ("", settings.get(key.agent))
                and (
                    each.verifier in ("", verifiers.get(key.agent))
                    or (each.is_answered and key not in self.pending)  # it is paid for
                )
                for each in refusals
            )
        }

    def keep_settings(self, head: Head) -> None:
        which = head.key[1:3]
        if which not in self.settings:
            self.settings[which] = set()
        self.settings[which].add(head.settings)
