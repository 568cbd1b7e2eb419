"""The verdict names what was slowed down: whole runs under a virtual clock with one delay
injected in each, and the judgement by itself."""

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from hosted import through_openai_model
from support import Bench, Desk, row
from virtual_time import VirtualTime

from rollout_kit.api.testing import OVERS, Over, making, run_virtual
from rollout_kit.collecting.pacing import meter, probe
from rollout_kit.collecting.pacing.bottleneck import Client, Growth, SlotTime, verdict
from rollout_kit.collecting.pacing.limiter import Fixed
from rollout_kit.collecting.pacing.meter import Meter
from rollout_kit.collecting.pacing.probe import WorkerLoad
from rollout_kit.errors import RolloutError
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.session import current_session
from rollout_kit.store.files import OutputPaths
from rollout_kit.store.journal import Journal
from rollout_kit.types import Failure, JsonObject, Key

SimulatedModel = registry.load("responses_api_models", "simulated_model")


class SlowConfig(ResourcesServer.Config):
    tool_s: float = 0.0
    verify_s: float = 0.0


class Waits(ResourcesServer):
    Config = SlowConfig
    reverify = "stateless"
    time: VirtualTime

    @tool
    async def look(self) -> str:
        """Look."""
        await asyncio.sleep(self.config.tool_s)
        return "seen"

    async def verify(self, task: JsonObject, response: JsonObject) -> float:
        await asyncio.sleep(self.config.verify_s)
        return 1.0


class Burns(Waits):
    async def verify(self, task: JsonObject, response: JsonObject) -> float:
        self.time.burn(self.config.verify_s)
        return 1.0


class Blocks(Waits):
    async def verify(self, task: JsonObject, response: JsonObject) -> float:
        self.time.block(self.config.verify_s)
        return 1.0


class Run:
    """One collection under a virtual clock; `model` and `slow` are the servers' keys."""

    def __init__(self, desk: Desk, time: VirtualTime) -> None:
        self.desk, self.time = desk, time
        self.model: dict[str, Any] = {"answer": "text"}
        self.slow: dict[str, Any] = {}
        self.verifier: type[Waits] = Waits
        self.endpoint: Any = None
        """A simulated model to be asked through an `openai_model`, instead of `model`."""

    def simulated(self, **keys: Any) -> Any:
        config = SimulatedModel.Config.model_validate({**self.model, **keys})
        return SimulatedModel(config, None, "policy_model")

    def collect(self, rollouts: int, parallel: int, **keys: Any) -> dict[str, Any]:
        """The `bottleneck` that the metrics file holds."""
        self.verifier.time = self.time
        self.desk.verifier = making(self.verifier, **self.slow)
        rows = [{"responses_create_params": {"input": f"{n}"}} for n in range(rollouts)]
        keys["num_samples_in_parallel"] = parallel
        assert self.time.run(self._collected(rows, keys)) == 0
        found = self.desk.metrics()["bottleneck"]
        said = self.desk.out.getvalue()
        if keys.get("json"):
            events = [json.loads(line) for line in said.splitlines()]
            told = [each for each in events if each.get("event") == "bottleneck"]
            assert told == [{"event": "bottleneck", **found}]
        assert found["sentence"] in said
        return found

    async def _collected(self, rows: list[Any], keys: dict[str, Any]) -> int:
        if self.endpoint is None:
            self.desk.model = self.simulated()
            return await self.desk.collect(rows, **keys)
        async with through_openai_model(self.endpoint, max_tries=50) as self.desk.model:
            return await self.desk.collect(rows, **keys)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(meter, "read_starved_s", lambda: 0.0)
    return Run(Desk(tmp_path), VirtualTime(monkeypatch))


def test_a_slow_model_whose_room_was_not_seen_promises_nothing(run: Run) -> None:
    """All slots are filled at once, so that nobody saw the model with fewer requests."""
    run.model["latency_s"] = 0.2
    found = run.collect(128, 16)
    assert found["name"] == "model" and found["share"] > 0.8, found
    assert found["gain_of_twice_the_parallelism"] is None, found
    assert found["sentence"].endswith("what more parallelism would gain was not measured")


