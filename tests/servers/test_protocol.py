"""docs/protocol.md is true: its examples are played against real services, its servers are run."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from endpoint import Endpoint, endpoint, says
from support import asked, read_jsonl, write_jsonl
from workplace import ROOT, Workplace

from rollout_kit.api.testing import ScriptedModel, call_response, making, text_response
from rollout_kit.config.keys import HeadServerConfig
from rollout_kit.errors import BY_NAME, TRANSIENT, ModelError, from_wire
from rollout_kit.launch.head_server import HeadServer
from rollout_kit.launch.placement import Server
from rollout_kit.launch.run import RunIdentity
from rollout_kit.responses import function_calls, input_items
from rollout_kit.serving import registry
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.app import served
from rollout_kit.serving.transport.http import HttpClient, Reply
from rollout_kit.serving.transport.peers import Http, Peers, Transport
from rollout_kit.serving.transport.wire import RESERVED
from rollout_kit.types import JsonObject

DOCUMENT = (ROOT / "docs/protocol.md").read_text()
ANY = "…"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)


def rows_of_table(header: str) -> list[list[str]]:
    """The cells of each row of the table whose header begins so."""
    _, _, rest = DOCUMENT.partition(f"\n| {header}")
    lines = rest.splitlines()[2:]
    table = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@dataclass
class Example:
    """One ```http block: a request, and the reply that the document promises."""

    method: str
    url: str
    headers: dict[str, str]
    body: str
    status: int
    reply_headers: dict[str, str]
    reply: Any

    @classmethod
    def of(cls, block: str) -> "Example":
        request, status, reply = re.split(r"^(\d{3})$", block, flags=re.MULTILINE)
        head, _, body = request.strip().partition("\n\n")
        first, *lines = head.splitlines()
        method, url = first.split()
        before, bracket, after = re.split(r"^([\[{\"])", reply.strip(), maxsplit=1, flags=re.M)
        return cls(
            method,
            url,
            _headers(lines),
            body,
            int(status),
            _headers(before.split("\n")),
            json.loads(bracket + after),
        )


def _headers(lines: list[str]) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in lines if line)


def test_the_document_shows_every_kind_of_server_and_every_route() -> None:
    """So that the next test cannot pass for want of examples."""
    shown = {(each.method, urlsplit(each.url).path) for each in map(Example.of, blocks("http"))}
    routes = {
        (route.method, route.path)
        for kind, name in (
            ("resources_servers", "example_session_state_mgmt"),
            ("responses_api_agents", "simple_agent"),
        )
        for route in registry.load(kind, name).routes.values()
    } | {(route.method, route.path) for route in ScriptedModel.routes.values()}
    assert routes <= shown, routes - shown
    named = set(re.findall(r"`(GET|POST) (/[\w/]*)`", DOCUMENT))
    assert routes <= named, routes - named


def answer(params: JsonObject) -> JsonObject:
    """Asked to add, it calls the tool for it; else it just answers."""
    asked_for = input_items(params)
    if asked_for[0]["content"] != "Add 3.":
        return text_response("6")
    if not function_calls(asked_for):
        return call_response(("increment_counter", '{"count": 3}'))
    return text_response("It stands at 6.")


@asynccontextmanager
async def the_servers(state: Path) -> AsyncIterator[tuple[dict[str, str], HttpClient]]:
    """The document's servers on real sockets: their URLs by name, and a client."""
    counter = registry.load("resources_servers", "example_session_state_mgmt")
    agent = registry.load("responses_api_agents", "simple_agent")
    wiring = {"resources_server": {"name": "counter"}, "model_server": {"name": "policy_model"}}
    makers = {
        "policy_model": lambda peers, name: ScriptedModel(answer, peers, name),
        "counter": making(counter),
        "agent": making(agent, **wiring),
    }
    async with AsyncExitStack() as stack:
        client = HttpClient()
        stack.push_async_callback(client.close)
        sockets = {name: bound_socket("127.0.0.1", 0) for name in makers}
        urls = {name: url_of(sock) for name, sock in sockets.items()}
        transports: dict[str, Transport] = {
            name: Http(name, [url], client) for name, url in urls.items()
        }
        for name, make in makers.items():
            app = make(Peers(transports), name).build_app()
            await stack.enter_async_context(served(app, sockets[name]))
        listed = Server("counter", counter.kind, "example_session_state_mgmt", [urls["counter"]])
        run = RunIdentity("run", "the-token-of-this-run")
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_STATE_HOME", str(state))
        head = HeadServer(run, HeadServerConfig(port=0), {"counter": {}}, lambda: None)
        await stack.enter_async_context(head)
        head.announce([listed])
        yield {**urls, "head": head.url}, client


def test_every_exchange_goes_as_the_document_says(tmp_path: Path) -> None:
    examples = [Example.of(block) for block in blocks("http")]

    async def main() -> None:
        cookie = ""
        async with the_servers(tmp_path) as (urls, client):
            for example in examples:
                parts = urlsplit(example.url)
                url = urls[parts.netloc] + parts.path
                headers = dict(example.headers)
                if "cookie" in headers:
                    headers["cookie"] = cookie
                reply = await (
                    client.get(url, headers=headers)
                    if example.method == "GET"
                    else client.post(url, example.body.encode(), headers=headers)
                )
                cookie = reply.headers.get("set-cookie", cookie).partition(";")[0]
                check(example, reply)

    asyncio.run(main())


def check(example: Example, reply: Reply) -> None:
    what = f"{example.method} {example.url} answered {reply.status}: {reply.text()}"
    assert reply.status == example.status, what
    found = json.loads(reply.raw)
    assert matches(example.reply, found), f"{what}\nand not: {json.dumps(example.reply)}"
    for name, wanted in example.reply_headers.items():
        pattern = re.escape(wanted).replace(re.escape(ANY), ".+")
        assert re.match(pattern, reply.headers.get(name, "")), what


def matches(wanted: Any, found: Any) -> bool:
    if wanted == ANY:
        return True
    if isinstance(wanted, dict) and isinstance(found, dict):
        names = wanted.keys() - {ANY}
        enough = names <= found.keys() if ANY in wanted else names == found.keys()
        return enough and all(matches(wanted[name], found[name]) for name in names)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(matches, wanted, found))
    return type(wanted) is type(found) and wanted == found


def test_a_difference_from_the_document_is_seen() -> None:
    wanted = {"a": [1, ANY], ANY: ANY}
    assert matches(wanted, {"a": [1, 2], "b": 3})
    for found in ({}, {"a": [1]}, {"a": [2, 2]}, {"a": 1}, {"a": [True, 2]}):
        assert not matches(wanted, found)
    assert not matches({"a": 1}, {"a": 1, "b": 2})


def test_the_tables_of_errors_and_of_reserved_names_are_complete() -> None:
    table = {cells[0].strip("`"): int(cells[1]) for cells in rows_of_table("`type` | status")}
    assert table == {name: kind.default_status for name, kind in BY_NAME.items()}
    [transient] = re.findall(r"by default true for the status ([\d, and\n]+)\)", DOCUMENT)
    assert {int(number) for number in re.findall(r"\d+", transient)} == TRANSIENT
    [names] = re.findall(
        r"^The names (.*?) cannot\s+be\s+tools", DOCUMENT, re.DOTALL | re.MULTILINE
    )
    assert set(re.findall(r"`(\w+)`", names)) == RESERVED


