"""What a buffer holds and hands out. The unit is a whole group; it is never split."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ...errors import ConfigError
from ...store.compact import is_index
from ...store.groups.members import HeldLine
from ...types import JsonObject


@dataclass(slots=True)
class BufferedGroup:
    """All rollouts of a task: their stored lines, and the reward of each that a trainer gets.

    The versions are the least and the greatest of the weights that sampled it; None if unknown.
    """

    key: str
    rollouts: list[JsonObject]
    rewards: list[float | None] = field(default_factory=list)
    version_first: int | None = None
    version_last: int | None = None
    places: list[HeldLine] = field(default_factory=list)
    """Where the lines of the rollouts are on disk, if that is known."""

    def __post_init__(self) -> None:
        if not self.rewards:
            self.rewards = [each.get("reward") for each in self.rollouts]

    def encode(self, reference_bytes: int | None = None) -> bytes:
        """As one line of JSON, without its end; from `reference_bytes` on with the places of its
        rollouts instead of them."""
        head = {
            "key": self.key,
            "version_first": self.version_first,
            "version_last": self.version_last,
            "rewards": self.rewards,
        }
        size = sum(place.size for place in self.places)
        if self.places and reference_bytes is not None and size >= reference_bytes:
            return orjson.dumps({**head, "places": [list(each) for each in self.places]})
        return orjson.dumps({**head, "rollouts": self.rollouts})

    @classmethod
    def fetch(cls, raw: bytes) -> "BufferedGroup":
        """Decode a line that this package has encoded itself, and read the files it refers to."""
        given = orjson.loads(raw)
        if places := given.get("places"):
            given["rollouts"] = list(_read_places(str(given.get("key")), places))
        return cls.decode(given)

    @classmethod
    def decode(cls, raw: bytes | JsonObject) -> "BufferedGroup":
        """Decode a group from anywhere; it cannot name a file to read."""
        given = raw if isinstance(raw, dict) else orjson.loads(raw)
        if not (isinstance(given.get("key"), str) and isinstance(given.get("rollouts"), list)):
            raise ValueError("a group has a text `key` and a list `rollouts`")
        if not all(isinstance(each, dict) for each in given["rollouts"]):
            raise ValueError("each of `rollouts` is an object")
        if (rewards := given.get("rewards")) and len(rewards) != len(given["rollouts"]):
            raise ValueError("`rewards` has a number, or null, for each of `rollouts`")
        versions = (given.get(name) for name in ("version_first", "version_last"))
        if not all(each is None or is_index(each) for each in versions):
            raise ValueError("`version_first` and `version_last` are whole numbers of 64 bits")
        names = ("key", "rollouts", "rewards", "version_first", "version_last")
        return cls(**{name: given[name] for name in names if given.get(name) is not None})


def _read_places(key: str, places: Iterable[Iterable[Any]]) -> Iterator[JsonObject]:
    """The rollouts of a group that is kept as a reference; ConfigError if one cannot be read."""
    for each in places:
        place = HeldLine(*each)
        try:
            yield orjson.loads(place.read())
        except OSError as error:
            raise ConfigError(
                f"the buffer refers to {place.path} for the group {key}, and it cannot be read"
                f" here: {error.strerror}; share this folder under the same path, or collect into"
                " a buffer of another name without reference_bytes"
            ) from None


@dataclass(slots=True)
class GroupBatch:
    """Groups that were handed out under a lease; acknowledge it within the visibility time."""

    lease: str
    groups: list[BufferedGroup]
    version: int | None = None
    """The trainer's version when they were handed out."""

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(frozen=True, slots=True)
class Settled:
    """A group that has left the buffer: `acked`, or dropped for the named reason. `number` orders
    them, and is where the next look begins. `lag`: how many versions it was behind the trainer."""

    number: str
    key: str
    reason: str
    version: int | None = None
    lag: int | None = None


def find_flaw(group: BufferedGroup, filters: Iterable[str]) -> str | None:
    """The first of the filters that the group does not pass."""
    for name in filters:
        if FILTERS[name](group):
            return name
    return None


def _has_zero_variance(group: BufferedGroup) -> bool:
    rewards = {reward for reward in group.rewards if reward is not None}
    return len(rewards) < 2


def _is_truncated(group: BufferedGroup) -> bool:
    return any(
        (each.get("response") or {}).get("status") == "incomplete" for each in group.rollouts
    )


def _is_non_finite(group: BufferedGroup) -> bool:
    if not all(math.isfinite(reward) for reward in group.rewards if reward is not None):
        return True
    return any(map(_has_broken_log_probs, group.rollouts))


def _has_broken_log_probs(line: Mapping[str, Any]) -> bool:
    for item in (line.get("response") or {}).get("output") or ():
        log_probs = item.get("generation_log_probs") if isinstance(item, dict) else None
        if log_probs:
            try:
                if not math.isfinite(math.fsum(log_probs)):
                    return True
            except (TypeError, ValueError, OverflowError):  # a null, a NaN among infinities
                return True
    return False


FILTERS = {
    "zero_variance": _has_zero_variance,
    "truncated": _is_truncated,
    "non_finite": _is_non_finite,
}
