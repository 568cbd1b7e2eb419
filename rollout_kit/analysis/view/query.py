"""Chosen rows: a filter, a search and an order, computed in steps that can be cancelled."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from functools import reduce
from itertools import compress
from typing import Any, NamedTuple

import orjson

from ...errors import ConfigError, suggest
from ...reading import parse_line
from ...serving.workers.matching import LineMatcher
from ...store.arms.order import Place
from ...store.filters.expression import Filter, names_in, parse
from ...store.filters.masks import COMPUTED, both, mask_of, split, value_in
from ...store.filters.turn_fields import TURNS
from ...store.index import LineChanged
from .dataset import ROW_BITS, ROW_MASK, Dataset, Part, StoredOutput

STEP = 4096
"""Rows between two looks at whether the query was cancelled."""

WAIT_S, SETTLE_S = 0.7, 0.05
"""How long a reply waits for its rows, and then for all others: most filters are done by then, so
that the page need not ask again."""

MAX_RESULTS = 8
"""Results that are kept for pages that come back to them."""

DENSE = 0.1
"""Above this share of a file's rows, a search reads the file from front to end."""

Rows = Sequence[int]
"""Numbers of rows of one file, in order."""


class Searched(NamedTuple):
    """Rows of one file that were found, and the last row that was looked at."""

    rows: Rows
    last: int


class Query(NamedTuple):
    """`where` is a filter, `search` a text or a /regular expression/ in the line; `sort` is a
    column, with a - in front for the largest values first; `-row` shows the newest first, and ~1 a
    random order. Empty: everything, in file order."""

    where: str = ""
    search: str = ""
    sort: str = ""


class Result:
    """The rows that a query chooses; they grow until `is_done`. Rows of an earlier result that the
    files have outgrown, if given, are shown until then."""

    def __init__(self, query: Query, earlier: array[int] | None = None) -> None:
        self.query = query
        self.ids = array("Q") if earlier is None else earlier
        self.has_earlier = earlier is not None
        self.is_done = False
        self.is_cancelled = False
        self.searched = 0.0
        """Share of the rows that is decided."""
        self.error = ""
        self.version = self.generation = -1
        """Of the dataset that it was computed for."""
        self._changed = threading.Condition()

    def note_change(self) -> None:
        """Rows were added, or the computation has ended."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_rows(self, number: int | None = None) -> None:
        """Wait a moment for so many rows, or for all of them."""
        number = None if self.query.sort else number  # rows have no order before all are there

        def has_enough() -> bool:
            is_over = self.is_done or self.is_cancelled
            return is_over or (number is not None and len(self.ids) >= number)

        with self._changed:
            self._changed.wait_for(has_enough, WAIT_S)
            if not self.query.search:
                self._changed.wait_for(lambda: self.is_done, SETTLE_S)


class Queries:
    """Computes results in a thread each, and keeps the latest."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._results: OrderedDict[Query, Result] = OrderedDict()
        self._lock = threading.Lock()

    def result(self, query: Query) -> Result:
        """The rows of a query, perhaps not all of them yet. A result that the files have outgrown
        is computed again in the background and stands in until then."""
        dataset = self._dataset
        with self._lock:
            found = self._results.get(query)
            is_old = found is not None and found.is_done and found.version != dataset.version
            if found is None or is_old or found.is_cancelled:
                shows_all = found and (found.is_done or found.has_earlier)
                is_valid = found and found.generation == dataset.generation
                new = Result(query, found.ids if found and shows_all and is_valid else None)
                new.version, new.generation = dataset.version, dataset.generation
                found = self._results[query] = new
                threading.Thread(target=self._compute, args=[new], daemon=True).start()
            self._results.move_to_end(query)
            while len(self._results) > MAX_RESULTS:
                self._results.popitem(last=False)[1].is_cancelled = True
            return found

    def wait(self, query: Query) -> Result:
        """All rows of a query."""
        result = Result(query)
        self._compute(result)
        return result

    def cancel(self, query: Query) -> None:
        """Stop computing a result that nobody waits for."""
        with self._lock:
            found = self._results.get(query)
            if found is not None and not found.is_done:
                found.is_cancelled = True

    def _compute(self, result: Result) -> None:
        try:
            ids = array("Q") if result.has_earlier else result.ids
            for found in choose(self._dataset, result):
                ids.extend(found)
                result.note_change()
            if result.query.sort and not result.is_cancelled:
                ids = order(self._dataset, ids, result.query.sort)
            result.ids = ids
        except (ConfigError, LineChanged) as error:
            result.error = str(error)
        except Exception as error:  # it is shown on the page
            result.error = f"{type(error).__name__}: {error}"
        finally:
            result.searched = 1.0
            result.is_done = not result.is_cancelled
            result.note_change()


