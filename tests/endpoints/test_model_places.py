"""Several runs over one model server: shares of its places, and priorities."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import Echo, config_of, row, write_jsonl

from rollout_kit.api.testing import ScriptedModel, making, mount, run_virtual
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.launch.reach import Servers
from rollout_kit.serving import registry
from rollout_kit.serving.transport.places import NO_CLAIM, Claim, ModelPlaces
from rollout_kit.session import Session, current_session, entered
from rollout_kit.time_limit import running_loop

MOST = 370
"""Requests of two runs of 300 that are served while both have some left."""


async def keep_asking(
    places: ModelPlaces, claim: Claim, seconds: float, served: Counter[str]
) -> None:
    """Ask for places without an end."""
    with entered(Session(claim=claim.to_header())):
        while True:
            async with places.hold():
                await asyncio.sleep(seconds)
                served[claim.name] += 1


def serve(claims: dict[Claim, float], number: int = 4, until: float = 600.0) -> Counter[str]:
    """What each claim was served, whose requests take so many seconds."""
    served = Counter[str]()

    async def main() -> None:
        places = ModelPlaces(number)
        asking = [
            asyncio.create_task(keep_asking(places, claim, seconds, served))
            for claim, seconds in claims.items()
            for _ in range(16)
        ]
        await asyncio.sleep(until)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert places.num_waiting == 0
        async with asyncio.timeout(1):  # all places are free again
            for _ in range(number):
                await places.hold().__aenter__()

    run_virtual(main())
    return served


@pytest.mark.parametrize("share", [3.0, 1.5, 0.25])
def test_shares_are_of_the_time(share: float) -> None:
    """Whatever the number of places is, and though the requests of one run take longer."""
    slow, quick = Claim("slow", share=share), Claim("quick")
    served = serve({slow: 2.0, quick: 0.5})
    seconds = {"slow": served["slow"] * 2.0, "quick": served["quick"] * 0.5}
    expected = share / (share + 1)
    assert abs(seconds["slow"] / sum(seconds.values()) - expected) < 0.02


def test_a_higher_priority_comes_first() -> None:
    served = serve({Claim("evaluation", 0): 1.0, Claim("training", 1): 1.0})
    assert served["evaluation"] <= 4 < 2000 < served["training"]


def test_a_run_that_was_away_catches_nothing_up() -> None:
    served = Counter[str]()

    async def main() -> None:
        places = ModelPlaces(1)
        first = asyncio.create_task(keep_asking(places, Claim("first"), 1.0, served))
        await asyncio.sleep(100)
        others = [
            asyncio.create_task(keep_asking(places, Claim(name), 1.0, served))
            for name in ("first", "second")
        ]
        await asyncio.sleep(100)
        for each in (first, *others):
            each.cancel()

    run_virtual(main())
    assert abs(served["second"] - 50) <= 2


@pytest.mark.parametrize("text", ["", "x", "1 0 name", "1 nan name", "1 -1 name", "1 inf x"])
def test_a_text_that_claims_nothing(text: str) -> None:
    assert Claim.from_header(text) == NO_CLAIM
    assert Claim.from_header(Claim("a b", 2, 0.5).to_header()) == Claim("a b", 2, 0.5)


class Busy(ScriptedModel):
    """Serves four requests at a time, while as many of both runs wait."""

    def __init__(self) -> None:
        super().__init__(lambda params: "yes")
        self.places, self.num_served = ModelPlaces(4), 0
        self.held, self.waiting = Counter[float](), Counter[float]()
        """Share of a run → milliseconds of its requests; and its requests that wait."""
        self.changed = asyncio.Event()

    async def responses(self, params: Any) -> Any:
        session = current_session()
        assert session is not None
        share = Claim.from_header(session.claim).share
        self.note(share, 1)
        async with self.places.hold():
            began = running_loop().time()
            self.note(share, -1)
            while min(self.waiting[1.0], self.waiting[3.0]) < 4 and self.num_served < MOST:
                self.changed.clear()
                await self.changed.wait()
            await asyncio.sleep(0.002)
            if self.num_served < MOST:
                self.held[share] += round(1e6 * (running_loop().time() - began))
            self.num_served += 1
            return await super().responses(params)

    def note(self, share: float, number: int) -> None:
        self.waiting[share] += number
        self.changed.set()


def run_two(tmp_path: Path, over: Any) -> Busy:
    """A model that two collections have asked at the same time, one with three shares."""
    model = Busy()
    agent = registry.load("responses_api_agents", "simple_agent")
    wiring = {"resources_server": {"name": "echo"}, "model_server": {"name": "policy_model"}}
    servers = {"policy_model": lambda peers, name: model, "echo": making(Echo)}
    servers["echo_agent"] = making(agent, **wiring)
    rows = write_jsonl(tmp_path / "tasks.jsonl", [row(f"{n}", "yes") for n in range(300)])

    async def main() -> None:
        async with mount(servers, over) as peers:

            async def collect(name: str, **keys: Any) -> int:
                output = tmp_path / f"{name}.jsonl"
                config = config_of(tmp_path, **keys, output_jsonl_fpath=output)
                reached, progress = Servers(peers, ["echo_agent"], {}, {}), Progress(as_json=True)
                return await collect_through(reached, config, ["+the=command"], progress)

            few = {"num_samples_in_parallel": 16, "input_jsonl_fpath": str(rows)}
            done = collect("training", model_share=3.0, **few), collect("evaluation", **few)
            assert await asyncio.gather(*done) == [0, 0]

    asyncio.run(main())
    return model


@pytest.mark.parametrize("over", ["local", "http"])
def test_what_two_collections_claim_reaches_their_model_server(tmp_path: Path, over: Any) -> None:
    assert {*run_two(tmp_path, over).held} == {3.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("over", ["local", "http"])
def test_two_collections_share_the_time_of_one_model_server(tmp_path: Path, over: Any) -> None:
    """It measures time. test_shares_are_of_the_time holds the rule on a virtual clock."""
    held = run_two(tmp_path, over).held
    assert abs(held[3.0] / held.total() - 0.75) < 0.05
