"""Merges the main files. The lines are copied byte for byte, and indexed on the way.

What a file holds is read from its index where that is valid, else from its lines; then the lines
are copied, and counted by another process meanwhile. Memory holds a few numbers of each rollout. Of
two lines with the same key the first one counts.
"""

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from zlib import crc32

import orjson

from ....errors import ConfigError, OutputError
from ....reading import parse_line
from ....store.compact import small
from ....store.files import OutputPaths, is_set_aside, lock, write_atomically, write_json
from ....store.groups.members import group_digest
from ....store.groups.scores import Scored, read_scored
from ....store.index import BATCH, KeptIndex, WrongIndex
from ....store.input import number_lines
from ....store.manifest import last_input
from ....store.rollouts import RolloutFile
from ....store.scan import check_form, check_schema
from ....store.scope import Group, name_of
from ....store.tasks import task_id_of
from ....types import JsonObject
from ...groups.tally import GroupTally
from ...results import Status
from .copied import CopiedLines
from .counting import Counted, beside, count, until_orphaned
from .findings import Findings, read_sound
from .reading import FoundLine, read_source, split_rows
from .sidecars import COPIED, merge_manifests, merge_sidecars

MANY = 20_000
"""Rollouts that are worth a process that counts them."""

HOW_TO_UNPACK = {".gz": "gunzip --keep", ".zst": "zstd --decompress --keep"}


def merge_files(
    sources: Sequence[Path], output: OutputPaths, tasks: Path | None, pass_threshold: float
) -> JsonObject:
    """Write the merged files; returns the report. With `tasks`, a file of tasks, the output is in
    its order, else in that of the sources. OutputError or ConfigError if nothing can be written."""
    try:
        return Merge(sources, tasks, pass_threshold).write(output)
    except WrongIndex:  # a source was edited in a way that its size and time do not tell
        pass
    try:
        return Merge(sources, tasks, pass_threshold, trusts_indexes=False).write(output)
    except WrongIndex:
        raise OutputError(
            "a source changed while it was merged: run the same command again"
        ) from None


