"""A source of a mix whose environment goes down: it is named, and its share is not lost."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import Bench, Echo, eventually, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import making
from rollout_kit.errors import PeerUnreachable
from rollout_kit.rl import BufferPolicy, MemoryBuffer, serve_buffer
from rollout_kit.rl.evaluation import evaluations
from rollout_kit.rl.mixing import outages
from rollout_kit.rl.mixing.shares import Shares
from rollout_kit.serving import registry
from rollout_kit.store.lines import info_of

BATCH = 6


class Falling(Echo):
    """Not reached while `is_down`."""

    is_down = False

    async def answer(self, path: str, raw: Any) -> Any:
        if Falling.is_down:
            raise PeerUnreachable("nothing listens", server=self.name)
        return await super().answer(path, raw)


@pytest.fixture
def bench(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(outages, "PROBE_EVERY_S", 0.02)
    monkeypatch.setattr(Falling, "is_down", False)
    agent = registry.load("responses_api_agents", "simple_agent")
    wiring = {"resources_server": {"name": "falling"}, "model_server": {"name": "policy_model"}}
    bench.other_agents = ["falling_agent"]
    bench.others = {"falling": making(Falling), "falling_agent": making(agent, **wiring)}
    return bench


def write_mix(folder: Path, when_down: str) -> Path:
    lines = [f"when_down: {when_down}", "sources:"]
    for name in ("echo", "falling"):
        path = write_jsonl(folder / f"{name}.jsonl", [row(f"{name} {n}") for n in range(9)])
        agent = f"{name}_agent"
        lines.append(f"  {name}: {{input_jsonl_fpath: {path}, agent_name: {agent}}}")
    (folder / "mix.yaml").write_text("\n".join(lines))
    return folder / "mix.yaml"


def write_sets(folder: Path) -> Path:
    sets: dict[str, Any] = {}
    for name in ("falling", "echo"):
        path = write_jsonl(folder / f"test_{name}.jsonl", [row(f"test {n}") for n in range(40)])
        sets[name] = {"input_jsonl_fpath": str(path), "agent_name": f"{name}_agent"}
    (folder / "eval.yaml").write_text(json.dumps({"greedy": False, "sets": sets}))
    return folder / "eval.yaml"


class Trainer:
    """Uses batches, each for a step; remembers the sources of their groups."""

    def __init__(self, bench: Bench, buffer: MemoryBuffer) -> None:
        self.bench, self.buffer, self.used = bench, buffer, list[str]()
        self.version = 0

    async def step(self, number: int) -> list[str]:
        """The sources of so many batches."""
        found = list[str]()
        for _ in range(number):
            batch = await self.buffer.get(BATCH)
            assert batch is not None
            found += [group.rollouts[0]["mix"] for group in batch.groups]
            await self.buffer.ack(batch.lease)
            self.version += 1
            await self.buffer.set_version(self.version)
        self.used += found
        return found

    async def wait_for(self, text: str) -> None:
        await asyncio.to_thread(eventually, lambda: text in self.bench.out.getvalue())


def train(bench: Bench, when_down: str, lesson: Any, **more: Any) -> Trainer:
    mix = write_mix(bench.folder, when_down)
    policy = BufferPolicy(batch=BATCH, staleness=0)

    async def main() -> Trainer:
        buffer = MemoryBuffer(policy)
        trainer = Trainer(bench, buffer)

        async def teach() -> None:
            await lesson(trainer)
            await buffer.finish()

        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(teach())
            keys = {"num_repeats": 2, "mix": mix, "input_jsonl_fpath": None, "buffer": url, **more}
            assert await bench.collect(**keys) == 0
            await training
        return trainer

    return asyncio.run(main())


async def fall(trainer: Trainer) -> None:
    await trainer.step(2)
    Falling.is_down = True
    await trainer.wait_for("falling is down")


async def rise(trainer: Trainer) -> None:
    Falling.is_down = False
    await trainer.wait_for("falling is back")


def test_the_others_take_its_share_and_it_catches_up(bench: Bench) -> None:
    async def lesson(trainer: Trainer) -> None:
        await fall(trainer)
        assert set((await trainer.step(3))[BATCH:]) == {"echo"}
        await rise(trainer)
        await trainer.step(7)

    trainer = train(bench, "catch_up", lesson)
    counts = Counter(trainer.used)
    assert abs(counts["falling"] / counts.total() - 0.5) < 0.03
    keys = [info_of(line).key for line in bench.lines()]
    assert len(keys) == len(set(keys))
    said = bench.out.getvalue()
    assert "falling is down: falling: nothing listens" in said
    assert "down for" in said and "falling: reward 1.000, 100% without variance" in said


def test_the_others_keep_its_share(bench: Bench) -> None:
    async def lesson(trainer: Trainer) -> None:
        await fall(trainer)
        await trainer.step(4)
        await rise(trainer)
        after = Counter((await trainer.step(5))[BATCH:])
        assert abs(after["falling"] - after["echo"]) <= 4

    counts = Counter(train(bench, "skip", lesson).used)
    assert counts["echo"] - counts["falling"] > BATCH


def test_the_run_waits_for_it(bench: Bench) -> None:
    async def lesson(trainer: Trainer) -> None:
        await fall(trainer)
        waiting = asyncio.create_task(trainer.step(4))
        await trainer.wait_for("falling is down")
        assert not waiting.done()
        await rise(trainer)
        await waiting

    counts = Counter(train(bench, "wait", lesson).used)
    assert counts["echo"] == counts["falling"]


def test_failures_in_a_row_show_it_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers, and what is behind it does not."""
    monkeypatch.setattr(outages, "AGAIN_S", 0.05)

    class Hollow(Echo):
        async def seed_session(self, body: Any) -> Any:
            if Falling.is_down:
                raise PeerUnreachable("the game is away", server="falling", retryable=False)
            return await super().seed_session(body)

    bench.others["falling"] = making(Hollow)

    async def lesson(trainer: Trainer) -> None:
        await fall(trainer)
        await trainer.step(3)
        await rise(trainer)
        await trainer.step(8)

    counts = Counter(train(bench, "catch_up", lesson).used)
    assert abs(counts["falling"] / counts.total() - 0.5) < 0.05
    assert "its last 8 rollouts failed" in bench.out.getvalue()


def test_an_evaluation_waits_for_its_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No set is measured by a part of its tasks, and the others are measured meanwhile."""
    monkeypatch.setattr(evaluations, "AGAIN_S", 0.05)
    sets = write_sets(bench.folder)

    async def lesson(trainer: Trainer) -> None:
        await fall(trainer)  # two steps
        training = asyncio.create_task(trainer.step(2))
        await trainer.wait_for("the evaluation of version 2 waits: falling: nothing listens")
        assert not training.done()
        await rise(trainer)
        await training
        await trainer.wait_for("evaluation of version 4: echo")

    train(bench, "catch_up", lesson, eval=sets, eval_every=2)
    lines = read_jsonl(bench.folder / "rollouts.d/evaluations.jsonl")
    found = [(x["set"], x["version"], x["rollouts"]) for x in lines]
    order = {2: ("echo", "falling"), 4: ("falling", "echo")}
    assert found == [(name, version, 160) for version, names in order.items() for name in names]
    assert bench.out.getvalue().count("the evaluation of version 2 waits") == 1


def test_a_source_that_is_let_off_has_no_claim() -> None:
    shares = Shares({"a": 2.0, "b": 1.0})
    for number in range(20):
        shares.begin(f"{number}", "a")
    shares.let_off("b")
    assert shares.begun == {"a": 20, "b": 10}
    assert shares.choose(["a", "b"]) == "a"