def test_a_model_that_only_makes_a_longer_queue_gains_nothing(run: Run) -> None:
    run.model |= {"latency_s": 0.03, "max_concurrent_requests": 4}
    found = run.collect(256, 64)
    assert found["name"] == "model" and found["gain_of_twice_the_parallelism"] < 1.4, found
    assert "as the model got slower with more in flight" in found["sentence"]


def test_so_is_it_over_several_turns(run: Run) -> None:
    run.model |= {"latency_s": 0.01, "max_concurrent_requests": 4, "num_tool_turns": 3}
    found = run.collect(200, 64)
    assert found["name"] == "model" and found["gain_of_twice_the_parallelism"] < 1.4, found


def test_a_slow_tool(run: Run) -> None:
    run.model["num_tool_turns"] = 1
    run.slow["tool_s"] = 0.2
    found = run.collect(128, 16)
    assert found["name"] == "tools" and found["share"] > 0.8, found


@pytest.mark.parametrize("json", [False, True])
def test_a_slow_verifier(run: Run, json: bool) -> None:
    run.slow["verify_s"] = 0.2
    found = run.collect(128, 16, json=json)
    assert found["name"] == "verification" and found["share"] > 0.8, found


def test_verifying_again_counts_no_time_of_the_run_that_collected(run: Run) -> None:
    run.model["latency_s"], run.slow["verify_s"] = 0.5, 0.1
    run.collect(32, 32, skip_verification=True)
    log = run.desk.folder / "log.csv"
    assert run.time.run(run.desk.reverify(num_samples_in_parallel=4, throughput_log=log)) == 0
    assert "Bottleneck: verification, " in run.desk.out.getvalue()
    line = log.read_text().splitlines()[1].split(",")
    assert line[1] == "32" and line[4] == "" and line[-2].startswith("verification ")


def test_a_verifier_so_slow_that_its_slots_go_to_others_is_no_longer_in_the_way(run: Run) -> None:
    run.model["latency_s"] = 0.3
    run.slow["verify_s"] = 2.0
    found = run.collect(48, 4, park_after_s=0.1)
    assert found["name"] == "model" and 0.1 < found["slots"]["verification"] < 0.4, found


def test_a_rate_limit_that_the_attempts_run_into(run: Run) -> None:
    run.model["rate_limit"] = {"requests_per_minute": 3000, "burst_s": 0.1}
    found = run.collect(120, 16, max_attempts=50)
    assert found["name"] == "rate_limit" and found["share"] > 0.7, found
    assert found["sentence"].endswith("raising parallelism gains nothing")


@pytest.mark.parametrize("over", OVERS)
def test_a_rate_limit_that_the_model_server_waits_for(run: Run, over: Over) -> None:
    rate_limit = {"requests_per_minute": 3000, "burst_s": 0.1}
    run.endpoint = run.simulated(latency_s=0.02, rate_limit=rate_limit)
    run.desk.collects_over = over
    found = run.collect(120, 16)
    assert found["name"] == "rate_limit" and found["share"] > 0.7, found
    lines = run.desk.lines()
    waited = [line["rollout"] for line in lines if "rate_limit_s" in line["rollout"]]
    assert len(waited) > 10 and all(each["model_s"] < each["duration_s"] for each in waited)


def test_cpu_that_the_collecting_process_burns(run: Run) -> None:
    run.verifier, run.slow["verify_s"] = Burns, 0.02
    run.model["latency_s"] = 0.05
    found = run.collect(100, 16)
    assert found["name"] == "client_cpu" and found["share"] > 0.8, found
    assert "raising parallelism gains nothing" in found["sentence"]


def test_cpu_that_other_threads_of_the_collecting_process_burn(run: Run) -> None:
    """Whenever a timer of the event loop is due, the interpreter runs another thread first."""
    run.model["latency_s"] = 0.05
    run.time.late_s, run.time.other_threads_burn = 1.2 * probe.LATE_S, True
    found = run.collect(100, 16)
    assert found["name"] == "client_cpu" and found["share"] > 0.8, found


def test_a_server_that_blocks_the_collecting_process(run: Run) -> None:
    run.verifier, run.slow["verify_s"] = Blocks, 0.02
    found = run.collect(100, 16)
    assert found["name"] == "blocked" and found["client_cpu"] < 0.5, found


