"""Real MCP servers, as processes: what they offer, who verifies, and that none stays behind."""

import asyncio
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S

from rollout_kit import ConfigError, JsonObject, RolloutError, make_response, message_item
from rollout_kit.api.testing import making, mount
from rollout_kit.serving import registry
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.session import Session, entered

pytest.importorskip("mcp")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NOTES = ["python", "resources_servers/mcp_environment/data/notes.py"]
ROW = {"responses_create_params": {"input": []}, "expected_answer": "x"}

Server = registry.load("resources_servers", "mcp_environment")
STRING_MATCH = registry.load("resources_servers", "string_match")
CALCULATOR = registry.load("resources_servers", "calculator")


@asynccontextmanager
async def serving(verifier: Any = None, **settings: Any) -> AsyncIterator[Peers]:
    given = {"command": NOTES, **settings}
    behind = {} if verifier is None else {"behind": making(verifier)}
    if behind:
        given["verifier"] = {"name": "behind"}
    async with mount({**behind, "tools": making(Server, **given)}) as peers:
        yield peers


@asynccontextmanager
async def seeded(peers: Peers, row: JsonObject = ROW) -> AsyncIterator[None]:
    with entered(Session()):
        await peers.call("tools", "/seed_session", row, dict)
        yield
        await peers.call("tools", "/close_session", {}, dict)


def held(tmp_path: Path) -> list[str]:
    return ["python", str(HERE / "held_server.py"), str(tmp_path / "pipe"), str(tmp_path / "held")]


def wait_until_ended(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([descriptor], [], [], HANG_S)
        os.close(descriptor)
        assert ended, f"process {pid} stays behind"


def test_each_session_has_a_process_that_ends_with_it(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with serving(command=held(tmp_path)) as peers:
            [work, die] = await peers.call("tools", "/tools", None, list)
            assert (work["name"], die["description"]) == ("work", "End the process.")
            async with seeded(peers):
                one = await peers.call("tools", "/work", {}, str)
                again = await peers.call("tools", "/work", {}, str)
            async with seeded(peers):
                other = await peers.call("tools", "/work", {}, str)
        return [one, again, other]

    found = asyncio.run(main())
    servers = [text.split()[0] for text in found]
    assert servers[0] == servers[1] != servers[2]
    wait_until_ended(int(pid) for text in found for pid in text.split())


def test_state_is_that_of_the_session() -> None:
    async def play(peers: Peers, text: str) -> str:
        async with seeded(peers):
            await peers.call("tools", "/write", {"text": text}, str)
            return await peers.call("tools", "/read", {}, str)

    async def main() -> list[str]:
        async with serving() as peers:
            return await asyncio.gather(*(play(peers, f"page {n}") for n in range(3)))

    assert asyncio.run(main()) == ["page 0", "page 1", "page 2"]


def test_another_server_verifies_and_offers_its_tools_too() -> None:
    row = {"responses_create_params": {"input": []}, "expected_answer": 42}
    response = make_response("m", [message_item("It is 42.")], None)

    async def main() -> None:
        async with serving(CALCULATOR, tools=["read"]) as peers:
            listed = await peers.call("tools", "/tools", None, list)
            assert [each["name"] for each in listed] == ["read", "add"]
            about, behind = await peers.describe("tools"), await peers.describe("behind")
            assert about["verifies"] and about["verifier"] == behind["verifier"]
            async with seeded(peers, row):
                assert await peers.call("tools", "/add", {"a": 1, "b": 2}, str) == "3"
                verdict = await peers.verify("tools", {**row, "response": response})
            assert (verdict["reward"], verdict["extracted_answer"]) == (1.0, "42")
            with entered(Session()), pytest.raises(RolloutError, match="expected_answer"):
                await peers.call("tools", "/seed_session", {**row, "expected_answer": "?"}, dict)

    asyncio.run(main())


def test_without_a_verifier_rollouts_have_no_reward() -> None:
    async def main() -> JsonObject:
        async with serving() as peers:
            return await peers.describe("tools")

    about = asyncio.run(main())
    assert (about["verifies"], about["reverify"]) == (False, "never")


def test_a_server_that_dies_is_named_and_the_next_session_has_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(command=held(tmp_path)) as peers:
            async with seeded(peers):
                with pytest.raises(RolloutError, match="held_server") as caught:
                    await peers.call("tools", "/die", {}, str)
                assert caught.value.retryable and caught.value.server == "tools"
                assert not caught.value.terminal
            async with seeded(peers):
                assert await peers.call("tools", "/work", {}, str)

    asyncio.run(main())


def test_a_tool_that_refuses_is_text_for_the_model() -> None:
    async def main() -> None:
        async with serving() as peers, seeded(peers):
            with pytest.raises(RolloutError, match="text") as caught:
                await peers.call("tools", "/write", {"texts": 1}, str)
            assert caught.value.status == 400

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"command": None}, "set either url or command"),
        ({"url": "http://127.0.0.1:9/mcp"}, "set either url or command"),
        ({"command": "  "}, "command: is empty"),
        ({"command": ["no-such-program"]}, "tools: the MCP server 'no-such-program' cannot be"),
        ({"tools": ["raed"]}, "the MCP server has no 'raed'; it has: none"),
    ],
)
def test_a_server_that_cannot_be_used_is_named(settings: JsonObject, why: str) -> None:
    async def main() -> None:
        async with serving(**settings):
            pass

    with pytest.raises((ConfigError, ValueError), match=why):
        asyncio.run(main())


MODEL = """
policy_model:
  responses_api_models:
    simulated_model: {answer: script, script_jsonl_fpath: SCRIPT}
"""


def collect(tmp_path: Path, **popen: Any) -> subprocess.Popen[str]:
    items = [
        *({"type": "function_call", "call_id": "c", "name": "work", "arguments": "{}"},),
        *({"type": "function_call_output", "call_id": "c", "output": ""},),
        message_item("done"),
    ]
    row = {"responses_create_params": {"input": "Work."}, "gold_items": items}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "model.yaml").write_text(MODEL.replace("SCRIPT", str(tmp_path / "rows.jsonl")))
    command = [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[{tmp_path / 'model.yaml'}]",
        f"+mcp={' '.join(held(tmp_path))}",
        f"+input_jsonl_fpath={tmp_path / 'rows.jsonl'}",
        f"+output_jsonl_fpath={tmp_path / 'rollouts.jsonl'}",
        f"+log_dir={tmp_path / 'logs'}",
        "+num_repeats=2",
    ]
    return subprocess.Popen(command, cwd=ROOT, text=True, **popen)


def test_no_process_stays_behind_a_killed_collector_and_the_same_command_continues(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "held").touch()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with collect(tmp_path, **quiet) as killed, (tmp_path / "pipe").open() as pipe:
        pids = [int(pid) for pid in pipe.readline().split()]
        killed.kill()
    wait_until_ended(pids)
    (tmp_path / "held").unlink()
    with collect(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as again:
        said = again.communicate(timeout=HANG_S)[0]
    assert again.returncode == 0, said
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and not any("reward" in line for line in lines)
    outputs = [line["response"]["output"][1]["output"] for line in lines]
    wait_until_ended(int(pid) for output in outputs for pid in output.split())
