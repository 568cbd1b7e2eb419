"""Roots from Dockerfiles, users, and the hosts that a session reaches."""

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harbor_folders import PYTHON
from support import NO_NAMESPACES, may_isolate

from rollout_kit.serving.sandbox.roots.bases import find_base
from rollout_kit.serving.sandbox.roots.build import build_root
from rollout_kit.serving.sandbox.roots.dockerfile import read_dockerfile
from rollout_kit.serving.sandbox.session.allowed import is_allowed, reaching
from rollout_kit.serving.sandbox.session.client import Sessions

pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, text: str, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(f"FROM {PYTHON}\n{text}")
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder / "Dockerfile"


def test_a_root_is_built_once_and_again_when_a_file_changes(tmp_path: Path) -> None:
    said: list[str] = []

    async def build(path: Path) -> tuple[str, bool, int]:
        say = lambda text, **_: said.append(text)  # noqa: E731
        root = await build_root(read_dockerfile(path), {}, (), say)
        return root.digest, root.was_cached, len(root.layers)

    async def main() -> None:
        path = write(tmp_path / "a", "RUN echo 1 > /one\nCOPY two /two\n", two="2")
        first, again = await build(path), await build(path)
        assert first == (first[0], False, 2) and again == (first[0], True, 2)
        number = len([each for each in said if " built in " in each])
        changed = await build(write(tmp_path / "a", "RUN echo 1 > /one\nCOPY two /two\n", two="3"))
        assert changed[0] != first[0] and changed[2] == 2
        assert len([each for each in said if " built in " in each]) == number + 1

    asyncio.run(main())


def list_files(folder: Path) -> list[str]:
    return sorted(str(each) for each in folder.rglob("*"))


def test_many_sessions_share_a_root_that_none_of_them_changes(tmp_path: Path, cache: Path) -> None:
    async def main() -> None:
        path = write(tmp_path / "a", "RUN mkdir /d && echo 1 > /d/one && rm /etc/services\n")
        root = await build_root(read_dockerfile(path), {}, (), lambda text, **_: None)
        before = list_files(cache)
        async with (
            Sessions(layers=root.layers) as sessions,
            sessions.session() as one,
            sessions.session() as two,
        ):
            await one.exec("echo x > /d/one; rm -rf /d; echo 1 > /etc/services")
            found = await two.exec("cat /d/one; ls /etc/services")
            assert found.stdout == "1\n" and "No such file" in found.stderr
        assert list_files(cache) == before

    asyncio.run(main())


def test_no_program_of_a_root_changes_its_user_on_this_machine(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a", "RUN cp /bin/sh /s && chmod 6755 /s && ln -s /etc/shadow /l\n")
    asyncio.run(build_root(read_dockerfile(path), {}, (), lambda text, **_: None))
    [found] = cache.rglob("tree/s")
    assert found.stat().st_mode & 0o7000 == 0
    assert (cache / "rollout_kit/roots").stat().st_mode & 0o077 == 0


def test_a_user_of_a_session_has_no_rights_of_root() -> None:
    async def main() -> None:
        async with Sessions() as sessions, sessions.session() as session:
            await session.exec(
                "mkdir -m 777 /work; echo x > /work/of-root; chmod 600 /work/of-root"
            )
            session.user = "nobody"
            found = await session.exec("id -u; cat /work/of-root; touch /etc/x; touch /work/mine")
            assert found.stdout == "65534\n"
            assert found.stderr.count("Permission denied") == 2
            await session.write_bytes("/work/by-call", b"x")
            session.user = "nobody-else"
            found = await session.exec("true")
            assert "there is no user 'nobody-else'" in found.stderr
            session.user = ""
            found = await session.exec("stat -c %U /work/mine /work/by-call")
            assert found.stdout == "nobody\nnobody\n"

    asyncio.run(main())


@pytest.fixture
def site() -> Iterator[int]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"hello from {self.path}".encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


ASK = (
    "import sys, urllib.request as r\n"
    "opener = r.build_opener(r.ProxyHandler({'http': sys.argv[1]}))\n"
    "print(opener.open(sys.argv[2], timeout=20).read().decode())"
)


def test_a_session_reaches_hosts_by_name_and_no_others(site: int) -> None:
    async def main() -> None:
        async with Sessions() as sessions, sessions.session() as session:
            await session.write_bytes("/ask.py", ASK.encode())

            async def ask(given: dict[str, str], url: str) -> str:
                command = f"python3 /ask.py {given['http_proxy']} {url}"
                done = await session.exec(command)
                return done.stdout + done.stderr

            async with reaching(session, ["localhost"]) as given:
                assert "hello from /a?b" in await ask(given, f"'http://localhost:{site}/a?b'")
                assert "403" in await ask(given, f"http://127.0.0.1:{site}/")
                assert "403" in await ask(given, "http://example.org/")
                proxy = given["http_proxy"].rpartition(":")[2]
                tunnel = (
                    f"exec 3<>/dev/tcp/127.0.0.1/{proxy}; printf 'CONNECT localhost:{site}"
                    " HTTP/1.1\\r\\n\\r\\nGET /t HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
                )
                assert "hello from /t" in (await session.exec(tunnel)).stdout
            assert "hello" not in await ask(given, f"http://localhost:{site}/")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        ("a.org", ["a.org"], True),
        ("A.org.", ["a.org"], True),
        ("b.a.org", ["a.org"], False),
        ("b.a.org", ["*.a.org"], True),
        ("a.org", ["*.a.org"], False),
        ("xa.org", ["*.a.org"], False),
        ("10.0.0.7", ["10.0.0.0/8"], True),
        ("11.0.0.7", ["10.0.0.0/8"], False),
        ("[::1]", ["::1"], True),
        ("a.org", ["*"], True),
        ("a.org", [], False),
    ],
)
def test_a_host_matches_an_entry_as_a_whole(host: str, allowed: list[str], expected: bool) -> None:
    assert is_allowed(host, allowed) is expected


def test_an_image_is_a_folder_that_the_owner_names(tmp_path: Path) -> None:
    assert find_base("a/b:1", {"a/b": str(tmp_path)}).folder == tmp_path
    assert find_base("swe:1", {"swe": "machine"}).folder is None
    for image, why in (
        ("alpine", "there is no alpine here"),
        ("python:3.9", "Debian has no python 3.9"),
        ("debian:3", "Debian has no debian 3"),
    ):
        with pytest.raises(ValueError, match=why):
            find_base(image, {})


def test_the_command_says_what_was_built_and_what_was_kept(tmp_path: Path) -> None:
    write(tmp_path / "a", "RUN echo hello > /one\n")
    run = (
        "import sys; from rollout_kit.commands import entry; entry.main(sys.argv[1], sys.argv[2:])"
    )
    argv = [sys.executable, "-c", run, "ng_build_root", str(tmp_path / "a")]
    done = [subprocess.run(argv, capture_output=True, text=True) for _ in range(2)]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr
    assert "Dockerfile:2: RUN" in done[0].stderr and ": built, 0.0 MB" in done[0].stdout
    assert not done[1].stderr and ": from the cache, 0.0 MB" in done[1].stdout
    found = subprocess.run([*argv, "+json=true"], capture_output=True, text=True)
    assert json.loads(found.stdout)[0]["cached"] is True
