"""Many multi-turn tool rollouts at once: the same rewards over every transport, no session left."""

import asyncio
import io
from pathlib import Path
from typing import Any

from support import config_of, read_jsonl, write_jsonl

from rollout_kit.api.testing import Over, ScriptedModel, call_response, making, mount
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.launch.reach import Servers
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

NUM_ROLLOUTS, NUM_TURNS = 400, 5


class Counter(ResourcesServer):
    """Counts up in the session's own state; full reward when it ends where the row says."""

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"count": body["start"]}
        return {}

    @tool
    async def increment(self, by: int) -> int:
        """Add to the counter."""
        self.state["count"] += by
        await asyncio.sleep(0)
        return self.state["count"]

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        extra = body.model_extra or {}
        return body.scored(float(self.state["count"] == extra["expected"]), **self.state)


def model_of(params: JsonObject) -> Any:
    """Calls the tool in four turns, then answers; gets it wrong for every third start."""
    made = sum(item.get("type") == "function_call" for item in params["input"])
    if made == NUM_TURNS - 1:
        return "done"
    start = int(params["input"][0]["content"])
    return call_response(("increment", f'{{"by": {2 if start % 3 == 0 and made == 0 else 1}}}'))


def test_rewards_are_equal_and_no_session_is_left_over_any_transport(
    over: Over, tmp_path: Path
) -> None:
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": str(start)}]},
            "start": start,
            "expected": start + NUM_TURNS - 1,
        }
        for start in range(NUM_ROLLOUTS)
    ]
    write_jsonl(tmp_path / "tasks.jsonl", rows)
    counters: list[Counter] = []

    def counter(peers: Any, name: str) -> Counter:
        counters.append(Counter(Counter.Config(), peers, name))
        return counters[0]

    async def main() -> int:
        agent = registry.load("responses_api_agents", "simple_agent")
        wiring = {"resources_server": {"name": "counter"}, "model_server": {"name": "model"}}
        servers = {
            "model": lambda peers, name: ScriptedModel(model_of, peers, name),
            "counter": counter,
            "agent": making(agent, **wiring),
        }
        async with mount(servers, over) as peers:
            reached = Servers(peers, ["agent"], {}, {})
            progress = Progress(out=io.StringIO(), err=io.StringIO())
            config = config_of(tmp_path, num_samples_in_parallel=100)
            return await collect_through(reached, config, [], progress)

    assert asyncio.run(main()) == 0
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    rewards = {line["start"]: line["reward"] for line in lines}
    assert rewards == {start: float(start % 3 != 0) for start in range(NUM_ROLLOUTS)}
    assert {line["rollout"]["num_turns"] for line in lines} == {NUM_TURNS}
    assert {line["rollout"]["num_tool_calls"] for line in lines} == {NUM_TURNS - 1}
    assert counters[0].num_sessions == 0