def choose(dataset: Dataset, result: Result) -> Iterator[list[int]]:
    """The ids of the rows, in portions; ConfigError for a filter or expression that is wrong."""
    query = result.query
    tree = parse(query.where) if query.where.strip() else None
    if tree is not None:
        _check_names(dataset, query.where)
    total, before = max(1, dataset.rows()), 0
    with _searching(query.search, lambda: result.is_cancelled) as finds:
        for number, part in enumerate(dataset.parts):
            own = _name_file(tree, dataset.output_of(number).name)
            rows, rest = _choose_by_columns(part, own)
            start, before = before, before + len(part.index)
            if not rows:
                continue
            chosen = _in_steps(rows) if finds is None else finds(part, rows)
            if rest:
                chosen = _by_line(dataset.output_of(number), part, chosen, rest)
            for found in chosen:
                if result.is_cancelled:
                    return
                yield [number << ROW_BITS | row for row in found.rows]
                result.searched = min(1.0, (start + found.last) / total)


def _name_file(tree: ast.expr | None, name: str) -> ast.expr | None:
    """The filter with the name of a file in the place of `file`."""

    class Naming(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Constant(name) if node.id == "file" else node

    return None if tree is None else Naming().visit(deepcopy(tree))


def _choose_by_columns(part: Part, tree: ast.expr | None) -> tuple[Rows, str]:
    """The rows for which the columns do not exclude the filter, and the rest of the filter."""
    columns, num_rows = part.index.columns, len(part.index)
    masks = [] if part.is_shown is None else [bytes(part.is_shown[:num_rows])]
    rest = None
    if tree is not None and num_rows:
        quick, rest = split(tree, columns)
        if quick is not None:
            masks.append(mask_of(quick, columns, num_rows))
    rows: Rows = range(num_rows)
    if masks:
        rows = array("I", compress(rows, reduce(both, masks)))
    return rows, ast.unparse(rest) if rest else ""


def order(dataset: Dataset, ids: array[int], sort: str) -> array[int]:
    """The ids by a column; rows without a value come last. ConfigError if no file has it."""
    is_falling, name = sort.startswith("-"), sort.removeprefix("-")
    if name.startswith("~"):
        return array("Q", random.Random(name).sample(list(ids), len(ids)))
    if name == "row":
        return array("Q", sorted(ids, reverse=is_falling))
    if name not in OF_OUTPUTS:
        dataset.check_column(name)
    parts = [part.index.columns for part in dataset.parts]
    numbers = [columns.numbers.get(name, ()) for columns in parts]

    def read(row_id: int) -> Any:
        return value_in(parts[row_id >> ROW_BITS], name, row_id & ROW_MASK)

    def read_number(row_id: int) -> Any:  # no test of what kind of column it is, in each row
        found = numbers[row_id >> ROW_BITS]
        return found[row_id & ROW_MASK] if found else None

    is_text = any(name in columns.texts or name in COMPUTED for columns in parts)
    plain = read if is_text else read_number
    value = OF_OUTPUTS[name](dataset) if name in OF_OUTPUTS else plain
    with_value, without = array("Q"), array("Q")
    for row_id in ids:
        known = value(row_id)
        (with_value if known is not None and known == known else without).append(row_id)
    try:
        ordered = sorted(with_value, key=value, reverse=is_falling)
    except TypeError:  # texts and numbers
        ordered = sorted(with_value, key=lambda each: str(value(each)), reverse=is_falling)
    return array("Q", ordered) + without


def _group_rewards(dataset: Dataset) -> Callable[[int], float | None]:
    known = [output.group_rewards() for output in dataset.outputs for _ in output.parts]

    def read(row_id: int) -> float | None:
        rewards = known[number := row_id >> ROW_BITS]
        score = rewards and rewards.of(dataset.parts[number].index.key(row_id & ROW_MASK))
        return score.reward if score else None

    return read


def _arms(dataset: Dataset) -> Callable[[int], Place | None]:
    columns, order = [part.index.columns for part in dataset.parts], dataset.arm_order()

    def read(row_id: int) -> Place | None:
        arm = value_in(columns[row_id >> ROW_BITS], "arm", row_id & ROW_MASK)
        return order.place_of(arm) if arm else None

    return read


OF_OUTPUTS: Mapping[str, Callable[[Dataset], Callable[[int], Any]]] = {
    "arm": _arms,
    "file": lambda dataset: lambda row_id: dataset.output_of(row_id >> ROW_BITS).name,
    "group_reward": _group_rewards,
}
"""Columns to sort by that no index has, or not in order → what gives their value for the id of a
row."""


def _in_steps(rows: Rows) -> Iterator[Searched]:
    for start in range(0, len(rows), 16 * STEP):
        step = rows[start : start + 16 * STEP]
        yield Searched(step, step[-1])


def _by_line(
    output: StoredOutput, part: Part, chosen: Iterator[Searched], where: str
) -> Iterator[Searched]:
    """Those of the rows for which a filter holds that needs the line."""
    keeps, rewards = Filter(where), output.group_rewards()
    for rows, last in chosen:
        for start in range(0, len(rows), 64):
            step, found = rows[start : start + 64], []
            for row in step:
                rollout = output.read(part.index.line(row), part.index.key(row), rewards)
                if rollout is not None and keeps(rollout):
                    found.append(row)
            yield Searched(found, step[-1])
        yield Searched((), last)


NO_COLUMNS = frozenset({"text", "started_at", "labels", "scans", "group_reward", "file", TURNS})
"""Fields of every rollout that no index has."""


def _check_names(dataset: Dataset, where: str) -> None:
    """ConfigError for a name that no row can have: the page says it before anything is read."""
    names = names_in(parse(where))
    known: set[str] = set(COMPUTED) | {
        "text",
        "started_at",
        "labels",
        "scans",
        "group_reward",
        "file",
        TURNS,
    }
    sample: set[str] = set()
    for part in dataset.parts:
        known.update(part.index.columns.names())
        if names - known and len(part.index):
            sample.update(parse_line(part.index.line(0)) or {})
    for name in sorted(names - known - sample):
        raise ConfigError(f"no rollout has the field '{name}'{suggest(name, known | sample)}")


Searcher = Callable[[Part, Rows], Iterator[Searched]]


@contextmanager
def _searching(search: str, is_cancelled: Callable[[], bool]) -> Iterator[Searcher | None]:
    """A function that finds the rows whose line holds a text; None for no text."""
    if not search:
        yield None
    elif len(search) > 2 and search.startswith("/") and search.rstrip("im").endswith("/"):
        body, _, flags = search[1:].rpartition("/")
        try:
            re.compile(body.encode())
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"{search} is no regular expression: {error}") from None
        ignores_case = "i" in flags
        matcher = LineMatcher(body, ignores_case=ignores_case, is_cancelled=is_cancelled)
        with closing(matcher):
            yield lambda part, rows: _find_pattern(part, rows, matcher, search)
    elif search.isascii():
        yield lambda part, rows: _find_literal(part, rows, orjson.dumps(search)[1:-1])
    else:  # another program may have written the line in ASCII
        one, other = orjson.dumps(search)[1:-1], json.dumps(search)[1:-1].encode()
        yield lambda part, rows: _read_each(part, rows, lambda line: one in line or other in line)