def test_the_refusal_shown_is_read_with_all_that_it_says() -> None:
    [refusal] = blocks("json refusal")
    error = from_wire("judge", 503, json.loads(refusal), refusal)
    assert isinstance(error, ModelError)
    assert (error.status, error.retryable, error.retry_after_s) == (429, True, 20)
    assert str(error) == "judge: too many requests"


Foreign = Callable[[str, dict[str, str], JsonObject], tuple[int, dict[str, str], JsonObject]]
"""From a POST's path, headers and body to status, headers and reply."""


@contextmanager
def foreign(answer: Foreign) -> Iterator[str]:
    """A server that is none of ours and knows no GET; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, headers, reply = answer(self.path, dict(self.headers), body)
            raw = json.dumps(reply).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(raw))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with endpoint(says(asked)) as found:
        yield found


def collected_by_foreign_agent(folder: Path, model: Endpoint, reply: JsonObject) -> Workplace:
    place = Workplace(folder, model)
    block = "harness: {responses_api_agents: {harness: {placement: '%s'}}}\n"
    write_jsonl(folder / "tasks.jsonl", [{"responses_create_params": {"input": "Add 3."}}])
    with foreign(lambda path, headers, body: (200 if path == "/run" else 404, {}, reply)) as url:
        (folder / "run.yaml").write_text(block % url)
        place.status, place.said = place.collect("+max_attempts=1")
    return place


def test_a_verified_row_of_an_opaque_agent_is_kept_with_all_it_adds(
    tmp_path: Path, model: Endpoint
) -> None:
    [block] = blocks("json verified")
    place = collected_by_foreign_agent(tmp_path, model, json.loads(block))
    assert place.status == 0, place.said
    [line] = place.lines()
    assert (line["reward"], line["num_moves"]) == (1.0, 4)
    assert line["response"]["output"] == json.loads(block)["response"]["output"]
    assert line["rollout"]["scores"] == ["num_moves"]


def test_a_response_without_a_verdict_of_an_opaque_agent_is_kept_unverified(
    tmp_path: Path, model: Endpoint
) -> None:
    [block] = blocks("json unverified")
    place = collected_by_foreign_agent(tmp_path, model, json.loads(block))
    assert place.status == 2, place.said
    assert place.lines() == []
    [parked] = place.lines("unverified")
    assert parked["response"] == json.loads(block)["response"]
    assert "the judge did not answer" in place.said


def adds_up(body: JsonObject) -> tuple[int, JsonObject]:
    """Calls `add` for each number of the question, one a turn."""
    numbers = body["input"][0]["content"].split()
    made = len(function_calls(body["input"]))
    if made == len(numbers):
        return 200, text_response(body["input"][-1]["output"])
    return 200, call_response(("add", f'{{"number": {numbers[made]}}}'))


def test_the_server_in_plain_python_is_collected_through(tmp_path: Path) -> None:
    [source] = [block for block in blocks("python") if "ThreadingHTTPServer" in block]
    [config] = [block for block in blocks("yaml") if "sums:" in block]
    (tmp_path / "sums.py").write_text(source)
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"{number} 5 7"}]},
            "number": number,
            "target": number + 12 + (number % 4 == 0),
        }
        for number in range(20)
    ]
    bad = {"responses_create_params": {"input": "?"}, "target": "many"}
    command = [sys.executable, "sums.py", "0"]
    with endpoint(adds_up) as hosted:
        place = Workplace(tmp_path, hosted)
        write_jsonl(tmp_path / "tasks.jsonl", [*rows, bad])
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().strip()
                assert "http://127.0.0.1:9000" in config
                model = "responses_api_models/openai_model/configs/openai_model.yaml"
                text = config.replace("http://127.0.0.1:9000", url)
                (tmp_path / "run.yaml").write_text(f"config_paths: [{model}]\n{text}")
                status, said = place.collect("+num_samples_in_parallel=4")
            finally:
                server.kill()
    assert status == 2, said
    rewards = {line["number"]: line["reward"] for line in place.lines()}
    assert rewards == {number: float(number % 4 != 0) for number in range(20)}
    assert all(line["sum"] == int(output_of(line)["sum"]) for line in place.lines())
    [failure] = read_jsonl(tmp_path / "out/rollouts.d/failures.jsonl")
    assert failure["failure"]["class"] == "TaskError" and failure["failure"]["terminal"]
    assert "a row needs a number 'target'" in failure["failure"]["message"]


def output_of(line: JsonObject) -> JsonObject:
    """What the last tool call of a rollout gave."""
    return json.loads(line["response"]["output"][-2]["output"])


class GymCounter:
    """A counter as NeMo Gym serves it: its session is a cookie that each reply renews, its rows
    are checked when they are verified, and it has no route that it does not need."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.num_replies = 0

    def __call__(
        self, path: str, headers: dict[str, str], body: JsonObject
    ) -> tuple[int, dict[str, str], JsonObject]:
        self.num_replies += 1
        _, _, cookie = headers.get("cookie", "").partition("Counter___counter=")
        session = cookie.partition(".")[0] or f"session{self.num_replies}"
        renewed = {
            "set-cookie": f"Counter___counter={session}.{self.num_replies}; path=/; httponly"
        }
        if path == "/seed_session":
            self.counts[session] = body["initial_count"]
            return 200, renewed, {}
        if path == "/increment_counter":
            self.counts[session] += body["count"]
            return 200, renewed, {"success": True}
        if path == "/verify":
            if not isinstance(body["expected_count"], int):
                return 422, renewed, {"detail": [{"loc": ["body", "expected_count"], "msg": "no"}]}
            reward = float(self.counts[session] == body["expected_count"])
            return 200, renewed, {**body, "reward": reward}
        return 404, {}, {"detail": "Not Found"}


