"""The policy chooses what is called: tools, and never a server's own routes, over any transport."""

import asyncio
import io
from pathlib import Path
from typing import Any, ClassVar

from support import config_of, read_jsonl, write_jsonl

from rollout_kit.api.testing import Over, ScriptedModel, call_response, making, mount
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.errors import VerifyError
from rollout_kit.launch.reach import Servers
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, Reverify, tool
from rollout_kit.serving.transport.wire import RESERVED
from rollout_kit.types import VerifyRequest, VerifyResponse

SNEAKY = [
    *sorted(RESERVED),
    *(f"/{name}" for name in sorted(RESERVED)),
    "./verify",
    "../verify",
    "add/../verify",
    "%2e%2e/verify",
    "add%2f..%2fverify",
    "verify?x=1",
    "verify#x",
    "verify/",
    "verify;x",
    "verify\n",
    " verify",
    "http://127.0.0.1/verify",
    "",
]


class Guarded(ResourcesServer):
    """Writes down every path that it is asked for. Its first verdict fails."""

    reverify: ClassVar[Reverify | None] = "replay"
    asked: ClassVar[list[str]] = []

    async def handle(self, path: str, raw: bytes) -> Any:
        self.asked.append(path)
        return await super().handle(path, raw)

    @tool
    async def add(self, a: int) -> int:
        """Add."""
        return a

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        if self.asked.count("/verify") == 1:
            raise VerifyError("not yet", retryable=False)
        return body.scored(1.0)


def test_only_tools_are_reached_by_name_when_collected_and_when_replayed(
    over: Over, tmp_path: Path
) -> None:
    offered = [{"type": "function", "name": name, "parameters": {}} for name in (*SNEAKY, "add")]
    task = {"responses_create_params": {"input": "?", "tools": offered}}
    write_jsonl(tmp_path / "tasks.jsonl", [task])
    Guarded.asked.clear()
    calls = [*((name, '{"responses_create_params": {}, "response": {}}') for name in SNEAKY)]
    answers = [call_response(*calls, ("add", '{"a": 1}')), "done"]

    async def collected() -> list[str]:
        """The paths that one run asks the server for."""
        agent = registry.load("responses_api_agents", "simple_agent")
        wiring = {"resources_server": {"name": "guarded"}, "model_server": {"name": "model"}}
        servers = {
            "model": lambda peers, name: ScriptedModel(answers, peers, name),
            "guarded": making(Guarded),
            "agent": making(agent, **wiring),
        }
        num_before = len(Guarded.asked)
        async with mount(servers, over) as peers:
            progress = Progress(out=io.StringIO(), err=io.StringIO())
            config = config_of(tmp_path)
            await collect_through(Servers(peers, ["agent"], {}, {}), config, [], progress)
        return [path for path in Guarded.asked[num_before:] if path != "/tools"]

    steps = ["/seed_session", "/add", "/verify", "/close_session"]
    assert asyncio.run(collected()) == steps
    [parked] = read_jsonl(tmp_path / "rollouts.d/unverified.jsonl")
    assert asyncio.run(collected()) == steps
    [line] = read_jsonl(tmp_path / "rollouts.jsonl")
    assert line["response"] == parked["response"] and line["reward"] == 1.0
    outputs = [
        item["output"] for item in line["response"]["output"] if "call_output" in item["type"]
    ]
    assert outputs[-1] == "1"
    assert [text.startswith("error: no tool '") for text in outputs] == [True] * len(SNEAKY) + [
        False
    ]


def test_whatever_a_server_serves_beside_its_tools_is_reserved() -> None:
    """A new route of resources servers must be put out of the policy's reach, too."""
    routes = {path.strip("/") for path in Guarded.routes}
    assert {"seed_session", "verify", "close_session"} <= routes <= RESERVED