class Merge:
    """One merge. Its sources and tasks are those of `merge_files`."""

    def __init__(
        self,
        sources: Sequence[Path],
        tasks: Path | None,
        pass_threshold: float,
        *,
        trusts_indexes: bool = True,
    ) -> None:
        self.sources = [OutputPaths(path) for path in sources]
        self.found = Findings()
        self._tasks, self._trusts_indexes = tasks, trusts_indexes
        self._pass_threshold = pass_threshold
        self._manifests = [read_sound(paths.manifest) for paths in self.sources]
        self._copied = CopiedLines()
        self._num_known = 0
        """The tasks of the file of tasks; they have the first numbers."""
        self._repeated: Counter[int] = Counter()
        """Rollouts of each file that an earlier one has."""
        self._num_equal = 0
        """Lines that were left out because an earlier one is equal."""
        self._scored: dict[Group, tuple[Scored, JsonObject]] = {}

    def write(self, output: OutputPaths) -> JsonObject:
        """Write the merged files; returns the report. WrongIndex if a source is not what its index
        says, or changes meanwhile."""
        _check_new(output)
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
        output.make_folder()
        with lock(output.main):
            _check_new(output)  # another program may have written it meanwhile
            try:
                return self._write_all(output)
            except BaseException:
                for path in output.all():
                    path.unlink(missing_ok=True)
                output.drop_folder()
                raise

    def _write_all(self, output: OutputPaths) -> JsonObject:
        counted = self._write_main(output)
        num_unverified, num_failed = merge_sidecars(self.sources, output, self._copied.done)
        metrics = self._measure(counted, num_unverified, num_failed)
        write_json(output.metrics, metrics)
        odd = self.found.to_json()
        status = Status.NO_RESULT if odd else Status.FINISHED
        manifest = merge_manifests(self._manifests, self.sources, metrics["counts"], status)
        write_json(output.manifest, manifest)
        return {
            "output": str(output.main),
            "files": len(self.sources),
            "rollouts": len(self._copied),
            "tasks": metrics["counts"]["tasks"],
            "unverified": num_unverified,
            "failed": num_failed,
            "reward": metrics["metrics"].get("reward"),
            "equal": self._num_equal,
            **odd,
        }

    def _read(self) -> None:
        for paths in self.sources:
            for name in COPIED:
                check_schema(paths.sidecar(name), is_output=False)
            for group, scored in dict(read_scored(paths.groups)).items():
                line = orjson.loads(RolloutFile(paths.groups).raw_at(scored.offset))
                self._scored.setdefault(group, (scored, line))
        for _, raw in number_lines(self._tasks) if self._tasks else ():
            if (row := parse_line(raw)) is not None:
                self._copied.number(small(task_id_of(row)))
        self._num_known = self._copied.num_tasks
        for file, paths in enumerate(self.sources):
            self._read_file(file, paths)
        if not self._copied:
            names = ", ".join(str(paths.main) for paths in self.sources)
            raise ConfigError(f"there is no rollout in {names}")
        made, held = self._copied.made, Counter(self._repeated)
        for each, number in made.items():
            held[each.file] += number
        self.found.name_mixed(made, self.sources)
        self.found.name_missing(held, self.sources, self._manifests)
        if self._tasks:
            self.found.name_tasks(self._tasks, self._num_known, self._copied.tasks)

    def _read_file(self, file: int, paths: OutputPaths) -> None:
        check_form(paths.main, takes_mark=True)
        for piece in read_source(paths, self.found, trusts_index=self._trusts_indexes):
            if isinstance(piece, FoundLine):
                lines: Iterable[FoundLine] = [piece]
            else:
                lines = () if self._copied.add_rows(file, piece) else split_rows(piece)
            for line in lines:
                if not self._copied.add(file, line):
                    self._name_duplicate(file, line)

    def _name_duplicate(self, file: int, line: FoundLine) -> None:
        """Equal lines are one; others are named."""
        key, copied = line.head.key, self._copied
        at = copied.find(key)
        self._repeated[file] += file != copied.files[at]
        first, where = self.sources[copied.files[at]].main, self.sources[file].main
        pair = RolloutFile(first).raw_at(copied.offsets[at]), RolloutFile(where).raw_at(line.offset)
        if orjson.loads(pair[0]) == orjson.loads(pair[1]):
            self._num_equal += 1
            return
        again = "" if first == where else f" of {where}"
        self.found.duplicates.append(
            f"{name_of(key)} of {key.agent}: {first} has it; the other line{again} is left out"
        )

    def _write_main(self, output: OutputPaths) -> Counted:
        """Write the main file and its index."""
        copied = self._copied
        order: Sequence[int] = range(len(copied))
        if self._num_known:
            order = array("I", sorted(order, key=copied.rank))
        is_indexed = 2 * sum(copied.plain) > len(copied)  # else its own first reader is quicker
        index = KeptIndex(output.index if is_indexed else None)
        try:
            with self._counting(order) as counted:
                write_atomically(output.main, self._copy(order, index, counted))
            with output.main.open("rb") as stream:
                index.descriptor = stream.fileno()
                index.flush()
        except BaseException:
            index.drop()
            raise
        finally:
            index.close()
        return counted()

    @contextmanager
    def _counting(self, order: Sequence[int]) -> Iterator[Callable[[], Counted]]:
        """Context in which the lines are counted; gives a function that waits for the counts."""
        lines = (raw for raw, _ in self._lines(order))
        work = partial(count, pass_threshold=self._pass_threshold, scored=self._scored)
        if len(order) < MANY:
            yield cache(lambda: work(lines))
            return
        with beside(lambda: work(until_orphaned(lines))) as wait:
            yield cache(wait)

    def _lines(self, order: Iterable[int]) -> Iterator[tuple[bytes, int]]:
        """The lines of the output, and the CRC-32 of each. WrongIndex if one is not the line that
        was found."""
        copied = self._copied
        with ExitStack() as stack:
            files = [stack.enter_context(paths.main.open("rb")).fileno() for paths in self.sources]
            for at in order:
                raw = os.pread(files[copied.files[at]], copied.sizes[at], copied.offsets[at])
                if (check := crc32(raw)) != copied.checks[at]:
                    raise WrongIndex
                yield (raw, check) if raw.endswith(b"\n") else (raw + b"\n", crc32(b"\n", check))

    def _copy(
        self, order: Iterable[int], index: KeptIndex, counted: Callable[[], Counted]
    ) -> Iterator[bytes]:
        """The lines of the output; each is indexed. The last one is given once all are counted."""
        for raw, check in self._lines(order):
            index.take(index.size, raw, check)
            if index.num_waiting >= BATCH:
                index.flush()
            yield raw
        counted()

    def _measure(self, counted: Counted, num_unverified: int, num_failed: int) -> JsonObject:
        """The metrics file; what only a run can measure is left out."""
        known = [each.get("counts") or {} for each in self._manifests]
        found, tally = counted.metrics, GroupTally()
        for group, (scored, line) in self._scored.items():
            if group_digest(counted.digests.get(group, 0)) == scored.digest:  # all members are here
                found.add_group(group, line)
                tally.take(line)
        counts = {
            "tasks": found.tasks,
            "planned": max(sum(each.get("planned", 0) for each in known), found.rollouts),
            "unverified": num_unverified,
            "failed": num_failed,
            "malformed": sum(each.get("malformed", 0) for each in known),
        }
        asked = (last_input(each).get("num_repeats") for each in self._manifests)
        made = max(self._copied.indexes) + 1
        repeats = max((each for each in asked if isinstance(each, int)), default=made)
        metrics = found.report(counts, {}, repeats)
        if self._scored:
            metrics["groups"] = tally.figures(len(counted.groups))
        return metrics


def expand(words: Sequence[str]) -> list[Path]:
    """The files that words name; a pattern or a folder leaves out what lies beside outputs, and
    what was set aside."""
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
    if len({os.path.realpath(each) for each in found}) < len(found):
        raise ConfigError("a file is given twice")
    return found


def _is_main(path: Path) -> bool:
    try:
        return path.is_file() and bool(OutputPaths.of(path)) and not is_set_aside(path)
    except ConfigError:
        return False


def _check_new(output: OutputPaths) -> None:
    """ConfigError if there is an output, which a merge would replace."""
    for path in output.all():
        if path.exists() and path != output.index:
            raise ConfigError(f"{path} exists: remove it, or choose another output_jsonl_fpath")