def test_a_resources_server_that_knows_only_nemo_gym_s_routes_is_collected_through(
    tmp_path: Path,
) -> None:
    tools = [{"type": "function", "name": "increment_counter", "parameters": {}}]
    rows = [
        {
            "responses_create_params": {
                "input": [{"role": "user", "content": f"{number} 2"}],
                "tools": tools,
            },
            "initial_count": 100,
            "expected_count": 102 + number + (number % 5 == 0),
            "number": number,
        }
        for number in range(30)
    ]

    def increments(body: JsonObject) -> tuple[int, JsonObject]:
        steps = body["input"][0]["content"].split()
        made = len(function_calls(body["input"]))
        if made == len(steps):
            return 200, text_response("done")
        return 200, call_response(("increment_counter", f'{{"count": {steps[made]}}}'))

    with endpoint(increments) as model, foreign(GymCounter()) as url:
        place = Workplace(tmp_path, model)
        write_jsonl(tmp_path / "tasks.jsonl", [*rows, {**rows[0], "expected_count": "many"}])
        (tmp_path / "run.yaml").write_text(
            "config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]\n"
            f"counter: {{resources_servers: {{counter: {{placement: '{url}'}}}}}}\n"
        )
        status, said = place.collect("+num_samples_in_parallel=4")
    assert status == 2, said
    rewards = {line["number"]: line["reward"] for line in place.lines()}
    assert rewards == {number: float(number % 5 != 0) for number in range(30)}
    [failure] = read_jsonl(tmp_path / "out/rollouts.d/failures.jsonl")
    assert failure["failure"]["status"] == 422


def test_a_model_server_that_knows_only_its_responses_is_collected_through(
    tmp_path: Path, model: Endpoint
) -> None:
    place = Workplace(tmp_path, model)
    place.tasks(5)
    url = model.url.removesuffix("/v1")
    (tmp_path / "run.yaml").write_text(
        f"policy_model: {{responses_api_models: {{m: {{placement: '{url}'}}}}}}\n"
        "echo: {resources_servers: {echo: {}}}\n"
    )
    status, said = place.collect()
    assert status == 0, said
    assert [line["reward"] for line in place.lines()] == [1.0] * 5