def _find_pattern(part: Part, rows: Rows, matcher: LineMatcher, search: str) -> Iterator[Searched]:
    """The rows that match; ConfigError if the expression takes too long for a line."""
    held = part.index.columns
    for start in range(0, len(rows), 256):
        step = rows[start : start + 256]
        places = [(held.offsets[row], held.lengths[row], held.checks[row]) for row in step]
        try:
            for found, changed in matcher.find(part.index.path, places):
                if changed is not None:
                    part.index.line(step[changed])  # it says that the file was edited
                yield Searched([step[each] for each in found], step[-1])
        except TimeoutError as error:
            raise ConfigError(
                f"{search} takes too long ({error}): a repetition within a repetition, such as"
                " (a+)+, may take for ever; write it simpler"
            ) from None


def _find_literal(part: Part, rows: Rows, raw: bytes) -> Iterator[Searched]:
    """Search the lines if they are few, else the file as a whole, in blocks of rows."""
    if len(rows) < DENSE * len(part.index):
        yield from _read_each(part, rows, lambda line: raw in line)
        return
    offsets, lengths = part.index.columns.offsets, part.index.columns.lengths
    with part.index.path.open("rb") as stream:
        for start in range(0, len(rows), STEP):
            block, found = rows[start : start + STEP], []
            begin, end = offsets[block[0]], offsets[block[-1]] + lengths[block[-1]]
            held, at = os.pread(stream.fileno(), end - begin, begin), 0
            while (at := held.find(raw, at)) >= 0:
                row = block[bisect_right(block, begin + at, key=offsets.__getitem__) - 1]
                line_end = offsets[row] + lengths[row] - begin
                if at < line_end:  # and not in a line between two of the block
                    found.append(row)
                at = max(at + 1, line_end)
            yield Searched(found, block[-1])


def _read_each(part: Part, rows: Rows, holds: Callable[[bytes], bool]) -> Iterator[Searched]:
    for start in range(0, len(rows), 256):
        step = rows[start : start + 256]
        yield Searched([row for row in step if holds(part.index.line(row))], step[-1])
