"""Reads stored rollouts to verify them: a rollouts file, its `_unverified` sidecar, or the failures
that carry a response.

The file is streamed. Only the key, line number and verdict of each rollout stay in memory.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..config.inputs import parse_only
from ..errors import ConfigError, OutputError, number_of
from ..reading import read_lines
from ..types import JsonObject, Key
from .files import OutputPaths, aside, lock, main_of_sidecar, write_atomically
from .input import plain_path
from .kinds import (
    FOREIGN,
    NEWER,
    UNREADABLE,
    key_of,
    kind_of,
    parse_head,
    refuse_newer,
    why_unreadable,
)
from .lines import Malformed, info_of
from .rollouts import RolloutFile, StoredLine, refuse
from .scan import check_beside, check_schema
from .scope import is_named
from .tasks import BREATH, TEXT_KEPT


class Stored(NamedTuple):
    """A stored rollout without its content. `reward` is None if it has no verdict."""

    line: int
    reward: float | None
    verifier: str
    mark: int


@dataclass(slots=True)
class Survey:
    """Index of a stored file: its first `limit` rollouts, or `only` one. Of several lines with the
    same key, the first with a verdict counts, or else the last."""

    limit: int | None = None
    only: tuple[str, int] | None = None
    rows: dict[Key, Stored] = field(default_factory=dict)
    malformed: list[Malformed] = field(default_factory=list)
    """The first MAX_HELD malformed lines: enough to report a wrong kind of file."""
    num_malformed: int = 0
    last_line: int = 0
    """Number of the last line that counts; a limit leaves the rest unread."""
    without_response: int = 0
    """Number of failures without a response, which cannot be verified."""

    def agents(self) -> list[str]:
        return list(dict.fromkeys(key.agent for key in self.rows))

    def take(self, line: "Line | NoResponse | Malformed") -> bool:
        """Add a line; False if the limit excludes it and all that follow."""
        match line:
            case Malformed(number) if self.only is None:
                self.last_line = number
                self.num_malformed += 1
                if len(self.malformed) < MAX_HELD:
                    self.malformed.append(line)
            case NoResponse(is_failure=is_failure):
                self.without_response += is_failure
            case Line(number, key, content) if is_named(key, self.only):
                known = self.rows.get(key)
                if known is None and self.limit and len(self.rows) >= self.limit:
                    return False
                self.last_line = number
                if known is None or known.reward is None:
                    self.rows[_intern(key)] = _summarize(number, content)
        return True


MAX_HELD = 5


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The input: its name as given, a path that can be read twice, and its index."""

    source: str
    path: Path
    survey: Survey

    @property
    def collected(self) -> OutputPaths:
        """The output files of the run that wrote it."""
        return _collection_of(self.source)

    def check_agents(self, output: OutputPaths, held: Collection[str], earlier: str) -> None:
        """OutputError if the output holds rollouts, and none of an agent of this input. `held` are
        its agents, `earlier` the input that was last verified into it.

        Other files of one collection, and parts of one file, may have different agents.
        """
        survey, agents = self.survey, self.survey.agents()
        if not held or not set(held).isdisjoint(agents):
            return
        is_part = earlier != self.source or survey.limit is not None or survey.only is not None
        if earlier and is_part and self.collected.has(_collection_of(earlier).main):
            return
        raise OutputError(
            f"{output.main} holds rollouts of {_quote(held)}, and {self.source} has rollouts of"
            f" {_quote(agents)}: their figures would be mixed. Nothing was sent. Ways on:\n"
            "  another output:  +output_jsonl_fpath=…  (ng_merge makes one file of several)\n"
            "  start over:      +resume=fresh  (the old files are moved aside)"
        )


def _collection_of(source: str) -> OutputPaths:
    """The output that a file of rollouts belongs to."""
    path = plain_path(Path(source))
    return OutputPaths(main_of_sidecar(path) or Path(source).with_name(path.name))


def _quote(agents: Iterable[str]) -> str:
    return " and ".join(f"'{agent}'" for agent in agents)


class NoResponse(NamedTuple):
    """A line of a run that holds no response: often that of a failure."""

    line: int
    is_failure: bool


class Line(NamedTuple):
    """A stored rollout with its content, as the journal wrote it."""

    line: int
    key: Key
    content: JsonObject


def read_stored_lines(path: Path, name: str = "") -> Iterator[Line | NoResponse | Malformed]:
    """Yield every line of the file in order; ConfigError if reading fails, OutputError if a newer
    version wrote a line. `name` is the file's name as given."""
    for line in RolloutFile(path).lines(parsed=True):
        if line.kind == NEWER:
            raise refuse_newer(name or path, line.number, line.row, is_output=False)
        try:
            found = _find_response(line)
        except ValueError as error:
            yield Malformed(line.number, str(error), line.raw[:TEXT_KEPT].decode(errors="replace"))
            continue
        if found is None:
            yield NoResponse(line.number, line.kind in ("failure", "malformed"))
        else:
            yield Line(line.number, *found)


def response_mark(content: JsonObject) -> int:
    """Distinguishes the responses of one key within this process, as a number to save memory."""
    return hash((content["response"].get("id"), info_of(content).started_at))


