"""Who is let in: a page in a browser is not, nor another machine without the run's token."""

import asyncio
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp import web
from endpoint import endpoint, says
from support import Echo, asked
from workplace import Workplace

from rollout_kit.api.testing import making
from rollout_kit.config.keys import HeadServerConfig
from rollout_kit.errors import ConfigError
from rollout_kit.launch import head_client as head
from rollout_kit.launch.head_client import IDENTITY, HeadClient
from rollout_kit.launch.head_server import HeadServer
from rollout_kit.launch.run import RunIdentity, keep_token, read_token
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.app import served
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.peer_user import find_user
from rollout_kit.serving.transport.peers import Peers

TOKEN = "a-token-of-some-length"

JSON = {"content-type": "application/json"}

ROW = {"responses_create_params": {"input": "hi"}, "expected": "hi"}


class Answer(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]


def asked_of(host: str, *requests: tuple[str, str, Any, dict[str, str]]) -> list[Answer]:
    """What a server that listens on `host` answers to (method, path, body, headers)."""

    async def main() -> list[Answer]:
        sock = bound_socket(host, 0)
        service = making(Echo)(Peers({}), "echo")
        answers = []
        async with served(service.build_app(), sock, TOKEN), aiohttp.ClientSession() as client:
            base = f"http://127.0.0.1:{sock.getsockname()[1]}"
            for method, path, body, headers in requests:
                data = None if body is None else json.dumps(body)
                async with client.request(method, base + path, data=data, headers=headers) as reply:
                    text = await reply.text()
                    answers.append(Answer(reply.status, text, dict(reply.headers)))
        return answers

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"host": "localhost:9999"}, 200),
        ({"host": "[::1]"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example:80"}, 403),
        ({"host": ""}, 403),
        # what a page may post across origins without being asked for permission
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
    ],
)
def test_a_web_page_cannot_post_to_a_server_on_loopback(
    headers: dict[str, str], status: int
) -> None:
    headers = {**JSON, **headers}
    [answer] = asked_of("127.0.0.1", ("POST", "/seed_session", ROW, headers))
    assert answer.status == status, answer.text
    if status != 200:
        error = json.loads(answer.text)["error"]
        assert error["status"] == status and error["message"]


def test_the_permission_that_a_page_would_ask_for_is_not_given() -> None:
    asks = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    [answer] = asked_of("127.0.0.1", ("OPTIONS", "/verify", None, asks))
    assert answer.status >= 400
    assert not any(name.lower().startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [(f"Bearer {TOKEN}", 200), ("Bearer wrong", 401), (TOKEN + "x", 401), (None, 401), ("é", 401)],
)
def test_beyond_loopback_every_route_but_health_asks_for_the_token(
    authorization: str | None, status: int
) -> None:
    shown = {"authorization": authorization} if authorization else {}
    headers = {"host": "node17:1", **JSON, **shown}
    seeded, tools, health = asked_of(
        "0.0.0.0",
        ("POST", "/seed_session", ROW, headers),
        ("GET", "/tools", None, headers),
        ("GET", "/health", None, headers),
    )
    assert seeded.status == tools.status == status
    assert health.status == 200 and ("server" in json.loads(health.text)) == (status == 200)


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(says(asked)) as model:
        yield Workplace(tmp_path, model)


def test_a_run_beyond_loopback_is_used_with_its_token_and_by_nobody_else(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(workplace.folder / "state"))
    workplace.tasks(5)
    through = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
    with workplace.ng_run("+default_host=0.0.0.0") as (_, port, said):
        through.append(f"+head_server.port={port}")
        code, output = workplace.run("collect_rollouts", *through)
        assert code == 0 and len(workplace.lines()) == 5, output
        code, output = workplace.run("status", f"+head_server.port={port}")
        assert code == 0 and output.count("idle") == 3, output
        urls = [word for word in said.split() if word.startswith("http://127") and "." in word]
        for url in urls[:3]:
            assert _status_of(f"{url}/run") == 401
        monkeypatch.setenv("XDG_STATE_HOME", str(workplace.folder / "another_user"))
        code, output = workplace.run("collect_rollouts", *through, "+num_repeats=2")
        assert code == 1 and "the same auth_token in env.yaml" in output, output


def test_a_token_of_one_s_own_opens_the_run_from_another_place(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (workplace.folder / "env.yaml").open("a") as env:
        env.write(f"auth_token: {TOKEN}\n")
    workplace.tasks(5)
    through = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
    with workplace.ng_run("+default_host=0.0.0.0") as (_, port, said):
        monkeypatch.setenv("XDG_STATE_HOME", str(workplace.folder / "another_machine"))
        through.append(f"+head_server.port={port}")
        code, output = workplace.run("collect_rollouts", *through)
        assert code == 0 and len(workplace.lines()) == 5, output
        [url] = [word for word in _line(said, "/echo ").split() if "://" in word]
        config = (workplace.folder / "run.yaml").read_text()
        placed = f"echo: {{resources_servers: {{echo: {{placement: '{url}', token: {TOKEN}}}}}}}"
        here = config.replace("echo: {resources_servers: {echo: {}}}", placed)
        (workplace.folder / "run.yaml").write_text(here)
        code, output = workplace.collect("+resume=fresh")
        assert code == 0 and len(workplace.lines()) == 5, output


NOBODY = 65_534

as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/net/tcp").exists(), reason="only root can be another user"
)


