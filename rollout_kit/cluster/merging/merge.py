"""Merges the main files. The lines are copied byte for byte.

Each file is read once to know what it holds, and once more to copy it; memory holds a few numbers
of each rollout. Of two lines with the same key the first one counts.
"""

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from ...collector.groups.tally import GroupTally
from ...collector.results import Status
from ...errors import ConfigError, OutputError
from ...metrics.summary import Metrics
from ...store.compact import Keys, TaskTable
from ...store.files import OutputPaths, write_atomically, write_json
from ...store.groups.members import group_digest, hold
from ...store.groups.scope import Group, group_of
from ...store.groups.scores import Scored, read_scored
from ...store.input import number_lines
from ...store.lines import info_of, key_of, kind_of
from ...store.scan import check_form, line_at, parse_line, read_lines
from ...store.tasks import task_id_of
from ...types import JsonObject, Key, Rollout, RolloutInfo
from .findings import Findings, MadeBy, last_input, read_sound
from .sidecars import merge_manifests, merge_sidecars

HOW_TO_UNPACK = {".gz": "gunzip --keep", ".zst": "zstd --decompress --keep"}

NONE = 2**32 - 1
"""The largest number in the arrays, and no place in them."""


@dataclass(slots=True)
class CopiedLines:
    """The rollouts that are copied: where each line is, and its place in the order."""

    files: array = field(default_factory=lambda: array("I"))
    offsets: array = field(default_factory=lambda: array("Q"))
    sizes: array = field(default_factory=lambda: array("Q"))
    tasks: array = field(default_factory=lambda: array("I"))
    """The number of the task."""
    kinds: array = field(default_factory=lambda: array("I"))
    """The number of (agent, scope)."""
    indexes: array = field(default_factory=lambda: array("I"))
    latest: array = field(default_factory=lambda: array("I"))
    """Of each task, its latest rollout."""
    earlier: array = field(default_factory=lambda: array("I"))
    """The rollout of the same task before this one; NONE if it is the first."""

    def __len__(self) -> int:
        return len(self.files)

    def rank(self, at: int) -> int:
        """Where a rollout stands in the order of the tasks: one number, to save memory."""
        return (self.tasks[at] << 64) | (self.kinds[at] << 32) | self.indexes[at]

    def link(self, task: int) -> None:
        """Let `find` know that another rollout is of this task; its number is that of the task."""
        at = len(self.earlier)
        if task >= len(self.latest):
            self.latest.extend([NONE] * (task + 1 - len(self.latest)))
        self.earlier.append(self.latest[task])
        self.latest[task] = at

    def find(self, task: int, kind: int, index: int) -> int:
        """The place of a rollout that is there."""
        at = self.latest[task]
        while (self.kinds[at], self.indexes[at]) != (kind, index):
            at = self.earlier[at]
        return at