def test_a_disk_that_is_slow_to_force_rows_down(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts that end together are forced down at once: sixteen wait for one disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: run.time.block(0.5))
    run.model["latency_s"] = 0.05
    found = run.collect(100, 16, fsync="row")
    assert found["name"] == "journal" and found["share"] > 0.8, found
    assert "fsync=second" in found["sentence"]


def test_failed_attempts(run: Run) -> None:
    run.model["faults"] = [{"kind": 500, "to_request": 40}]
    found = run.collect(60, 16, max_attempts=50)
    assert found["name"] == "failed" and found["share"] > 0.7, found


def test_fewer_rollouts_than_slots_do_not_tell_what_more_slots_gain(run: Run) -> None:
    run.model["latency_s"] = 0.3
    found = run.collect(5, 16)
    assert found["name"] == "model" and found["gain_of_twice_the_parallelism"] is None
    assert "5 rollouts ended in 16 slots, too few to tell" in found["sentence"]


CALM = Client(elapsed_s=100.0, busy=0.05, cpu=0.04, journal=0.0)


def spent(**parts: float) -> SlotTime:
    """Of 10 slots for 100 seconds, over 500 rollouts; what is not named is the model's."""
    found = SlotTime(10, slots=1000.0, longest=2.0, outcomes=500)
    for part, seconds in {"model": 1000.0 - sum(parts.values()), **parts}.items():
        setattr(found, part, seconds)
    return found


@pytest.mark.parametrize(
    "part, name",
    [
        ("rate_limit", "the rate limit, 60 % of"),
        ("tools", "tools, 60 % of"),
        ("verification", "verification, 60 % of"),
        ("agent", "the agent's own work, 60 % of"),
        ("sessions", "opening and closing sessions, 60 % of"),
        ("failed", "failed attempts and retry pauses, 60 % of"),
    ],
)
def test_the_largest_part_is_named_and_the_others_after_it(part: str, name: str) -> None:
    found = verdict(spent(**{part: 600.0}), CALM)
    assert found and found.part == part
    assert found.sentence.startswith(f"Bottleneck: {name} the slots' time (model 40 %, client CPU")


def test_a_trainer_that_is_waited_for_is_named_before_the_parts_of_slots() -> None:
    waiting = spent(tools=600.0)
    waiting.trainer = 40.0
    found = verdict(waiting, CALM)
    assert found and (found.part, found.share, found.short()) == ("trainer", 0.4, "trainer 40%")
    assert "the trainer, waited for 40 % of the run's time" in found.sentence


@pytest.mark.parametrize(
    ("load", "part", "says"),
    [
        (WorkerLoad(200.0, 190.0, 150.0, 30.0), "workers_cpu", "busy 95 % of the time"),
        (WorkerLoad(200.0, 190.0, 10.0, 0.0), "workers_blocked", "blocks the event loops of"),
        (WorkerLoad(200.0, 20.0, 10.0, 0.0), "model", "CPU of the workers 10 % and of the driver"),
    ],
)
def test_workers_that_hold_everything_up_are_named(load: WorkerLoad, part: str, says: str) -> None:
    found = verdict(spent(), replace(CALM, workers=load))
    assert found and found.part == part and says in found.sentence
    assert found.figures()["workers_cpu"] == load.cpu_s / 100
    waiting = verdict(spent(workers=600.0), replace(CALM, workers=WorkerLoad(200.0, 20.0)))
    assert waiting and waiting.sentence.startswith("Bottleneck: the wait for a worker, 60 % of")
    driver = verdict(spent(), replace(CALM, busy=0.97, cpu=0.9, workers=load))
    assert driver and "the driver's CPU" in driver.sentence and "+shard" in driver.sentence


class Ended:
    """A slot whose attempt a worker has made in a tenth of a second."""

    freed_at, limited_s, worked_s, is_stored, in_flight = None, 0.0, 0.1, False, 1

    def __init__(self) -> None:
        self.began = time.perf_counter()