def status_as(user: int, url: str, path: str, body: str | None, headers: dict[str, str]) -> int:
    """The status of a request over a socket of this user."""
    client = http.client.HTTPConnection(url.removeprefix("http://"))
    family = socket.AF_INET6 if "[" in url else socket.AF_INET
    os.seteuid(user)
    try:
        client.sock = socket.socket(family)
    finally:
        os.seteuid(0)
    client.sock.connect((client.host, client.port))
    with closing(client):
        client.request("POST" if body else "GET", path, body, {**JSON, **headers})
        return client.getresponse().status


@as_root
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_another_user_of_the_machine_is_refused(workplace: Workplace, host: str) -> None:
    env = workplace.folder / "env.yaml"
    env.write_text(f"{env.read_text()}auth_token: {TOKEN}\n")
    with workplace.ng_run(f"+default_host={host.strip('[]')}") as (_, port, said):
        head = f"http://127.0.0.1:{port}"
        asked = json.dumps({"responses_create_params": {"input": "hi"}})
        routes = [(head, "/server_instances", None)]
        for name, path in (("policy_model", "/v1/models"), ("echo_agent", "/run")):
            [url] = [word for word in _line(said, f"{name} ").split() if "://" in word]
            routes.append((url, path, asked if path == "/run" else None))
        token = {"authorization": f"Bearer {TOKEN}"}
        for url, path, body in routes:
            assert status_as(NOBODY, url, path, body, {}) == 401, path
            assert status_as(NOBODY, url, path, body, {"authorization": "Bearer x"}) == 401
            assert status_as(0, url, path, body, {}) == 200, path
            assert status_as(NOBODY, url, path, body, token) == 200, path
            assert status_as(NOBODY, url, "/health", None, {}) == 200
        config = "/global_config_dict_yaml"
        assert status_as(NOBODY, head, config, None, {}) == 401
        assert status_as(0, head, config, None, {}) == 200, "its secrets are masked"
        assert status_as(0, head, config, None, token) == 200


def test_a_socket_that_speaks_both_protocols_is_known_by_its_user() -> None:
    with (
        bound_socket("127.0.0.1", 0) as listener,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client,
    ):
        listener.listen()
        client.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        connection, _ = listener.accept()
        with connection:
            assert find_user(connection) == os.geteuid()
            client.close()
            assert find_user(connection) is None, "who has left is nobody"
    assert find_user(listener) is None


def _line(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


def _status_of(url: str) -> int:
    headers = {"content-type": "application/json"}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, b"{}", headers)).status
    except urllib.error.HTTPError as error:
        return error.code


def test_tokens_of_runs_that_were_killed_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = "http://127.0.0.1:11000"
    with keep_token(RunIdentity("one", "t1"), url):
        stale: dict[str, Any] = json.loads((tmp_path / "rollout_kit/runs/one.json").read_text())
    dead = tmp_path / "rollout_kit/runs/dead.json"
    dead.write_text(json.dumps({**stale, "pid": 2**22 + 1}))
    (tmp_path / "rollout_kit/runs/cut.json").write_text("{")
    with keep_token(RunIdentity("two", "t2"), url):
        assert not dead.exists() and read_token("two", "http://localhost:11000") == "t2"
        assert read_token("two", "http://127.0.0.1:11001") == "", "another's address"
    assert read_token("two", url) == read_token("cut", url) == ""
    assert read_token("../../secret", url) == ""


def test_no_token_is_sent_to_who_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger who listens where a run is looked for, and tells the id of a run elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    seen: list[str] = []
    hello = {"status": "ok", "service": IDENTITY, "run_id": "one", "proof": "0" * 64}

    async def answer(request: web.Request) -> web.Response:
        seen.append(str(request.headers))
        return web.json_response(hello)

    async def main(token: str | None) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        sock = bound_socket("127.0.0.1", 0)
        await web.SockSite(runner, sock).start()
        client = HttpClient()
        try:
            where = HeadServerConfig(port=sock.getsockname()[1])
            with keep_token(RunIdentity("one", TOKEN), url_of(sock)):
                head = await HeadClient.at(where, client, token)
            assert head.token == ""
            with pytest.raises(ConfigError):
                await head.instances()
            await head.stop()
        finally:
            await client.close()
            await runner.cleanup()

    asyncio.run(main(None))
    asyncio.run(main(TOKEN))
    assert len(seen) == 6 and TOKEN not in "".join(seen)


def test_no_token_is_sent_through_a_relay_at_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`localhost` may be [::1], where another user can listen and pass everything on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    seen: list[bytes] = []

    async def main() -> None:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)

            async def pump() -> None:
                while piece := await there.read(4096):
                    writer.write(piece)

            answering = asyncio.create_task(pump())
            while piece := await reader.read(4096):
                seen.append(piece)
                back.write(piece)
            back.close()
            await answering
            writer.close()

        with bound_socket("127.0.0.1", 0) as sock:
            port = sock.getsockname()[1]
        where = HeadServerConfig(port=port)
        run = RunIdentity("one", TOKEN)
        client = HttpClient()
        async with (
            HeadServer(run, where, {}, lambda: None) as real,
            await asyncio.start_server(relay, "::1", port),
        ):
            real.announce([])
            straight = await HeadClient.at(where, client, None)
            assert straight.token == TOKEN and await straight.values() == {}
            relayed = await HeadClient.at(where.model_copy(update={"host": "::1"}), client, TOKEN)
            assert relayed.token == ""
            both = [("::1", port), ("127.0.0.1", port)]
            monkeypatch.setattr(head, "_resolve", AsyncMock(return_value=both))
            found = await HeadClient.at(where, client, TOKEN)
            assert found.token == TOKEN and found.url == f"http://127.0.0.1:{port}"
            await client.close()

    asyncio.run(main())
    assert seen and TOKEN.encode() not in b"".join(seen)
