"""Merges the main files. The lines are copied byte for byte, and indexed on the way.

What a file holds is read from its index where that is valid, else from its lines; then the lines
are copied and counted. Memory holds a few numbers of each rollout. Of two lines with the same key
the first one counts.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

import orjson

from ...collector.groups.tally import GroupTally
from ...collector.results import Status
from ...errors import ConfigError, OutputError
from ...metrics.summary import Metrics
from ...store.compact import small
from ...store.files import OutputPaths, write_atomically, write_json
from ...store.groups.members import group_digest, hold
from ...store.groups.scope import Group, group_of
from ...store.groups.scores import Scored, read_scored
from ...store.index.index import BATCH
from ...store.index.kept import KeptIndex, WrongIndex
from ...store.input import number_lines
from ...store.lines import rollout_of
from ...store.scan import check_form, line_at, parse_line
from ...store.tasks import task_id_of
from ...types import JsonObject, Rollout
from .copied import CopiedLines
from .findings import Findings, last_input, read_sound
from .reading import FoundLine, read_source, split_rows
from .sidecars import merge_manifests, merge_sidecars

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
        self.metrics = Metrics(pass_threshold)
        self._tasks, self._trusts_indexes = tasks, trusts_indexes
        self._manifests = [read_sound(paths.manifest) for paths in self.sources]
        self._copied = CopiedLines()
        self._num_known = 0
        """The tasks of the file of tasks; they have the first numbers."""
        self._repeated: Counter[int] = Counter()
        """Rollouts of each file that an earlier one has."""
        self._scored: dict[Group, tuple[Scored, JsonObject]] = {}
        self._digests: dict[Group, int] = {}
        """Of the members that the files have of each scored group."""
        self._tally, self._groups = GroupTally(), set[Group]()

    def write(self, output: OutputPaths) -> JsonObject:
        """Write the merged files; returns the report. WrongIndex if a source is not what its index
        says, or changes meanwhile."""
        for path in output.all():
            if path.exists() and path != output.index:
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
        self._write_main(output)
        self._count_groups()
        num_unverified, num_failed = merge_sidecars(self.sources, output, self._copied.done)
        metrics = self._measure(num_unverified, num_failed)
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
            **odd,
        }

    def _read(self) -> None:
        for paths in self.sources:
            for group, scored in dict(read_scored(paths.groups)).items():
                line = orjson.loads(_line(paths.groups, scored.offset))
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
        check_form(paths.main)
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
        pair = _line(first, copied.offsets[at]), _line(where, line.offset)
        if orjson.loads(pair[0]) == orjson.loads(pair[1]):
            return
        again = "" if first == where else f" of {where.name}"
        self.found.duplicates.append(
            f"{key.task_id}:{key.rollout_index} of {key.agent}: {first.name} has it; the other"
            f" line{again} is left out"
        )

    def _write_main(self, output: OutputPaths) -> None:
        copied = self._copied
        is_indexed = 2 * sum(copied.plain) > len(copied)  # else its own first reader is quicker
        index = KeptIndex(output.index if is_indexed else None)
        try:
            write_atomically(output.main, self._copy(index))
            with output.main.open("rb") as stream:
                index.descriptor = stream.fileno()
                index.flush()
        except BaseException:
            index.drop()
            raise
        finally:
            index.close()

    def _copy(self, index: KeptIndex) -> Iterator[bytes]:
        """The lines of the output; each is counted and indexed. WrongIndex if one is not the line
        that was found."""
        copied = self._copied
        order: Iterable[int] = range(len(copied))
        if self._num_known:
            order = sorted(order, key=copied.rank)
        with ExitStack() as stack:
            files = [stack.enter_context(paths.main.open("rb")).fileno() for paths in self.sources]
            for at in order:
                check: int | None = copied.checks[at]
                raw = os.pread(files[copied.files[at]], copied.sizes[at], copied.offsets[at])
                if crc32(raw) != check:
                    raise WrongIndex
                if not raw.endswith(b"\n"):
                    raw, check = raw + b"\n", None
                rollout = rollout_of(orjson.loads(raw))
                self._count(rollout)
                if copied.plain[at]:
                    index.append(index.size, raw, rollout, check)
                else:
                    index.take(index.size, raw)
                if index.num_waiting >= BATCH:
                    index.flush()
                yield raw

    def _count(self, rollout: Rollout) -> None:
        """Count a rollout in the metrics, and in its group's digest."""
        self.metrics.add(rollout)
        if self._scored:
            self._groups.add(group := group_of(rollout.key))
            if group in self._scored:
                digest = hold(rollout.key, rollout.head).digest
                self._digests[group] = self._digests.get(group, 0) + digest

    def _count_groups(self) -> None:
        """Count the groups whose score is that of the members that are here."""
        for group, (scored, line) in self._scored.items():
            if group_digest(self._digests.get(group, 0)) == scored.digest:
                self.metrics.add_group(group, line)
                self._tally.take(line)

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
        made = max(self._copied.indexes) + 1
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