class Merge:
    """`sources` in their order; with `tasks`, a file of tasks, the output is in its order."""

    def __init__(
        self, sources: Sequence[Path], tasks: Path | None = None, pass_threshold: float = 1.0
    ) -> None:
        self.sources = [OutputPaths(path) for path in sources]
        self.found = Findings()
        self.metrics = Metrics(pass_threshold)
        self._tasks = tasks
        self._manifests = [read_sound(paths.manifest) for paths in self.sources]
        self._places, self._done = CopiedLines(), Keys()
        self._numbers, self._num_tasks, self._num_known = TaskTable(), 0, 0
        """Task ids → numbers; those of `tasks` come first, `_num_known` of them."""
        self._kinds: dict[tuple[str, str], int] = {}
        self._made: Counter[MadeBy] = Counter()
        self._held: Counter[int] = Counter()
        """Rollouts of each file, also those that an earlier one has."""
        self._scored: dict[Group, tuple[Scored, JsonObject]] = {}
        self._digests: dict[Group, int] = {}
        """Of the members that the files have of each scored group."""
        self._tally, self._groups = GroupTally(), set[Group]()

    def write(self, output: OutputPaths) -> JsonObject:
        """Write the merged files; returns the report. OutputError or ConfigError if that cannot
        be."""
        for path in output.all():
            if path.exists():
                raise ConfigError(f"{path} exists: remove it, or choose another output_jsonl_fpath")
        for paths in self.sources:
            if not paths.main.is_file():
                raise ConfigError(f"there is no file {paths.main}")
            if paths.main.suffix in HOW_TO_UNPACK:
                how = HOW_TO_UNPACK[paths.main.suffix]
                raise ConfigError(f"{paths.main} is compressed: unpack it first, with  {how}")
            if paths.shards.is_dir():
                raise ConfigError(
                    f"{paths.shards} has rollouts of a run that was killed: run its command again,"
                    f" which takes them into {paths.main}"
                )
        self._read()
        _make_folder(output.main)
        write_atomically(output.main, self._lines())
        num_unverified, num_failed = merge_sidecars(self.sources, output, self._done)
        metrics = self._measure(num_unverified, num_failed)
        write_json(output.metrics, metrics)
        odd = self.found.to_json()
        status = Status.NO_RESULT if odd else Status.FINISHED
        manifest = merge_manifests(self._manifests, self.sources, metrics["counts"], status)
        write_json(output.manifest, manifest)
        return {
            "output": str(output.main),
            "files": len(self.sources),
            "rollouts": len(self._places),
            "tasks": metrics["counts"]["tasks"],
            "unverified": num_unverified,
            "failed": num_failed,
            "reward": metrics["metrics"].get("reward"),
            **odd,
        }

    def _read(self) -> None:
        for paths in self.sources:
            for group, scored in dict(read_scored(paths.groups)).items():
                line = orjson.loads(_line(paths.groups, scored.offset))
                self._scored.setdefault(group, (scored, line))
        for _, raw in number_lines(self._tasks) if self._tasks else ():
            if (row := parse_line(raw)) is not None:
                self._number(task_id_of(row))
        self._num_known = self._num_tasks
        for file, paths in enumerate(self.sources):
            self._read_file(file, paths)
        if not self._places:
            names = ", ".join(str(paths.main) for paths in self.sources)
            raise ConfigError(f"there is no rollout in {names}")
        self.found.name_mixed(self._made, self.sources)
        self.found.name_missing(self._held, self.sources, self._manifests)
        if self._tasks:
            self.found.name_tasks(self._tasks, self._num_known, self._places.tasks)
        for group, (scored, line) in self._scored.items():
            if group_digest(self._digests.get(group, 0)) == scored.digest:
                self.metrics.add_group(group, line)
                self._tally.take(line)

    def _read_file(self, file: int, paths: OutputPaths) -> None:
        check_form(paths.main)
        name, num_foreign = paths.main.name, 0
        for offset, raw in read_lines(paths.main):
            line = parse_line(raw)
            if line is None and not raw.endswith(b"\n"):
                self.found.torn.append(f"{name}: its last line is cut off ({len(raw):,} bytes)")
                continue
            is_rollout = line is not None and kind_of(line, "rollout") == "rollout"
            key = key_of(line) if line is not None and is_rollout else None
            if line is None or key is None or not 0 <= key.rollout_index < NONE:
                num_foreign += 1
            elif self._done.add(key):
                info = self._take(file, key, line)
                self._place(file, offset, len(raw), key)
                settings, verifier = str(info.settings), str(info.verifier)
                self._made[MadeBy(file, key.agent, key.scope, settings, verifier)] += 1
                self._held[file] += 1
            else:
                self._name_duplicate(file, key, line)
        if num_foreign:
            what = "1 line is no rollout" if num_foreign == 1 else f"{num_foreign:,} lines are none"
            self.found.foreign.append(f"{name}: {what}; left out")

    def _take(self, file: int, key: Key, line: JsonObject) -> RolloutInfo:
        """Count a rollout."""
        info = info_of(line)
        self.metrics.add(Rollout(info, line))
        if self._scored:
            self._groups.add(group := group_of(key))
            if group in self._scored:
                self._digests[group] = self._digests.get(group, 0) + hold(key, line).digest
        return info

    def _place(self, file: int, offset: int, size: int, key: Key) -> None:
        places = self._places
        places.files.append(file)
        places.offsets.append(offset)
        places.sizes.append(size)
        places.tasks.append(task := self._number(key.task_id))
        places.link(task)
        places.kinds.append(self._kinds.setdefault((key.agent, key.scope), len(self._kinds)))
        places.indexes.append(key.rollout_index)

    def _number(self, task_id: str) -> int:
        number = self._numbers.setdefault(task_id, self._num_tasks)
        self._num_tasks += number == self._num_tasks
        return number

    def _name_duplicate(self, file: int, key: Key, line: JsonObject) -> None:
        """Equal lines are one; others are named."""
        kind, places = self._kinds[key.agent, key.scope], self._places
        at = places.find(self._number(key.task_id), kind, key.rollout_index)
        self._held[file] += file != places.files[at]
        first = self.sources[places.files[at]].main
        if orjson.loads(_line(first, places.offsets[at])) == line:
            return
        where = self.sources[file].main
        again = "" if first == where else f" of {where.name}"
        self.found.duplicates.append(
            f"{key.task_id}:{key.rollout_index} of {key.agent}: {first.name} has it; the other"
            f" line{again} is left out"
        )

    def _lines(self) -> Iterator[bytes]:
        """The lines of the output."""
        places = self._places
        order: Iterable[int] = range(len(places))
        if self._num_known:
            order = sorted(order, key=places.rank)
        with ExitStack() as stack:
            files = [stack.enter_context(paths.main.open("rb")).fileno() for paths in self.sources]
            for at in order:
                raw = os.pread(files[places.files[at]], places.sizes[at], places.offsets[at])
                yield raw if raw.endswith(b"\n") else raw + b"\n"

    def _measure(self, num_unverified: int, num_failed: int) -> JsonObject:
        """The metrics file; what only a run can measure is left out."""
        known = [each.get("counts") or {} for each in self._manifests]
        counts = {
            "tasks": self.metrics.tasks,
            "planned": max(sum(each.get("planned", 0) for each in known), self.metrics.rollouts),
            "unverified": num_unverified,
            "failed": num_failed,
            "malformed": sum(each.get("malformed", 0) for each in known),
        }
        asked = (last_input(each).get("num_repeats") for each in self._manifests)
        made = max(self._places.indexes) + 1
        repeats = max((each for each in asked if isinstance(each, int)), default=made)
        nothing = {"rollouts": 0, "output_tokens": 0, "elapsed_s": 0.0}
        metrics = self.metrics.report(counts, nothing, repeats)
        metrics["throughput"] = {}
        if self._scored:
            metrics["groups"] = self._tally.figures(len(self._groups))
        return metrics


def expand(words: Sequence[str]) -> list[Path]:
    """The files that words name; a pattern or a folder leaves out what lies beside outputs."""
    found: list[Path] = []
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            path /= "*.jsonl"
        if not any(char in str(path) for char in "*?["):
            found.append(path)
            continue
        folder = Path(path.anchor)
        matches = sorted(filter(_is_main, folder.glob(str(path.relative_to(path.anchor)))))
        if not matches:
            raise ConfigError(f"{word}: no file of rollouts is called so")
        found += matches
    if len({each.resolve() for each in found}) < len(found):
        raise ConfigError("a file is given twice")
    return found


def _is_main(path: Path) -> bool:
    try:
        return path.is_file() and bool(OutputPaths.of(path))
    except ConfigError:
        return False


def _make_folder(output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder of {output}: {error.strerror}") from None


def _line(path: Path, offset: int) -> bytes:
    with path.open("rb") as stream:
        return line_at(stream.fileno(), offset)
