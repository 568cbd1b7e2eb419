"""Compact tables of a million tasks, keyed by the 64-bit number of a task's id."""

from array import array
from binascii import unhexlify
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, TypeGuard

from ..types import Key

HEX_DIGITS = 16

_SHARDS = 256
"""Each shard grows on its own, so that no resize blocks the event loop for long."""

_FIRST = 16

INDEXES = range(-(1 << 63), 1 << 63)
"""Positions and repeats that a line may have; JSON writers such as orjson know no others."""


def is_index(value: Any) -> TypeGuard[int]:
    """Whether it can be the position or the repeat of a line."""
    return isinstance(value, int) and value in INDEXES


def hex_number(task_id: str) -> int | None:
    """A task id as a number; None if it has another form."""
    try:
        raw = unhexlify(task_id)
    except ValueError:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 8 and task_id == task_id.lower() else None


def small(task_id: str) -> int | str:
    """An id as a number, a third of the string's size; an id of another form stays a string."""
    number = hex_number(task_id)
    return task_id if number is None else number


class NumberTable:
    """Maps numbers below 2**64, evenly spread like hashes, to numbers below 2**32 - 1.

    Open addressing in arrays: 21 bytes an entry, where a dict takes 115.
    """

    def __init__(self) -> None:
        self._keys = [array("Q", bytes(8 * _FIRST)) for _ in range(_SHARDS)]
        self._values = [array("I", bytes(4 * _FIRST)) for _ in range(_SHARDS)]
        """The value plus 1; 0 marks an empty slot."""
        self._counts = [0] * _SHARDS

    def setdefault(self, key: int, value: int) -> int:
        """The key's value; `value` is stored first if it has none."""
        shard = key & (_SHARDS - 1)
        keys, values = self._keys[shard], self._values[shard]
        mask = len(keys) - 1
        at = (key >> 8) & mask
        while found := values[at]:
            if keys[at] == key:
                return found - 1
            at = (at + 1) & mask
        keys[at], values[at] = key, value + 1
        self._counts[shard] += 1
        if 3 * self._counts[shard] > 2 * mask:
            self._grow(shard)
        return value

    def __contains__(self, key: int) -> bool:
        shard = key & (_SHARDS - 1)
        keys, values = self._keys[shard], self._values[shard]
        mask = len(keys) - 1
        at = (key >> 8) & mask
        while values[at]:
            if keys[at] == key:
                return True
            at = (at + 1) & mask
        return False

    def items(self) -> Iterator[tuple[int, int]]:
        for keys, values in zip(self._keys, self._values, strict=True):
            for key, value in zip(compress(keys, values), filter(None, values), strict=True):
                yield key, value - 1

    def _grow(self, shard: int) -> None:
        old_keys, old_values = self._keys[shard], self._values[shard]
        size = 2 * len(old_keys)
        mask = size - 1
        keys, values = array("Q", bytes(8 * size)), array("I", bytes(4 * size))
        for key, value in zip(old_keys, old_values, strict=True):
            if value:
                at = (key >> 8) & mask
                while values[at]:
                    at = (at + 1) & mask
                keys[at], values[at] = key, value
        self._keys[shard], self._values[shard] = keys, values


class TaskTable:
    """Maps task ids to numbers."""

    def __init__(self) -> None:
        self._numbers = NumberTable()
        self._others: dict[str, int] = {}

    def setdefault(self, task_id: str, value: int) -> int:
        if (number := hex_number(task_id)) is None:
            return self._others.setdefault(task_id, value)
        return self._numbers.setdefault(number, value)

    def setdefault_small(self, key: int | str, value: int) -> int:
        """The same for an id as `small` makes it."""
        if isinstance(key, str):
            return self._others.setdefault(key, value)
        return self._numbers.setdefault(key, value)

    def items(self) -> Iterator[tuple[str, int]]:
        for key, value in self._numbers.items():
            yield f"{key:0{HEX_DIGITS}x}", value
        yield from self._others.items()


@dataclass(slots=True)
class Keys:
    """A set of keys that only grows: about 80 bytes each, where tuples in a set take 250."""

    _tasks: dict[tuple[str, str, int], set[int | str]] = field(default_factory=dict)
    """(agent, scope, rollout index) → tasks."""

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def __contains__(self, key: Key) -> bool:
        tasks = self._tasks.get(key[1:])
        return tasks is not None and small(key[0]) in tasks

    def of_task(self, task_id: str, agent: str) -> Iterator[Key]:
        """The keys of one task by one agent."""
        number = small(task_id)
        for (name, scope, index), tasks in self._tasks.items():
            if name == agent and number in tasks:
                yield Key(task_id, name, scope, index)

    def add(self, key: Key) -> bool:
        """Add a key; True if it is new."""
        kind, task = key[1:], small(key[0])
        tasks = self._tasks.get(kind)
        if tasks is None:
            tasks = self._tasks[kind] = set()
        if task in tasks:
            return False
        tasks.add(task)
        return True

    def add_numbers(self, kind: tuple[str, str, int], tasks: Collection[int]) -> bool:
        """Add tasks by the numbers of their ids, with (agent, scope, rollout index); True if all
        keys are new."""
        held = self._tasks.setdefault(kind, set())
        before = len(held)
        held.update(tasks)
        return len(held) == before + len(tasks)

    def has_any(self, kind: tuple[str, str, int], tasks: Iterable[int]) -> bool:
        """Whether one of the tasks, by the numbers of their ids, has a key with (agent, scope,
        rollout index)."""
        held = self._tasks.get(kind)
        return held is not None and not held.isdisjoint(tasks)

    def tasks(self, kind: tuple[str, str, int]) -> Container[int | str]:
        """The tasks, as `small` makes them, that have a key with (agent, scope, rollout index)."""
        return self._tasks.get(kind, ())

    def by_scope(self) -> Iterator[tuple[tuple[str, str], Collection[int | str]]]:
        """(agent, scope) and the tasks, as `small` makes them, of each rollout index."""
        for (agent, scope, _), tasks in self._tasks.items():
            yield (agent, scope), tasks

    def kinds(self) -> set[tuple[str, str]]:
        """The distinct (agent, scope) of the keys."""
        return {(agent, scope) for agent, scope, _ in self._tasks}

    def numbers(self) -> Counter[tuple[str, str]]:
        """(agent, scope) → number of keys."""
        found: Counter[tuple[str, str]] = Counter()
        for (agent, scope, _), tasks in self._tasks.items():
            found[agent, scope] += len(tasks)
        return found
