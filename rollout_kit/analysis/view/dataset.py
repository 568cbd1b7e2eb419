"""The rollouts of several outputs, as rows that can be filtered while the files grow."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from ...errors import ConfigError, OutputError, number_of, suggest
from ...reading import MAX_LINE, open_file, parse_line, read_object
from ...store.arms.order import ArmOrder
from ...store.columns import Columns
from ...store.compact import hex_number
from ...store.files import OutputPaths
from ...store.filters.masks import COMPUTED, rows_of_task
from ...store.groups.rewards import GroupRewards
from ...store.index import Index, cache_path
from ...store.kinds import OPEN
from ...store.lines import rollout_of
from ...store.notes.labels import Labels
from ...store.notes.scans import Scans
from ...store.outputs import files_in, is_output, size_of
from ...store.rollouts import find_group_rewards
from ...store.scope import parse_scope
from ...types import JsonObject, Key, Rollout
from ..export.grouped import is_group

ROW_BITS = 40
"""A row's id is the number of its file and, in this many bits, its number in the file."""

NUM_PARTS = 3
"""Files of an output that hold rows: rollouts, responses without a verdict, failures."""

ROW_MASK = (1 << ROW_BITS) - 1

MAX_FILES = 4096
"""Ids stay below 2**53, the largest whole number that JavaScript knows exactly."""


@dataclass
class Part:
    """One file of an output. `is_shown` tells the lines that count; None if all do."""

    index: Index
    is_shown: bytearray | None = None

    def counts(self, row: int) -> bool:
        shown = self.is_shown
        return shown is None or (row < len(shown) and bool(shown[row]))


@dataclass
class StoredOutput:
    """The main file and the files beside it that hold what has no verdict."""

    name: str
    paths: OutputPaths
    parts: list[Part]
    labels: Labels
    scans: Scans
    problem: str = ""
    """Why what was added could not be read; the rows are those of before."""
    num_lost: int = 0
    """Rows that the main file had when it was removed."""
    labels_version: int = 0
    """Grows when labels or scans change."""

    @classmethod
    def open(cls, name: str, path: Path, *, is_kept: bool) -> "StoredOutput":
        paths = OutputPaths(path)
        files = [(path, "rollout"), (paths.unverified, "unverified"), (paths.failures, "failure")]
        parts = [
            Part(
                Index(
                    each,
                    default,
                    cache_path(each) if is_kept else None,
                    paths.index if each == path else None,
                )
            )
            for each, default in files
        ]
        main = parts[0].index
        if len(main):  # of the lines that an earlier process has read
            main.left_out = main.count_others()
        return cls(name, paths, parts, Labels.beside(path), Scans.beside(path))

    def update(self, pause: Callable[[], None]) -> bool:
        """Index what was added; True if rows, labels or `problem` changed."""
        problems = list[str]()

        def attempt(update: Callable[[], bool]) -> bool:
            try:
                return update()
            except (ConfigError, OutputError) as error:
                problems.append(str(error))
                return False

        held = len(self.parts[0].index)
        changed = [attempt(partial(part.index.update, pause)) for part in self.parts]
        if has_new_rows := any(changed):
            self._hide_superseded()
        has_new_labels = attempt(self.labels.refresh) | attempt(self.scans.refresh)
        self.labels_version += has_new_labels
        if main_is_gone := not self.paths.main.exists():
            self.num_lost = self.num_lost or held
        if main_is_gone and self.num_lost:
            rows = number_of(self.num_lost, "row")
            problems.append(f"{self.paths.main}: the file was removed, and {rows} with it")
        elif not main_is_gone:
            self.num_lost = 0
        before, self.problem = self.problem, "; ".join(problems)
        return has_new_rows or has_new_labels or before != self.problem

    def left_out(self) -> Counter[str]:
        """Reason → lines of the main file without a row."""
        main = self.parts[0].index
        why = main.why_no_last() or (OPEN if main.rest.strip() else "")
        return main.left_out + Counter([why] if why else [])

    def group_rewards(self) -> GroupRewards | None:
        """The current scores of the groups; None if none was scored."""
        return find_group_rewards(self.paths.main)

    def read(self, raw: bytes, key: Key, rewards: GroupRewards | None) -> Rollout | None:
        """A line with its labels and its score among `rewards`; None if it has no response."""
        line = parse_line(raw)
        return None if line is None else self.join(line, key, rewards)

    def join(self, line: JsonObject, key: Key, rewards: GroupRewards | None) -> Rollout | None:
        """The same for a line that is parsed."""
        if not isinstance(line.get("response"), dict):
            return None
        score = rewards.of(key) if rewards else None
        return rollout_of(line, score, self.labels.of(key), self.scans.names)

    def _hide_superseded(self) -> None:
        """Of responses without a verdict and of failures, only the last line of a key counts, and
        none if the key has a result."""
        main, *others = self.parts
        for part in others:
            last = {part.index.key(row): row for row in range(len(part.index))}
            if last:
                for key in self._done_among(main.index, last):
                    del last[key]
            shown = bytearray(len(part.index))
            for row in last.values():
                shown[row] = True
            part.is_shown = shown

    @staticmethod
    def _done_among(index: Index, keys: dict[Key, int]) -> list[Key]:
        numbers = {hex_number(key.task_id) or 0 for key in keys}
        candidates = (row for row, task in enumerate(index.columns.tasks) if task in numbers)
        kinds = index.columns.texts["kind"]
        found = (index.key(row) for row in candidates if kinds[row] == "rollout")
        return [key for key in found if key in keys]


