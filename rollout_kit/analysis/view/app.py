"""The HTTP routes behind the pages: JSON for what is shown."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..._version import __version__
from ...errors import ConfigError, RolloutKitError
from ...store.filters.masks import status_of
from ...store.index import LineChanged
from ...store.scope import arm_of_key
from ...types import JsonObject, Key
from ..pages.site import as_json, build_site, read_json, refuse
from .compared import compare_outputs
from .dataset import ROW_BITS, ROW_MASK, Dataset, has_arms
from .figures import histogram, plots
from .query import Queries, Query
from .rollouts import Reader

PAGE = Path(__file__).parent / "page"

MAX_ROWS = 500
"""Rows of one reply."""


class Viewer:
    """Answers the requests of the pages."""

    def __init__(self, dataset: Dataset, title: str) -> None:
        self.dataset = dataset
        self.title = title
        self.queries = Queries(dataset)
        self.reader = Reader(dataset)

    def update(self) -> None:
        """Take in what other programs have written."""
        self.dataset.update()

    def state(self) -> JsonObject:
        """What there is: files, columns, and how much of it is indexed."""
        dataset = self.dataset
        columns: dict[str, JsonObject] = {}
        for part in dataset.parts:
            held = part.index.columns
            scores = {score.name for score in held.scores}
            for name in held.names():
                is_text = name in held.texts
                columns.setdefault(
                    name, {"name": name, "is_text": is_text, "is_score": name in scores}
                )
        outputs = []
        for output in dataset.outputs:
            main, unverified, failures = (part.index for part in output.parts)
            outputs.append(
                {
                    "name": output.name,
                    "rollouts": len(main),
                    "unverified": len(unverified),
                    "failures": len(failures),
                    "left_out": output.left_out(),
                    "problem": output.problem,
                    "labels": sum(len(notes) for _, notes in output.labels.items()),
                    "labels_version": output.labels_version,
                    "has_groups": output.paths.groups.exists(),
                    "has_scans": output.paths.scans.exists(),
                    "has_arms": any(has_arms(part.index.columns) for part in output.parts),
                }
            )
        return {
            "title": self.title,
            "toolkit": __version__,
            "files": outputs,
            "columns": list(columns.values()),
            "rows": dataset.rows(),
            "progress": dataset.progress(),
            "is_complete": dataset.is_complete,
            "version": dataset.version,
            "generation": dataset.generation,
        }

    def rows(self, query: Query, start: int, count: int) -> JsonObject:
        """Some of the rows that a query chooses."""
        result = self.queries.result(query)
        result.wait_for_rows(start + count)
        is_done, ids = result.is_done, result.ids  # in this order: `ids` is whole once it is done
        chosen = ids[start : start + max(0, min(count, MAX_ROWS))] if start >= 0 else ids[:0]
        return {
            "total": len(ids),
            "is_done": is_done,
            "searched": result.searched,
            "error": result.error,
            "version": self.dataset.version,
            "generation": self.dataset.generation,
            "rows": [self.row(row_id) for row_id in chosen],
        }

    def row(self, row_id: int) -> JsonObject:
        """A row of the table."""
        number, row = row_id >> ROW_BITS, row_id & ROW_MASK
        part = self.dataset.parts[number]
        columns, key = part.index.columns, part.index.key(row)
        output = self.dataset.output_of(number)
        rewards = output.group_rewards()
        score = rewards.of(key) if rewards else None
        return {
            "id": row_id,
            "file": output.name,
            "task_id": key.task_id,
            "status": status_of(columns, row),
            "labels": list(output.labels.of(key)),
            "scans": list(output.scans.names(key)),
            "group_reward": score.reward if score else None,
            "arm": arm_of_key(key) or None,
            "answer": self.reader.preview(part, row),
            **columns.fields(row, list(columns.names())),
        }

    def neighbours(self, query: Query, row_id: int) -> JsonObject:
        """The rows before and after one, within a query."""
        result = self.queries.result(query)
        result.wait_for_rows()
        is_done, ids = result.is_done, result.ids
        found: JsonObject = {"is_done": is_done, "total": len(ids)}
        try:
            at = ids.index(row_id)
        except ValueError:
            return {**found, "position": None, "previous": None, "next": None}
        return {
            **found,
            "position": at,
            "previous": ids[at - 1] if at else None,
            "next": ids[at + 1] if at + 1 < len(ids) else None,
        }

    def count(self, query: Query, what: Callable[[Sequence[int]], JsonObject]) -> JsonObject:
        """What is counted over the rows of a query so far; ConfigError for a wrong query."""
        result = self.queries.result(query)
        result.wait_for_rows()
        is_done, ids = result.is_done, result.ids
        if result.error:
            raise ConfigError(result.error)
        return {"is_done": is_done, **what(ids)}

    def find(self, output: str, key: Key) -> JsonObject:
        found = self.dataset.find(output, key)
        if found is None:
            raise ConfigError(f"{output} has no rollout {key.task_id}:{key.rollout_index}")
        return {"id": found}


def build_app(viewer: Viewer) -> ASGIApp:
    """The application. Each answer is computed in a thread, so that none holds up another."""

    async def label(request: Request) -> Response:
        asked = await read_json(request)
        return await _reply(lambda: viewer.reader.set_label(_number(request, "id"), asked))

    async def raw(request: Request) -> Response:
        def download() -> Response:
            name, line = viewer.reader.raw(_number(request, "id"))
            headers = {"content-disposition": f'attachment; filename="{name}"'}
            return Response(line, headers=headers, media_type="application/json")

        return await _reply(download)

    async def cancel(request: Request) -> Response:
        viewer.queries.cancel(_query(request))
        return Response(b"{}", media_type="application/json")

    routes = [
        *(_route(path, answer) for path, answer in _answers(viewer).items()),
        Route("/api/cancel", cancel, methods=["POST"]),
        Route("/api/labels", label, methods=["POST"]),
        Route("/api/raw", raw),
    ]
    return build_site(PAGE, routes)


def _answers(viewer: Viewer) -> dict[str, Callable[[Request], JsonObject]]:
    """Path → what it answers."""
    dataset, reader = viewer.dataset, viewer.reader
    return {
        "/api/state": lambda request: viewer.state(),
        "/api/rows": lambda request: viewer.rows(_query(request), *_range(request)),
        "/api/rollout": lambda request: reader.rollout(_number(request, "id")),
        "/api/findings": lambda request: reader.findings(_number(request, "id")),
        "/api/items": lambda request: reader.items(
            _number(request, "id"), _number(request, "begin", 0), _number(request, "end", 0)
        ),
        "/api/request": lambda request: reader.request(
            _number(request, "id"), _number(request, "turn")
        ),
        "/api/call": lambda request: reader.call(_number(request, "id"), _number(request, "turn")),
        "/api/text": lambda request: reader.text(
            _number(request, "id"),
            _text(request, "path"),
            _number(request, "start", 0),
            _number(request, "count", 100_000),
        ),
        "/api/inside": lambda request: reader.inside(
            _number(request, "id"), _text(request, "text")
        ),
        "/api/trails": lambda request: reader.trails(_text(request, "ids")),
        "/api/group": lambda request: reader.group(_number(request, "id")),
        "/api/find": lambda request: viewer.find(_text(request, "file"), _key(request)),
        "/api/neighbours": lambda request: viewer.neighbours(
            _query(request), _number(request, "id")
        ),
        "/api/histogram": lambda request: viewer.count(
            _query(request), lambda ids: histogram(dataset, ids, _text(request, "column"))
        ),
        "/api/plots": lambda request: viewer.count(
            _query(request), lambda ids: plots(dataset, ids)
        ),
        "/api/compare": lambda request: compare_outputs(
            dataset,
            _text(request, "first"),
            _text(request, "second"),
            request.query_params.get("by", ""),
        ),
    }


def _route(path: str, answer: Callable[[Request], JsonObject]) -> Route:
    async def endpoint(request: Request) -> Response:
        return await _reply(lambda: answer(request))

    return Route(path, endpoint)


async def _reply(answer: Callable[[], Any]) -> Response:
    try:
        found = await run_in_threadpool(answer)
    except LineChanged as error:
        return refuse(409, f"{error}; it is indexed again, reload in a moment")
    except (RolloutKitError, OSError) as error:
        return refuse(400, str(error))
    if isinstance(found, Response):
        return found
    return as_json(found)


def _query(request: Request) -> Query:
    return Query(*(request.query_params.get(name, "") for name in Query._fields))


def _range(request: Request) -> tuple[int, int]:
    return _number(request, "start", 0), _number(request, "count", 100)


def _number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name, "")
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is no number") from None


def _text(request: Request, name: str) -> str:
    if not (text := request.query_params.get(name, "")):
        raise ConfigError(f"the request lacks {name}=…")
    return text


def _key(request: Request) -> Key:
    scope = request.query_params.get("scope", "")
    index = _number(request, "rollout_index", 0)
    return Key(_text(request, "task_id"), request.query_params.get("agent", ""), scope, index)