def test_the_wait_for_a_worker_is_no_part_of_the_sessions(run: Run) -> None:
    async def main() -> SlotTime:
        found, slot = Meter(Fixed(1), SimpleNamespace(writing_s=0.0)), Ended()
        await asyncio.sleep(1.0)
        found.take(slot, Failure(Key("t", "agent", "", 0), 0, RolloutError("no"), []))
        return found.spent

    found = run.time.run(main())
    assert found.workers == pytest.approx(0.9, abs=0.01) and found.sessions == 0
    assert found.failed == pytest.approx(0.1, abs=0.01)


def test_cores_that_other_processes_use_are_no_reason_to_start_more_processes() -> None:
    own = verdict(spent(), Client(100.0, busy=0.97, cpu=0.9, journal=0.1))
    others = verdict(spent(), Client(100.0, busy=0.97, cpu=0.3, journal=0.1, starved=0.5))
    assert own and "run the servers as separate processes" in own.sentence
    assert others and "separate processes" not in others.sentence
    assert "other processes use the cores" in others.sentence


def test_a_rate_limit_that_is_reached_leaves_nothing_to_gain() -> None:
    found = verdict(spent(rate_limit=60.0), CALM)
    assert found and (found.part, found.gain) == ("model", 1.0)
    assert "the rate limit is reached already" in found.sentence
    barely = verdict(spent(rate_limit=40.0), CALM)
    assert barely and barely.gain is None


@pytest.mark.parametrize(
    "client, part",
    [
        (Client(100.0, busy=0.97, cpu=0.9, journal=0.1), "client_cpu"),
        (Client(100.0, busy=0.97, cpu=0.55, journal=0.1), "client_cpu"),
        (Client(100.0, busy=0.97, cpu=0.3, journal=0.1, starved=0.5), "client_cpu"),
        (Client(100.0, busy=0.97, cpu=0.1, journal=0.9), "journal"),
        (Client(100.0, busy=0.97, cpu=0.1, journal=0.1), "blocked"),
        (Client(100.0, busy=0.7, cpu=0.7, journal=0.1), "model"),
    ],
)
def test_a_process_that_holds_everything_up_is_named_before_what_it_makes_look_slow(
    client: Client, part: str
) -> None:
    found = verdict(spent(), client)
    assert found and found.part == part


@pytest.mark.parametrize(
    "elapsed_s, outcomes, part",
    [(0.2, 10, "model"), (0.2, 11, "blocked"), (1.0, 5, "blocked")],
)
def test_a_run_that_is_over_at_once_says_nothing_about_the_process(
    elapsed_s: float, outcomes: int, part: str
) -> None:
    few = spent()
    few.outcomes = outcomes
    found = verdict(few, Client(elapsed_s, busy=0.97, cpu=0.1, journal=0.1))
    assert found and found.part == part


@pytest.mark.parametrize("probes", [0, 2])
def test_late_probes_of_a_short_run_do_not_show_a_blocked_loop(probes: int) -> None:
    calm = Client(0.36, busy=1.0, cpu=0.23, journal=0.01, starved=0.23, probes=probes)
    found = verdict(spent(), calm)
    assert found and found.part == "model" and found.short() == "too short to tell"
    assert found.sentence.startswith(
        "Bottleneck: the run was too short to tell (0.4 s); as far as it goes, the model, 100 % of"
    )
    assert found.figures()["too_short"] is True
    of_workers = replace(calm, busy=0.1, workers=WorkerLoad(0.3, 0.3, 0.01))
    found = verdict(spent(), of_workers)
    assert found and found.part == "model"
    # what was measured directly still counts
    found = verdict(spent(), replace(calm, cpu=0.9))
    assert found and found.part == "client_cpu" and "too short to tell" in found.sentence
    longer = verdict(spent(), replace(calm, elapsed_s=5.0))
    assert longer and longer.part == "blocked" and "too_short" not in longer.figures()


@pytest.mark.parametrize(
    "client, longest, most, why",
    [
        (Client(100.0, busy=0.65, cpu=0.6, journal=0.0), 2.0, 1.54, "busy all the time"),
        (CALM, 80.0, 1.25, "the longest rollout"),
        (CALM, 99.0, 1.01, "gains nothing, as the longest rollout"),
    ],
)
def test_every_limit_that_was_seen_lowers_the_gain(
    client: Client, longest: float, most: float, why: str
) -> None:
    sums = spent()
    sums.longest = longest
    found = verdict(sums, client)
    assert found and found.gain == pytest.approx(most, abs=0.01) and why in found.sentence


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_growth_is_seen_while_the_slots_fill(power: float) -> None:
    growth = Growth(64)
    draw = Random(0)
    for number in range(1, 1000):
        in_flight = min(number, 64)
        growth.add(in_flight, in_flight**power * draw.lognormvariate(0, 0.3))
    found = growth.exponent()
    assert found is not None and power - 0.25 <= found <= power + 0.05


