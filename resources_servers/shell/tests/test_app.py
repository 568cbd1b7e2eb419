"""The tools as the policy meets them, each kind of verifier, and what is kept of a session."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import NO_NAMESPACES, container_keys, may_isolate

from rollout_kit.api.testing import making, mount
from rollout_kit.errors import RolloutError
from rollout_kit.serving import registry
from rollout_kit.session import Session, entered

pytestmark = pytest.mark.skipif(not (may_isolate() or container_keys()), reason=NO_NAMESPACES)

SHELL = registry.load("resources_servers", "shell")

ROW: dict[str, Any] = {
    "responses_create_params": {"input": "do it"},
    "files": {"/work/a.txt": "one\ntwo\n"},
    "verifier": {"kind": "files", "expected": {"/work/a.txt": "one\n2\n"}},
}


def play(calls: list[tuple[str, dict[str, Any]]], row: dict[str, Any] = ROW, **keys: Any) -> Any:
    """What the tools reply, and the verdict."""

    async def main() -> Any:
        replies = []
        async with mount({"shell": making(SHELL, **container_keys(), **keys)}) as peers:
            with entered(Session()):
                await peers.call("shell", "/seed_session", row, dict)
                for name, arguments in calls:
                    try:
                        replies.append(await peers.call("shell", f"/{name}", arguments, str))
                    except RolloutError as error:
                        replies.append(f"error: {error.message}")
                verdict = await peers.call(
                    "shell", "/verify", {**row, "response": {"output": []}}, dict
                )
                await peers.call("shell", "/close_session", {}, dict)
        return replies, verdict

    return asyncio.run(main())


def test_each_tool_replies_in_words_that_a_policy_can_use() -> None:
    replies, verdict = play(
        [
            ("exec", {"command": "cat a.txt; echo oh >&2; exit 4"}),
            ("exec", {"command": "sleep 60", "timeout_s": 0.2}),
            ("read_file", {"path": "a.txt", "first_line": 1, "num_lines": 1}),
            ("edit", {"path": "a.txt", "old": "three", "new": "3"}),
            ("edit", {"path": "a.txt", "old": "two", "new": "2"}),
            ("write_file", {"path": "b/c", "content": "x"}),
            ("open_terminal", {"name": "t", "command": "cat"}),
            ("send_keys", {"name": "t", "text": "hello"}),
            ("read_terminal", {"name": "t", "wait_for": "hello\nhello", "timeout_s": 60}),
            ("close_terminal", {"name": "t"}),
            ("read_terminal", {"name": "t"}),
            ("snapshot", {"name": "s"}),
            ("restore", {"name": "none"}),
            ("restore", {"name": "s"}),
            ("diff", {"path": "/work/a.txt"}),
        ]
    )
    assert replies[:8] == [
        "one\ntwo\n[stderr]\noh\n[exit status 4]",
        "[killed at its time limit of 0.2 s]",
        "one\n[1 more lines]",
        "error: a.txt does not contain the text to replace",
        "replaced 1 time in a.txt",
        "wrote 1 bytes to b/c",
        "opened terminal 't'",
        "sent",
    ]
    assert "hello" in replies[8]
    assert replies[9:13] == [
        "closed terminal 't'",
        "error: there is no terminal 't'; open: none",
        "kept as 's'",
        "error: there is no snapshot 'none'; there are: s",
    ]
    assert replies[14].endswith(" one\n-two\n+2\n")
    assert verdict["reward"] == 1.0
    assert "+++ b/work/b/c" in verdict["patch"]


CHEATS = {
    "a fake test runner": "mkdir -p /opt/bin; printf '#!/bin/sh\nexit 0\n' > /opt/bin/test1; "
    "cp /opt/bin/test1 /usr/bin/cmp; cp /opt/bin/test1 /work/cmp",
    "a link in place of the tests": "rm -rf /verify; ln -s /work /verify",
    "a folder in place of the tests": "mkdir -p /verify/expected",
    "a file above the tests": "echo x > /verify",
    "a process that waits for the tests": "(setsid bash -c 'while :; do cp /verify/expected"
    " /work/a.txt 2>/dev/null; sleep 0.01; done' > /dev/null 2>&1 &)",
    "a start-up file": "echo 'cmp() { return 0; }' | tee -a /root/.bashrc /root/.profile"
    " /etc/profile /etc/bash.bashrc > /dev/null",
    "a link out of the kept folder": "ln -sf /verify/expected /work/a.txt",
    "a pipe that is never written": "rm a.txt; mkfifo a.txt",
    "the reward file": "mkdir -p /logs; echo 1 > /logs/reward",
    "a loop of links": "rm a.txt; ln -s a.txt a.txt",
}

HIDDEN = {
    **ROW,
    "verifier": {
        "kind": "command",
        "command": "mkdir -p /logs; [ ! -L /work/a.txt ] && cmp /work/a.txt /verify/expected"
        " && echo 1 > /logs/reward; true",
        "files": {"/verify/expected": "one\n2\n"},
        "reward_file": "/logs/reward",
    },
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_a_cheat_does_not_change_the_verdict(cheat: str) -> None:
    _, verdict = play([("exec", {"command": cheat})], HIDDEN)
    assert verdict["reward"] == 0.0, verdict


def test_the_policy_never_sees_the_files_of_the_verifier() -> None:
    find = "grep -rsl expected / --include='expected*' --exclude-dir=proc --exclude-dir=usr; ls /"
    replies, verdict = play(
        [("exec", {"command": find}), ("edit", {"path": "a.txt", "old": "two", "new": "2"})], HIDDEN
    )
    assert "verify" not in replies[0]
    assert verdict["reward"] == 1.0, verdict


def test_a_function_of_the_owner_may_verify(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def share(files, row):\n"
        "    return {'reward': files['/work/a.txt'].count('o') / 4, 'words': 2}\n"
    )
    row = {**ROW, "verifier": {"kind": "function", "name": "share", "paths": ["/work/a.txt"]}}
    _, verdict = play([], row, functions_fpath=path)
    assert (verdict["reward"], verdict["words"]) == (0.5, 2)
    with pytest.raises(RolloutError, match="there is no function 'share' in functions_fpath"):
        play([], row)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"files": {"work/a": "x"}}, "files"),
        ({"verifier": {"kind": "magic"}}, "verifier"),
        ({"setup": "echo oh >&2; exit 3"}, "setup ended with status 3: oh"),
        ({"environment": {"A=B": "x"}}, "not a name of an environment variable"),
        ({"workdir": "work"}, "workdir"),
    ],
)
def test_a_row_that_cannot_start_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(RolloutError, match=why):
        play([], {**ROW, **change})


def test_packed_files_have_the_start_too_as_another_one_would_not_fit_them() -> None:
    row = {
        **ROW,
        "files": {"/work/a": "1\n", "/work/gone": "x"},
        "setup": "git init -q; git config user.name me; git config user.email a@b; git add .;"
        " git commit -qm $(cat /proc/sys/kernel/random/uuid)",
    }
    program = {"host": "127.0.0.1", "port": 1, "time_limit_s": 60, "output_bytes": 4000}
    work = "echo 2 > a; rm gone; git commit -qam two; echo 3 > a; ln -s a link"
    look = (
        "git fsck --no-dangling && git log --oneline | wc -l && git status --short && cat a && ls"
    )

    async def main() -> Any:
        async with mount({"shell": making(SHELL, num_ready=0)}) as peers:
            found, packed = [], ""
            for command in (work, look):
                with entered(Session()):
                    await peers.call("shell", "/seed_session", row, dict)
                    body = {**program, "command": command, "files_packed": packed}
                    found.append(await peers.call("shell", "/run_program", body, dict))
                    asked = {"max_bytes": 1 << 20}
                    packed = (await peers.call("shell", "/pack_files", asked, dict))["files_packed"]
                    small = await peers.call("shell", "/pack_files", {"max_bytes": 1}, dict)
                    await peers.call("shell", "/close_session", {}, dict)
            with entered(Session()), pytest.raises(RolloutError, match="cannot be written"):
                await peers.call("shell", "/seed_session", row, dict)
                await peers.call("shell", "/run_program", {**body, "files_packed": "??"}, dict)
        return found, small

    found, small = asyncio.run(asyncio.wait_for(main(), 60))
    assert [each["status"] for each in found] == [0, 0], found
    assert found[1]["stdout"] == "2\n M a\n?? link\n3\na\nlink\n"
    assert small == {"files_packed": ""}


def test_the_example_rows_are_what_their_program_writes(tmp_path: Path) -> None:
    import runpy

    folder = Path(__file__).parents[1]
    runpy.run_path(str(folder / "generate.py"))["main"](str(tmp_path))
    written = (tmp_path / "example.jsonl").read_text()
    assert written == (folder / "data/example.jsonl").read_text()
    assert all(json.loads(line)["verifier"] for line in written.splitlines())