class Dataset:
    """All outputs. Rows are only appended, until a file is edited: then `generation` changes, and
    ids of before are void."""

    def __init__(self, names: list[str], *, is_kept: bool = True) -> None:
        """ConfigError for a path that holds no rollouts. Outputs that appear later in a folder are
        added behind the others."""
        self._names, self._is_kept = names, is_kept
        self._others: dict[Path, tuple[int, int]] = {}
        """File of a folder that is no output → its size and time when that was found out."""
        self.outputs = [
            StoredOutput.open(name, path, is_kept=is_kept) for name, path in find_outputs(names)
        ]
        self.parts = [part for output in self.outputs for part in output.parts]
        self.is_complete = False
        """Whether everything that was there at the start is indexed."""
        self.generation = 0
        self.version = 0
        """Grows with every change."""
        self._lock = threading.Lock()

    def update(self) -> None:
        """Index what was added to the files. Only one thread does it at a time."""
        with self._lock:
            self._add_outputs()
            rebuilt = sum(part.index.num_rebuilt for part in self.parts)
            for output in self.outputs:
                if output.update(self._note_progress):
                    self.version += 1
            if rebuilt != sum(part.index.num_rebuilt for part in self.parts):
                self.generation += 1
            self.is_complete = True

    def _add_outputs(self) -> None:
        """Open the outputs that have appeared in the folders."""
        known = {output.paths.main for output in self.outputs}
        inside = chain.from_iterable(_files_in(name, self._names) for name in self._names)
        for shown, path in inside:
            if path in known or len(self.outputs) >= MAX_FILES:
                continue
            with suppress(OSError, ConfigError):  # it was removed meanwhile
                found = path.stat()
                seen = found.st_size, found.st_mtime_ns
                if self._others.get(path) == seen:
                    continue
                if not is_output(path):
                    self._others[path] = seen
                    continue
                output = StoredOutput.open(shown, path, is_kept=self._is_kept)
                self.parts += output.parts
                self.outputs.append(output)
                known.add(path)
                self.version += 1

    def _note_progress(self) -> None:
        self.version += 1

    def note_label(self, part_number: int) -> None:
        """A label of one of the rows of a file was set or removed."""
        self.output_of(part_number).labels_version += 1
        self.version += 1

    def rows(self) -> int:
        return sum(len(part.index) for part in self.parts)

    def check_readable(self) -> None:
        """ConfigError if a file could not be read."""
        if problems := [output.problem for output in self.outputs if output.problem]:
            raise ConfigError("; ".join(problems))

    def say_left_out(self) -> list[str]:
        """What lines have no row, and why."""
        return [
            f"{output.name}: left out: {number:,} ({reason})"
            for output in self.outputs
            for reason, number in output.left_out().items()
        ]

    def progress(self) -> float:
        """Share of the bytes that is indexed."""
        total = sum(size_of(part.index.path) for part in self.parts)
        return min(1.0, sum(part.index.size for part in self.parts) / total) if total else 1.0

    def locate(self, row_id: int) -> tuple[int, Part, int]:
        """The number of the file, the file, and the row in it; ConfigError for no row."""
        number, row = row_id >> ROW_BITS, row_id & ROW_MASK
        if not 0 <= number < len(self.parts) or row >= len(self.parts[number].index):
            raise ConfigError(f"there is no row {row_id}")
        return number, self.parts[number], row

    def output_of(self, part_number: int) -> StoredOutput:
        return self.outputs[part_number // NUM_PARTS]

    def failures_of(self, part_number: int) -> Part:
        """The failures file of the same output."""
        return self.output_of(part_number).parts[-1]

    def check_column(self, name: str) -> None:
        """ConfigError if no file has the column."""
        names = {each for part in self.parts for each in part.index.columns.names()}
        if name not in (known := names | COMPUTED.keys()):
            raise ConfigError(f"there is no column '{name}'{suggest(name, known)}")

    def arm_order(self) -> ArmOrder:
        """The order of the arms of all outputs."""
        order = ArmOrder()
        for output in self.outputs:
            columns = output.parts[0].index.columns
            if not has_arms(columns):
                continue
            scopes, settings = columns.texts["scope"], columns.texts["settings"]
            made = set(zip(list(scopes.codes), settings.codes, strict=False))  # they may grow
            pairs = ((scopes.names[one] or "", settings.names[two] or "") for one, two in made)
            arms = [(parse_scope(scope).arm, each) for scope, each in pairs]
            order.add(read_object(output.paths.manifest), arms)
        return order

    def find(self, output: str, key: Key) -> int | None:
        """The id of a rollout's row, its result before its failures."""
        for number, part in enumerate(self.parts):
            if self.output_of(number).name == output:
                for row in rows_of_task(part.index.columns, key.task_id):
                    if part.index.key(row) == key and part.counts(row):
                        return number << ROW_BITS | row
        return None


def has_arms(columns: Columns) -> bool:
    """Whether a rollout of a file has an arm."""
    return any(parse_scope(scope or "").arm for scope in list(columns.texts["scope"].names))


def _files_in(name: str, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """(name to show, path) of the files in a folder. Files of several folders may have one name, so
    that of the folder is shown too."""
    for shown, path in files_in(Path(name).expanduser()):
        yield str(Path(name, shown)) if len(names) > 1 else shown, path


def find_outputs(names: list[str]) -> list[tuple[str, Path]]:
    """(name to show, path) of each output; ConfigError if there is none."""
    if not names:
        raise ConfigError("name a folder or files of rollouts, such as results/")
    found: dict[Path, str] = {}
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            for shown, each in _files_in(name, names):
                if is_output(each):
                    found.setdefault(each, shown)
        elif path.is_file() or is_output(path):
            _check_file(path)
            found.setdefault(path.resolve(), name)
        else:
            near = [each.name for each in path.parent.glob("*")] if path.parent.is_dir() else []
            raise ConfigError(f"no file or folder {name}{suggest(path.name, near)}")
    if not found:
        raise ConfigError(f"{', '.join(names)}: no file of rollouts (*.jsonl) is in it")
    if len(found) > MAX_FILES:
        raise ConfigError(f"{len(found):,} files are too many: name fewer than {MAX_FILES:,}")
    return [(name, path) for path, name in found.items()]


def _check_file(path: Path) -> None:
    if path.suffix in (".gz", ".zst"):
        raise ConfigError(f"{path}: rows are read at random: decompress it first")
    if path.suffix != ".jsonl":
        raise ConfigError(f"{path}: rollouts are JSON lines in a file that ends in .jsonl")
    if size_of(path) and not is_output(path):
        with open_file(path) as stream:
            if is_group(parse_line(stream.readline(MAX_LINE))):
                raise ConfigError(
                    f"{path}: it holds groups of answers; make rollouts of them first:"
                    f"  ng_export {path} +format=rollouts +output_fpath=<name>.jsonl"
                )
        raise ConfigError(
            f"{path}: its first lines are no rollouts; name a file that ng_collect_rollouts wrote"
        )