def _summarize(number: int, content: JsonObject) -> Stored:
    verifier = sys.intern(str(info_of(content).verifier or ""))
    return Stored(number, content.get("reward"), verifier, response_mark(content))


def _intern(key: Key) -> Key:
    """The key with interned names, so that all rollouts share them."""
    return key._replace(agent=sys.intern(key.agent), scope=sys.intern(key.scope))


def _find_response(stored: StoredLine) -> tuple[Key, JsonObject] | None:
    """A line's key and content; None for a failure without a response, or another line that a run
    writes; ValueError for anything else."""
    if stored.kind == UNREADABLE:
        raise ValueError(why_unreadable(stored.raw))
    line, kind, head = stored.row, stored.kind, stored.head
    if kind == FOREIGN and (kind := kind_of(line, "rollout")) == FOREIGN:
        raise ValueError(f"not a stored rollout: its kind, '{line['kind']}', is not known")
    if kind not in ("rollout", "unverified"):
        if kind != "failure" or not isinstance(line.get("response"), dict):
            return None
        if isinstance(answered := line.get("answered"), dict):
            line = {**answered, "response": line["response"]}
            head = parse_head(line)
    if head is None:
        raise ValueError(f"not a stored rollout: {_lack(line)}")
    key = head.key
    response = line.get("response")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise ValueError("not a stored rollout: it has no response with an 'output' list")
    for name, value in (("_ng_task_index", 0), ("_ng_rollout_index", key.rollout_index)):
        line.setdefault(name, value)
    return key, line


def _lack(line: JsonObject) -> str:
    if "response" not in line and "responses_create_params" in line:
        return "a task, without a response"
    if key_of({**line, "reward": 0, "usage": None}) is not None:
        return "its 'reward' or 'usage' is not a number where it must be one"
    return "its agent_ref or its 'rollout' block, which identify it, are missing or invalid"


async def survey(name: str, path: Path, limit: int | None, only: str | None) -> StoredFile:
    """Index the file; ConfigError if it holds no rollout, OutputError if a newer version wrote a
    line that is read. `name` is the file's name as given."""
    found = Survey(limit, parse_only(only))
    for read, line in enumerate(read_stored_lines(path, name), 1):
        if not found.take(line):
            break
        if read % BREATH == 0:
            await asyncio.sleep(0)  # let signal handlers and other tasks run
    if not found.rows:
        raise ConfigError(_why_nothing(name, found, only))
    return StoredFile(name, path, found)


def _why_nothing(name: str, survey: Survey, only: str | None) -> str:
    if only is not None:
        return f"only={only}: {name} has no such rollout"
    if survey.malformed:
        first = survey.malformed[0]
        return (
            f"{name}: it contains no stored rollout; line {first.line}: {first.message}."
            " Give a file that ng_collect_rollouts wrote"
        )
    if number := survey.without_response:
        what = number_of(number, "failure")
        return f"{name}: {what}, and none carries a response to verify"
    return f"{name}: it contains no rollout"


def drop_stale(
    paths: OutputPaths, survey: Survey, verifiers: Mapping[str, str], *, is_dry: bool
) -> tuple[set[Key], list[str]]:
    """Take outdated rollouts out of the output. In a dry run they stay, and their keys are
    returned. `verifiers`: agent → fingerprint. OutputError if a newer version wrote a line."""

    def is_stale(line: StoredLine) -> bool:
        """Whether a rollout has another verdict or response than this run will write."""
        if line.kind == NEWER:
            raise refuse(paths.main, line, is_output=True)
        key = line.head.key if line.head is not None and line.kind == "rollout" else None
        if key is None or key not in survey.rows or key.agent not in verifiers:
            return False
        row = line.row
        is_verified = isinstance(row.get("response"), dict) and row.get("reward") is not None
        held = (info_of(row).verifier, response_mark(row)) if is_verified else None
        return held != (verifiers[key.agent], survey.rows[key].mark)

    if not paths.main.exists():
        return set(), []
    lines = RolloutFile(paths.main).lines(parsed=True)
    offsets = {line.offset: line.head.key for line in lines if is_stale(line) and line.head}
    stale = set(offsets.values())
    if not stale:
        return set(), []
    for path in (paths.unverified, paths.failures):
        check_schema(path)
    check_beside(paths)
    what = (
        f"{number_of(len(stale), 'rollout')} of {paths.main} with another"
        " verifier's verdict, or another response: verified anew"
    )
    if is_dry:
        return stale, [what]
    kept = _leave_out(paths, offsets)
    return set(), [f"{what}; the file as it was is kept in {kept}"]


def _leave_out(paths: OutputPaths, offsets: Container[int]) -> Path:
    """Rewrite the main file atomically without the lines at these offsets; returns the path of
    the original. OutputError, and nothing has changed, if that is not possible."""
    with lock(paths.main):
        kept = aside(paths.main)
        try:
            try:
                os.link(paths.main, kept)
            except OSError:  # a file system without links
                shutil.copyfile(paths.main, kept)
            lines = read_lines(paths.main)
            write_atomically(paths.main, (raw for at, raw in lines if at not in offsets))
        except BaseException as error:
            with suppress(OSError):
                kept.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            raise OutputError(f"cannot write {kept}: {error.strerror}") from error
    return kept
