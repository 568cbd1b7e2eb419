"""Held-out tasks are answered by fixed versions of the weights while a training runs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from buffers import KINDS, ray_cluster, redis_server
from support import Bench, asked, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.errors import ConfigError
from rollout_kit.rl import (
    Buffer,
    BufferPolicy,
    CheckpointManager,
    MemoryBuffer,
    open_buffer,
    serve_buffer,
)
from rollout_kit.serving.model import REQUIRE_VERSION

HELD_OUT = 20


class Learner(ScriptedModel):
    """Knows `known[version]` of the held-out tasks; the trainer sets its version."""

    def __init__(self, known: list[int]) -> None:
        super().__init__(self.say)
        self.known, self.version = known, 0
        self.evaluated: list[tuple[int, float | None]] = []

    @property
    def policy_version(self) -> int | None:
        return self.version

    def say(self, params: dict[str, Any]) -> str:
        said = asked(params)
        if (required := params.get(REQUIRE_VERSION)) is None:
            return said
        assert required == self.version, "the weights changed during an evaluation"
        self.evaluated.append((self.version, params.get("temperature")))
        return said if int(said.split()[-1]) < self.known[self.version] else "no"


def write_sets(folder: Path) -> Path:
    tasks = write_jsonl(folder / "test.jsonl", [row(f"held out {n}") for n in range(HELD_OUT)])
    text = f"sets: {{test: {{input_jsonl_fpath: {tasks}, agent_name: echo_agent, num_repeats: 2}}}}"
    (folder / "eval.yaml").write_text(text)
    return folder / "eval.yaml"


@asynccontextmanager
async def serve(bench: Bench, place: str = "") -> AsyncIterator[tuple[Buffer, str]]:
    """A buffer for the trainer, and its URL for the collection. `place` is the URL of a Redis or a
    Ray cluster; without one it is in memory, with a spool."""
    policy = BufferPolicy(batch=2, staleness=1)
    if place:
        async with await open_buffer(place, **policy.model_dump(exclude_defaults=True)) as buffer:
            yield buffer, place
        return
    async with (
        MemoryBuffer(policy, spool=bench.folder / "spool.jsonl") as buffer,
        serve_buffer(buffer) as url,
    ):
        yield buffer, url


def train(bench: Bench, steps: int, reward: float = 0.5, place: str = "") -> list[int | None]:
    """Train some steps with an evaluation at each second one; the best version at each step."""
    best: list[int | None] = []

    async def lesson(buffer: Buffer) -> None:
        version = (await buffer.stats())["version"] or 0
        bench.model.version = version
        await buffer.set_version(version)
        for step in range(version + 1, version + steps + 1):
            batch = await buffer.get(2)
            assert batch is not None
            best.append((await buffer.stats())["best_version"])
            bench.model.version = step
            await buffer.ack(batch.lease)
            await buffer.set_version(step, {"reward/mean": reward + step / 20})
        await buffer.finish()

    async def main() -> None:
        async with serve(bench, place) as (buffer, url):
            training = asyncio.create_task(lesson(buffer))
            keys = {"eval": write_sets(bench.folder), "eval_every": 2, "epochs": None}
            rows = [row(f"task {n}") for n in range(5)]
            assert await bench.collect(rows, buffer=url, num_repeats=2, **keys) == 0
            await training

    asyncio.run(main())
    return best


@pytest.fixture(params=["memory", *KINDS[3:]])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the buffer is, which is empty."""
    if request.param == "redis":
        with redis_server(tmp_path) as url:
            yield url
    elif request.param == "ray":
        with ray_cluster():
            yield "ray:///evaluated"
    else:
        yield ""


def test_each_second_version_is_evaluated(bench: Bench, place: str) -> None:
    bench.model = Learner([5, 5, 15, 15, 10])
    best = train(bench, 4, place=place)
    assert best == [0, 0, 2, 2]
    sampled = [each for each, temperature in bench.model.evaluated if temperature is None]
    greedy = [each for each, temperature in bench.model.evaluated if temperature == 0]
    assert sampled == [0] * 40 + [2] * 40 + [4] * 40
    assert greedy == [0] * 20 + [2] * 20 + [4] * 20
    lines = read_jsonl(bench.folder / "rollouts.d/evaluations.jsonl")
    assert [(x["set"], x["version"], x["reward"]) for x in lines] == [
        (name, version, reward)
        for version, reward in ((0, 0.25), (2, 0.75), (4, 0.5))
        for name in ("test", "test_greedy")
    ]
    assert "gain" not in lines[0] and lines[0]["reward_low"] < 0.25 < lines[0]["reward_high"]
    assert lines[2]["gain"] == 0.5 and 0 < lines[2]["gain_low"] < 0.5 < lines[2]["gain_high"]
    said = bench.out.getvalue()
    assert "evaluation of version 2: test 0.750" in said
    assert "Evaluations: test 0.250 → 0.500" in said and "best: version 2" in said


def test_the_same_command_evaluates_no_version_twice(bench: Bench, place: str) -> None:
    bench.model = Learner([5] * 9)
    train(bench, 2, place=place)
    before = len(bench.model.evaluated)
    train(bench, 2, place=place)
    assert [each for each, _ in bench.model.evaluated[before:]] == [4] * 60


def test_a_reward_that_rises_while_the_evaluation_falls_is_an_alarm(bench: Bench) -> None:
    bench.model = Learner([15, 15, 15, 15, 3, 3, 3, 3, 3])
    train(bench, 8)
    [alarm] = [x for x in bench.out.getvalue().splitlines() if "alarm" in x and "eval/test/" in x]
    assert "fell from 0.750 to 0.150, while the training reward rose" in alarm


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sets: {}", "sets"),
        ("sets: {a: {input_jsonl_fpath: no.jsonl, agent_name: x}}", "no file no.jsonl"),
        ("sets: {a: {input_jsonl_fpath: tasks.jsonl}}", "agent_name"),
    ],
)
def test_what_is_no_evaluation_is_refused(bench: Bench, text: str, why: str) -> None:
    (bench.folder / "eval.yaml").write_text(text)
    keys = {"eval": bench.folder / "eval.yaml", "buffer": "memory:?batch=2&staleness=1"}
    with pytest.raises(ConfigError, match=why):
        asyncio.run(bench.collect([row("a")], **keys))


def test_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep_last=1)
    for step in range(1, 6):
        with manager.write(step) as folder:
            (folder / "model.safetensors").write_bytes(b"weights")
        manager.keep_best({1: None, 2: 2, 3: 2, 4: 7}.get(step))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best", "step_2", "step_5"]
    assert (tmp_path / "best").resolve() == tmp_path / "step_2"
    manager.keep_best(5)
    with manager.write(6):
        pass
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best", "step_5", "step_6"]
