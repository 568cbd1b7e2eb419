"""An imitation of OpenAI's and Anthropic's interfaces of batches, on a real socket, in a thread of
the test's own process: so it outlives the collectors that are killed."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import BodyPartReader, web
from endpoint import served

from rollout_kit.api.testing import text_response

Answer = Callable[[dict[str, Any]], Any]
"""From the body of a request to the body of its answer."""

USAGE = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}


def echo(body: dict[str, Any]) -> dict[str, Any]:
    """The last message, as a response."""
    said = [item["content"] for item in body["input"] if "content" in item][-1]
    return {**text_response(str(said)), "usage": USAGE}


def echo_message(body: dict[str, Any]) -> dict[str, Any]:
    """The same as a message of Anthropic's."""
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 50},
    }


@dataclass
class Batch:
    id: str
    lines: list[dict[str, Any]]
    about: dict[str, Any]
    status: str = "in_progress"
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    looks_left: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)


class Imitation:
    """Answers in any order. `errors` and `expires` are the shares of requests that fail with a 500,
    or get no answer, in their first batch. A batch takes `looks` looks. `at` is called with each
    request before and after it is handled."""

    def __init__(self, answer: Answer = echo) -> None:
        self.answer, self.url = answer, ""
        self.answer_at_once = answer
        """To requests outside of batches."""
        self.errors = self.expires = 0.0
        self.looks = 1
        self.is_held = False
        """Whether no batch ends."""
        self.invalid = False
        """Whether all requests are invalid."""
        self.at: Callable[[str, str], None] = lambda when, what: None
        self.refuse_batch: dict[str, Any] | None = None
        """Error with which the next batch fails."""
        self.batches: dict[str, Batch] = {}
        self.files: dict[str, bytes] = {}
        self.submitted: Counter[str] = Counter()
        self.twice: list[str] = []
        """Requests that were submitted though they had an answer, or would have one."""
        self.single: list[dict[str, Any]] = []
        """Bodies of the requests outside of batches."""
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self._open: set[str] = set()
        self._random = random.Random(7)

    def take(self, lines: list[dict[str, Any]], about: dict[str, Any]) -> Batch:
        batch = Batch(f"batch_{len(self.batches)}", lines, about, looks_left=self.looks)
        self.batches[batch.id] = batch
        if self.refuse_batch is not None:
            batch.status, batch.about["errors"] = "failed", [self.refuse_batch]
            self.refuse_batch = None
            return batch
        for line in lines:
            name = line["custom_id"]
            self.submitted[name] += 1
            if name in self._open:
                self.twice.append(name)
            self._open.add(name)
        return batch

    def look(self, batch: Batch) -> None:
        """Time passes for a batch."""
        may_end = batch.status == "in_progress" and not self.is_held
        if batch.status != "cancelling" and not may_end:
            return
        batch.looks_left -= 1
        if batch.looks_left <= 0 or batch.status == "cancelling":
            self._end(batch)

    def _end(self, batch: Batch) -> None:
        lines = list(batch.lines)
        self._random.shuffle(lines)
        is_cancelled = batch.status == "cancelling"
        for line in lines:
            name = line["custom_id"]
            is_first, drawn = self.submitted[name] == 1, self._random.random()
            kind = "answer"
            if (is_first and drawn < self.expires) or (is_cancelled and drawn < 0.5):
                kind = "cancelled" if is_cancelled else "expired"
            elif is_first and drawn < self.expires + self.errors:
                kind = "error"
            body = line.get("body") or line.get("params")
            kind = "invalid" if self.invalid else kind
            if kind == "answer":
                result = {"custom_id": name, "kind": kind, "body": self.answer(body)}
                batch.results.append(result)
            else:
                self._open.discard(name)
                batch.errors.append({"custom_id": name, "kind": kind})
        has_expired = any(each["kind"] == "expired" for each in batch.errors)
        batch.status = "cancelled" if is_cancelled else "expired" if has_expired else "completed"

    # OpenAI

    async def create_file(self, request: web.Request) -> web.Response:
        # request.post() leaves a file open if the client dies meanwhile
        form: dict[str | None, bytes] = {}
        async for part in await request.multipart():
            assert isinstance(part, BodyPartReader)
            form[part.name] = bytes(await part.read())
        assert form["purpose"] == b"batch"
        id = f"file-{len(self.files)}"
        self.files[id] = form["file"]
        return web.json_response(self._file(id))

    def _file(self, id: str) -> dict[str, Any]:
        about = {"bytes": len(self.files[id]), "created_at": int(time.time()), "filename": id}
        return {"id": id, "object": "file", "purpose": "batch", "status": "processed", **about}

    async def create_batch(self, request: web.Request) -> web.Response:
        asked = await request.json()
        lines = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        assert len({line["body"]["model"] for line in lines}) == 1
        assert {line["url"] for line in lines} == {asked["endpoint"]}
        return web.json_response(self._to_openai(self.take(lines, asked)))

    def _to_openai(self, batch: Batch) -> dict[str, Any]:
        is_over = batch.status in ("completed", "expired", "cancelled")
        for kind, found in (("output", batch.results), ("error", batch.errors)):
            if is_over and found:
                texts = [json.dumps(_openai_line(each), ensure_ascii=False) for each in found]
                self.files[f"{batch.id}-{kind}"] = "".join(f"{text}\n" for text in texts).encode()
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.about["endpoint"],
            "input_file_id": batch.about["input_file_id"],
            "completion_window": "24h",
            "status": batch.status,
            "created_at": int(time.time()),
            "metadata": batch.about.get("metadata"),
            "output_file_id": f"{batch.id}-output" if is_over and batch.results else None,
            "error_file_id": f"{batch.id}-error" if is_over and batch.errors else None,
            "request_counts": {
                "total": len(batch.lines),
                "completed": len(batch.results),
                "failed": len(batch.errors),
            },
            "errors": {"object": "list", "data": batch.about.get("errors", [])},
        }

    async def retrieve(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        self.look(batch)
        return web.json_response(self._to_openai(batch))

    async def list_batches(self, request: web.Request) -> web.Response:
        found = [self._to_openai(each) for each in reversed(self.batches.values())]
        return web.json_response({"object": "list", "data": found, "has_more": False})

    async def cancel(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        batch.status = "cancelling"
        return web.json_response(self._to_openai(batch))

    async def content(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["id"]])

    async def respond(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.single.append(body)
        return web.json_response(self.answer_at_once(body))

    # Anthropic

    async def create_messages(self, request: web.Request) -> web.Response:
        asked = await request.json()
        assert all(set(each) == {"custom_id", "params"} for each in asked["requests"])
        return web.json_response(self._to_anthropic(self.take(asked["requests"], {})))

    def _to_anthropic(self, batch: Batch) -> dict[str, Any]:
        is_over = batch.status in ("completed", "expired", "cancelled")
        kinds = Counter(each["kind"] for each in [*batch.results, *batch.errors])
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if is_over else "in_progress",
            "request_counts": {
                "processing": 0 if is_over else len(batch.lines),
                "succeeded": kinds["answer"],
                "errored": kinds["error"] + kinds["invalid"],
                "canceled": kinds["cancelled"],
                "expired": kinds["expired"],
            },
            "created_at": batch.created_at.isoformat(),
            "expires_at": (batch.created_at + timedelta(days=1)).isoformat(),
            "ended_at": datetime.now(UTC).isoformat() if is_over else None,
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"{self.url}/messages/batches/{batch.id}/results" if is_over else None,
        }

    async def retrieve_messages(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        self.look(batch)
        return web.json_response(self._to_anthropic(batch))

    async def list_messages(self, request: web.Request) -> web.Response:
        for batch in self.batches.values():  # also those that nobody else looks at
            self.look(batch)
        found = [self._to_anthropic(each) for each in reversed(self.batches.values())]
        ends = {"first_id": None, "last_id": None}
        return web.json_response({"data": found, "has_more": False, **ends})

    async def cancel_messages(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        batch.status = "cancelling"
        return web.json_response(self._to_anthropic(batch))

    async def results(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        lines = [json.dumps(_anthropic_line(each)) for each in [*batch.results, *batch.errors]]
        return web.Response(text="".join(f"{line}\n" for line in lines))

    async def message(self, request: web.Request) -> web.Response:
        return await self.respond(request)

    def routes(self) -> Iterator[web.RouteDef]:
        yield web.post("/v1/files", self.create_file)
        yield web.get("/v1/files/{id}/content", self.content)
        yield web.post("/v1/batches", self.create_batch)
        yield web.get("/v1/batches", self.list_batches)
        yield web.get("/v1/batches/{id}", self.retrieve)
        yield web.post("/v1/batches/{id}/cancel", self.cancel)
        yield web.post("/v1/responses", self.respond)
        yield web.post("/v1/chat/completions", self.respond)
        yield web.post("/v1/messages", self.message)
        yield web.post("/v1/messages/batches", self.create_messages)
        yield web.get("/v1/messages/batches", self.list_messages)
        yield web.get("/v1/messages/batches/{id}", self.retrieve_messages)
        yield web.post("/v1/messages/batches/{id}/cancel", self.cancel_messages)
        yield web.get("/v1/messages/batches/{id}/results", self.results)

    @web.middleware
    async def around(self, request: web.Request, handler: Any) -> web.StreamResponse:
        what = f"{request.method} {request.path}"
        self.headers.append(request.headers)
        self.paths.append(request.path)
        self.at("before", what)
        response = await handler(request)
        self.at("after", what)
        return response


def _openai_line(result: dict[str, Any]) -> dict[str, Any]:
    name, kind = result["custom_id"], result["kind"]
    line: dict[str, Any] = {"id": f"r_{name}", "custom_id": name, "response": None, "error": None}
    if kind == "answer":
        line["response"] = {"status_code": 200, "request_id": "q", "body": result["body"]}
    elif kind == "error":
        error = {"error": {"message": "The server had an error", "type": "server_error"}}
        line["response"] = {"status_code": 500, "request_id": "q", "body": error}
    else:
        line["error"] = {"code": f"batch_{kind}", "message": f"This request was {kind}."}
    return line


def _anthropic_line(result: dict[str, Any]) -> dict[str, Any]:
    name, kind = result["custom_id"], result["kind"]
    if kind == "answer":
        found: dict[str, Any] = {"type": "succeeded", "message": result["body"]}
    elif kind in ("error", "invalid"):
        error = {"type": "api_error", "message": "Internal server error"}
        if kind == "invalid":
            error = {"type": "invalid_request_error", "message": "max_tokens: too large"}
        found = {"type": "errored", "error": {"type": "error", "error": error}}
    else:
        found = {"type": "canceled" if kind == "cancelled" else kind}
    return {"custom_id": name, "result": found}


@contextmanager
def imitation(answer: Answer = echo) -> Iterator[Imitation]:
    """Answers while inside."""
    found = Imitation(answer)
    app = web.Application(client_max_size=1 << 30, middlewares=[found.around])
    for prefix, version in (("", "/v1"), ("/openai", "/v1"), ("/openai", "")):
        for route in found.routes():
            path = prefix + route.path.replace("/v1", version, 1)
            app.router.add_route(route.method, path, route.handler)
    with served(app) as url:
        found.url = f"{url}/v1"
        yield found
