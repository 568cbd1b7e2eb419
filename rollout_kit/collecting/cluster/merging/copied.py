"""The rollouts that are merged, in arrays: a few numbers of each."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from ....store.compact import Keys, TaskTable, small
from ....store.index import OF_KEYS, Rows, WrongIndex
from ....types import Key
from .findings import MadeBy
from .reading import NONE, FoundLine


@dataclass(slots=True)
class CopiedLines:
    """The rollouts that are copied: where each line is, and its place in the order."""

    done: Keys = field(default_factory=Keys)
    made: Counter[MadeBy] = field(default_factory=Counter)
    num_tasks: int = 0
    """Distinct tasks; their numbers are lower, in the order in which they were seen."""
    files: array = field(default_factory=lambda: array("I"))
    offsets: array = field(default_factory=lambda: array("Q"))
    sizes: array = field(default_factory=lambda: array("Q"))
    checks: array = field(default_factory=lambda: array("I"))
    """CRC-32 of each line."""
    tasks: array = field(default_factory=lambda: array("I"))
    """The number of the task."""
    kinds: array = field(default_factory=lambda: array("I"))
    """The number of (agent, scope)."""
    indexes: array = field(default_factory=lambda: array("I"))
    plain: bytearray = field(default_factory=bytearray)
    """Of each rollout, 1 if an index told it."""
    _numbers: TaskTable = field(default_factory=TaskTable)
    _kinds: dict[tuple[str, str], int] = field(default_factory=dict)
    _latest: array = field(default_factory=lambda: array("I"))
    """Of each task, its latest rollout, as far as `find` needed it."""
    _earlier: array = field(default_factory=lambda: array("I"))
    """The rollout of the same task before this one; NONE if it is the first."""

    def __len__(self) -> int:
        return len(self.files)

    def rank(self, at: int) -> int:
        """Where a rollout stands in the order of the tasks: one number, to save memory."""
        return (self.tasks[at] << 64) | (self.kinds[at] << 32) | self.indexes[at]

    def number(self, task: int | str) -> int:
        """The number of a task, given by its id as `small` makes it."""
        number = self._numbers.setdefault_small(task, self.num_tasks)
        self.num_tasks += number == self.num_tasks
        return number

    def add(self, file: int, line: FoundLine) -> bool:
        """Add a rollout; False if its key is there already."""
        key, settings, verifier = line.head
        if not self.done.add(key):
            return False
        self.made[MadeBy(file, key.agent, key.scope, settings, verifier)] += 1
        self.files.append(file)
        self.offsets.append(line.offset)
        self.sizes.append(line.size)
        self.checks.append(line.check)
        self.tasks.append(self.number(small(key.task_id)))
        self.kinds.append(self._kind(key.agent, key.scope))
        self.indexes.append(key.rollout_index)
        self.plain.append(0)
        return True

    def add_rows(self, file: int, rows: Rows) -> bool:
        """The same for rollouts that an index tells; False, and none is added, if one of their
        keys is there already."""
        columns, part = rows.columns, slice(rows.start, rows.end)
        texts = [columns.texts[name] for name in OF_KEYS]
        indexes, tasks = list(map(int, columns.numbers["rollout_index"][part])), columns.tasks[part]
        codes = list(zip(*(text.codes[part] for text in texts), strict=True))
        alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for which, task in zip(zip(codes, indexes, strict=True), tasks, strict=True):
            if which in alike:
                alike[which].append(task)
            else:
                alike[which] = [task]
        named = {
            which: tuple(text.names[code] or "" for text, code in zip(texts, which, strict=True))
            for which in set(codes)
        }
        groups = [(*named[which], index, found) for (which, index), found in alike.items()]
        if any(
            self.done.has_any((agent, scope, index), found)
            for agent, scope, _, _, index, found in groups
        ):
            return False
        for agent, scope, settings, verifier, index, found in groups:
            if not self.done.add_numbers((agent, scope, index), found):
                raise WrongIndex
            self.made[MadeBy(file, agent, scope, settings, verifier)] += len(found)
        kinds = {which: self._kind(*names[:2]) for which, names in named.items()}
        self.files.extend([file] * len(tasks))
        self.offsets.extend(columns.offsets[part])
        self.sizes.extend(columns.lengths[part].tolist())
        self.checks.extend(columns.checks[part])
        self.tasks.extend(map(self.number, tasks))
        self.kinds.extend(kinds[which] for which in codes)
        self.indexes.extend(indexes)
        self.plain.extend(bytes([1]) * len(tasks))
        return True

    def find(self, key: Key) -> int:
        """The place of a rollout that is there."""
        task, kind = self.number(small(key.task_id)), self._kind(key.agent, key.scope)
        for at in range(len(self._earlier), len(self)):
            self._link(at, self.tasks[at])
        at = self._latest[task]
        while (self.kinds[at], self.indexes[at]) != (kind, key.rollout_index):
            at = self._earlier[at]
        return at

    def _link(self, at: int, task: int) -> None:
        if task >= len(self._latest):
            self._latest.extend([NONE] * (task + 1 - len(self._latest)))
        self._earlier.append(self._latest[task])
        self._latest[task] = at

    def _kind(self, agent: str, scope: str) -> int:
        return self._kinds.setdefault((agent, scope), len(self._kinds))