def test_growth_of_which_too_little_was_seen_is_not_known() -> None:
    growth = Growth(2)
    for in_flight in (1, 2, 2, 2, 2):
        growth.add(in_flight, 1.0)
    assert growth.exponent() is None
    found = verdict(spent(), CALM)
    assert found and found.gain is None and "up to" not in found.sentence


@pytest.mark.parametrize("fill_s", [0.0, 60.0])
def test_a_gain_is_one_that_was_seen_while_the_slots_filled(fill_s: float) -> None:
    """The sixteenth rollout begins `fill_s` after the first one; each takes a second."""
    sums = replace(spent(), limit=16)
    for number in range(1, 200):
        began = 100.0 + fill_s * min(number, 16) / 16
        sums.growth["model"].add(min(number, 16), 1.0, began)
    found = verdict(sums, CALM)
    assert found and found.gain == (2.0 if fill_s else None), found
    assert ("would gain up to 2.0x" in found.sentence) is bool(fill_s)


def engine(running: int, waiting: int = 0, sent: int = 256) -> JsonObject:
    return {"engine_sent": sent, "engine_running": running, "engine_waiting": waiting}


@pytest.mark.parametrize(
    ("loads", "is_named"),
    [
        ([engine(166)] * 3, True),
        ([engine(166)] * 2, False),
        ([engine(252)] * 3, False),
        ([engine(166, 90)] * 3, False),
        ([engine(1, sent=3)] * 3, False),
        ([{"running": 256}] * 3, False),
    ],
)
def test_requests_that_wait_before_the_engine_are_named(
    loads: list[JsonObject], is_named: bool
) -> None:
    sums = spent()
    for load in loads:
        sums.take_load(load)
    found = verdict(sums, CALM)
    assert found and ("65 % of the requests" in found.sentence) is is_named
    assert ("api_server_count" in found.sentence) is is_named
    assert found.part == "model" and found.gain == (1.0 if is_named else None)


def test_nothing_is_said_of_a_run_that_did_nothing() -> None:
    assert verdict(SlotTime(10), CALM) is None


def test_the_progress_line_shows_what_has_settled(tmp_path: Path) -> None:
    journal = Journal(OutputPaths(tmp_path / "rollouts.jsonl"))
    meter = Meter(Fixed(10), journal)

    def shown(**parts: float) -> str:
        meter.spent = spent(**parts)
        held = meter.stable_verdict()
        return held.short() if held else ""

    meter.began = perf_counter()
    assert shown() == shown() == ""  # too early
    meter.began -= 100
    assert (shown(), shown()) == ("", "model 100%")  # asked a second time, and still so
    assert shown(tools=30.0) == "model 100%"
    assert shown(tools=60.0) == "model 94%"
    assert shown(rate_limit=600.0) == "model 94%"
    assert (shown(), shown()) == ("model 94%", "model 100%")
    assert shown(rate_limit=600.0) == "model 100%"
    assert shown(rate_limit=600.0) == "rate limit 60%"
    journal.close(clean=False)


def test_nonsense_that_an_agent_tells_of_its_times_costs_no_rollout(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = registry.load("responses_api_agents", "simple_agent")
    respond = agent.respond

    async def odd(self: Any, params: Any) -> Any:
        response, session = await respond(self, params), current_session()
        assert session
        session.stats |= {"model_s": "long", "tool_s": -1, "mood": "fine"}
        return response

    monkeypatch.setattr(agent, "respond", odd)
    assert run_virtual(bench.collect([row("a"), row("b")])) == 0
    blocks = [line["rollout"] for line in bench.lines()]
    assert [(each["mood"], each["num_tool_calls"]) for each in blocks] == [("fine", 0)] * 2
    assert not any("model_s" in each for each in blocks)
