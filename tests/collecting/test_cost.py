"""What a run costs and the limits on it: told on every line, counted whole, kept to."""

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from snapshots import cost, snapshot
from support import Bench, Echo, asked, config_of, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import (
    OVERS,
    Over,
    ScriptedModel,
    making,
    mount,
    run_virtual,
    text_response,
)
from rollout_kit.collecting.live.figures import parts_of_cost
from rollout_kit.collecting.live.snapshot import Cost
from rollout_kit.collecting.live.watcher import snapshot_of
from rollout_kit.collecting.pacing.bill import dollars
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.drive import describe_cost, make_run
from rollout_kit.commands.progress import Progress
from rollout_kit.commands.work import open_work
from rollout_kit.errors import ConfigError, ModelError, VerifyError
from rollout_kit.launch.reach import Servers
from rollout_kit.serving.agent import Agent
from rollout_kit.serving.endpoints.prices import Prices
from rollout_kit.serving.model import Model
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.session import Session, entered
from rollout_kit.types import Rollout, VerifyRequest, VerifyResponse

ROWS = [row(f"q{number}") for number in range(20)]

DOLLAR_A_TOKEN = Prices(input=1e6, output=1e6)


class PricedModel(ScriptedModel):
    """Takes a second a token, and a dollar: `n` in a task is how many it says."""

    def __init__(self, prices: Prices | None = DOLLAR_A_TOKEN, **more: Any) -> None:
        super().__init__(asked, **more)
        self.config = Model.Config(prices=prices)
        self.ended = self.started = 0

    async def responses(self, params: dict[str, Any]) -> dict[str, Any]:
        self.started += 1
        words = len(asked(params).split())
        await asyncio.sleep(words)
        self.ended += 1
        return await super().responses(params)


class Judged(ResourcesServer):
    """Asks a judge for each verdict."""

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        await self.peers.call("judge", "/v1/responses", {"input": [{"content": "judge this"}]})
        return body.scored(reward=1.0)


def costs(bench: Bench) -> list[float | None]:
    return [line["rollout"].get("cost_usd") for line in bench.lines()]


def test_each_line_says_its_cost_and_the_metrics_add_up(bench: Bench) -> None:
    bench.model = PricedModel()
    assert run_virtual(bench.collect(ROWS)) == 0
    assert costs(bench) == [2.0] * 20  # one token read, one said
    cost = bench.metrics()["cost"]
    assert (cost["usd"], cost["usd_per_rollout"], cost["unknown"]) == (40.0, 2.0, 0)
    assert (cost["run"]["usd"], cost["run"]["projected_usd"]) == (40.0, 40.0)
    assert cost["run"]["tokens"] == 40
    manifest = json.loads((bench.folder / "rollouts.d/run.json").read_text())
    assert manifest["prices"] == {"echo_agent": {"standard": [[0, 1.0, 1.0, 1.0, 1.0]]}}
    assert "Cost: $40.00 in this run, $2.00 a rollout" in bench.out.getvalue()


def test_a_run_with_nothing_to_do_keeps_what_the_last_one_has_spent(bench: Bench) -> None:
    bench.model = PricedModel()
    run_virtual(bench.collect(ROWS))
    before = bench.metrics()["cost"]
    run_virtual(bench.collect())
    assert bench.metrics()["cost"] == before
    assert "Cost:" not in bench.out.getvalue()


def test_a_model_of_one_s_own_costs_nothing_and_nothing_is_told(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS))
    assert costs(bench) == [0.0] * 20
    assert "cost" not in bench.metrics() and "Cost" not in bench.out.getvalue()


def test_a_price_that_nobody_knows_is_never_zero_and_is_said_once(bench: Bench) -> None:
    bench.model = PricedModel(prices=None)
    bench.model.is_own = False
    run_virtual(bench.collect(ROWS))
    assert costs(bench) == [None] * 20
    assert bench.metrics()["cost"]["usd"] is None
    assert bench.metrics()["cost"]["unknown"] == 20
    assert bench.out.getvalue().count("Cost: not known") == 1


def test_attempts_that_failed_are_paid_for_too(bench: Bench) -> None:
    tried = set()

    class Moody(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            question = asked(body.responses_create_params)
            if question == "q1":
                raise VerifyError("never", status=422)
            if question not in tried:
                tried.add(question)
                raise VerifyError("not yet", status=410)  # the session is gone: anew
            return body.scored(reward=1.0)

    bench.model, bench.verifier = PricedModel(), making(Moody)
    run_virtual(bench.collect(ROWS[:3]))
    [failed] = bench.lines("failures")
    assert failed["cost_usd"] == 2.0
    assert bench.metrics()["cost"]["run"]["usd"] == 2.0 * len(bench.model.calls)
    assert sum(filter(None, costs(bench))) + 2.0 == 2.0 * len(bench.model.calls)


def test_a_failure_before_any_answer_says_nothing_of_money(bench: Bench) -> None:
    def refuse(params: dict[str, Any]) -> str:
        raise ModelError("no", status=422)

    bench.model = ScriptedModel(refuse)
    run_virtual(bench.collect(ROWS[:1]))
    assert "cost_usd" not in bench.lines("failures")[0]


@pytest.mark.parametrize("over", OVERS)
def test_a_judge_is_counted_and_so_is_every_turn_over_any_transport(over: Over) -> None:
    """The whole of it at the caller's session: from the judge through the verifier."""

    def priced(price: float) -> Any:
        def make(peers: Any, name: str) -> Model:
            model = ScriptedModel(lambda params: "two words")
            model.config = Model.Config(prices=Prices(input=0, output=price * 1e6))
            model.name = name
            return model

        return make

    async def spent() -> Session:
        servers = {"policy_model": priced(1.0), "judge": priced(0.25), "echo": making(Judged)}
        async with mount(servers, over) as peers:
            session = Session()
            with entered(session):
                params = {"input": [{"role": "user", "content": "hi"}]}
                task = {"responses_create_params": params}
                await peers.call("echo", "/seed_session", task)
                response = await peers.call("policy_model", "/v1/responses", params)
                await peers.call("echo", "/verify", {**task, "response": response})
            return session

    total = asyncio.run(spent()).spent
    assert (total.calls, total.tokens, total.usd, total.unpriced) == (2, 6, 2.5, 0)


def test_a_judge_without_a_price_makes_the_cost_of_a_rollout_unknown(bench: Bench) -> None:
    class Unpriced(ScriptedModel):
        is_own = False

    judge = Unpriced(lambda params: "fine")

    class Asks(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            await judge.handle("/v1/responses", b'{"input": "judge this"}')
            return body.scored(reward=1.0)

    bench.model, bench.verifier = PricedModel(), making(Asks)
    run_virtual(bench.collect(ROWS, max_cost_usd=1000))
    assert costs(bench) == [None] * 20
    said = bench.out.getvalue()
    assert said.count("and max_cost_usd cannot count it") == 1
    assert "the price of 20 of 40 model calls is not known" in said


class OfItsOwn(Agent):
    """Brings its verdict along. `asks` the policy, or has an answer from elsewhere."""

    asks = True

    async def run(self, row: dict[str, Any]) -> dict[str, Any]:
        params, response = row["responses_create_params"], text_response("from elsewhere")
        if self.asks:
            response = await self.peers.call(self.model, "/v1/responses", params)
        return {**row, "response": response, "reward": 1.0}


class FromElsewhere(OfItsOwn):
    asks = False


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize(("agent", "cost"), [(OfItsOwn, 2.0), (FromElsewhere, None)])
def test_an_agent_with_a_way_of_its_own_costs_what_it_asks_for_and_else_nobody_knows(
    tmp_path: Path, over: Over, agent: type[Agent], cost: float | None
) -> None:
    async def collect() -> int:
        model = PricedModel()
        servers = {
            "policy_model": lambda peers, name: model,
            "agent": making(agent, model_server={"name": "policy_model"}),
        }
        async with mount(servers, over) as peers:
            reached = Servers(peers, ["agent"], {}, {})
            progress = Progress(out=io.StringIO(), err=io.StringIO())
            config = config_of(write_jsonl(tmp_path / "tasks.jsonl", ROWS[:2]).parent)
            return await collect_through(reached, config, [], progress)

    assert asyncio.run(collect()) == 0
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert [line["rollout"].get("cost_usd") for line in lines] == [cost, cost]


def test_a_verdict_that_comes_in_a_later_run_keeps_what_the_response_cost(bench: Bench) -> None:
    class Broken(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            raise VerifyError("the judge is down", status=500)

    bench.model, bench.verifier = PricedModel(), making(Broken)
    run_virtual(bench.collect(ROWS[:3]))
    assert [line["rollout"]["cost_usd"] for line in bench.lines("unverified")] == [2.0] * 3
    bench.verifier = making(Echo)
    assert run_virtual(bench.collect()) == 0
    assert costs(bench) == [2.0] * 3
    assert len(bench.model.calls) == 3


@pytest.mark.parametrize("parallel", [1, 7, 20])
def test_money_is_overspent_by_no_more_than_what_was_in_flight(bench: Bench, parallel: int) -> None:
    rows = [row(" ".join(["w"] * (1 + number % 9)) + f" q{number}") for number in range(200)]
    bench.model = model = PricedModel()
    in_flight = []
    say = model.bill

    def watched(response: Any, spent: Any) -> None:
        in_flight.append(model.started - model.ended)
        say(response, spent)

    model.bill = watched  # type: ignore[method-assign]
    status = run_virtual(bench.collect(rows, num_samples_in_parallel=parallel, max_cost_usd=100))
    assert status == 3
    done = [line["rollout"]["cost_usd"] for line in bench.lines()]
    assert len(done) == model.started, "what was paid for is on disk"
    before = [sum(done[:number]) for number in range(len(done) + 1)]
    reached = next(number for number, spent in enumerate(before) if spent >= 100 - max(done))
    assert sum(done) <= 100 + sum(sorted(done)[-parallel:])
    assert len(done) - reached <= parallel, "nothing was started once it was reached"
    said = bench.out.getvalue()
    assert "max_cost_usd=100 is reached" in said and "This continues:" in said
    assert f"Still to come: {200 - len(done)} rollouts" in said


def test_with_few_in_flight_a_limit_is_hardly_overspent_at_all(bench: Bench) -> None:
    rows = [row(f"a b c q{number}") for number in range(300)]
    bench.model = PricedModel()
    run_virtual(bench.collect(rows, num_samples_in_parallel=16, max_cost_usd=501))
    assert sum(filter(None, costs(bench))) == 500  # five dollars each, and no room for another


def test_a_limit_is_each_run_s_own_and_the_same_command_goes_on_to_the_end(bench: Bench) -> None:
    bench.model = PricedModel()
    statuses = [
        run_virtual(
            bench.collect(ROWS, num_repeats=3, num_samples_in_parallel=5, max_total_tokens=50)
        )
    ]
    while statuses[-1] == 3:
        statuses.append(
            run_virtual(
                bench.collect(num_repeats=3, num_samples_in_parallel=5, max_total_tokens=50)
            )
        )
    assert statuses == [3, 3, 0]
    assert len(bench.lines()) == len(set(bench.keys())) == 60
    assert bench.metrics()["cost"]["usd"] == 120.0


def test_time_is_up_and_what_is_in_flight_has_its_drain_timeout(bench: Bench) -> None:
    slow = row(" ".join(["w"] * 1000))
    bench.model = PricedModel()
    rows = [row("a " * 30 + f"q{number}") for number in range(40)]
    status = run_virtual(
        bench.collect([slow, *rows], num_samples_in_parallel=2, max_minutes=5, drain_timeout_s=60)
    )
    assert status == 3
    assert len(bench.lines()) == 10  # 31 seconds each, begun within 300
    assert bench.model.started == 11
    said = bench.out.getvalue()
    assert "max_minutes=5 are over; stopping: 2 in flight may finish, for up to 60 s" in said


def test_a_limit_that_the_last_rollouts_reach_has_stopped_nothing(bench: Bench) -> None:
    bench.model = PricedModel()
    assert run_virtual(bench.collect(ROWS, max_cost_usd=40)) == 0
    assert len(bench.lines()) == 20


def test_money_cannot_be_limited_where_no_price_is_known(bench: Bench) -> None:
    bench.model = PricedModel(prices=None)
    bench.model.is_own = False
    with pytest.raises(ConfigError, match="Give the model server its prices"):
        run_virtual(bench.collect(ROWS, max_cost_usd=1))
    assert not bench.model.calls and not bench.lines()
    assert run_virtual(bench.collect(max_total_tokens=10**9)) == 0


def test_the_progress_is_told_what_is_spent_and_what_will_be(bench: Bench) -> None:
    bench.model = PricedModel()
    seen: list[Cost | None] = []

    async def through(servers: Any, config: Any, argv: Any, progress: Any) -> int:
        async with open_work(servers, config, argv) as work, work.collection(progress) as found:
            run = make_run(found, servers.ends, progress)
            async for outcome in run.outcomes():
                if len(seen) < 2 and isinstance(outcome, Rollout):
                    seen.append(snapshot_of(run).cost)
            seen.append(snapshot_of(run).cost)
            return 0

    assert run_virtual(bench.collect(ROWS, through=through, num_samples_in_parallel=1)) == 0
    first, _, last = seen
    assert first and last and first.usd and last.usd
    number = len(ROWS)
    assert first.projected_usd == pytest.approx(first.usd * number)
    assert last.projected_usd == pytest.approx(last.usd) == pytest.approx(first.usd * number)
    assert last.calls == number and last.unpriced_calls == 0 and last.priced_usd == last.usd


def test_the_cost_in_the_progress_line_and_at_the_end() -> None:
    known = cost(usd=0.124, projected_usd=1.24, priced_usd=0.124, calls=10)
    assert parts_of_cost(known, 0.248) == {"cost": "cost=$0.12→$1.24", "burn": "$0.25/min"}
    endless = replace(known, projected_usd=None)
    assert parts_of_cost(endless, 0.248)["cost"] == "cost=$0.12"
    assert describe_cost(known, 10, 0.248) == (
        "Cost: $0.12 in this run, $0.012 a rollout, $0.25 a minute"
    )
    partly = replace(endless, usd=None, unpriced_calls=1, calls=11)
    assert parts_of_cost(partly, 0.248)["cost"] == "cost>$0.12"
    assert describe_cost(partly, 11, 0.248).endswith(
        "; the price of 1 of 11 model calls is not known"
    )
    assert describe_cost(replace(partly, priced_usd=0.0), 11, 0.0).startswith("Cost: not known")
    assert parts_of_cost(replace(partly, priced_usd=0.0), 0.0) == parts_of_cost(None, 0.0) == {}
    assert [dollars(usd) for usd in (0, 0.000017, 0.0042, 0.42, 12.345, 1234.5)] == [
        "$0",
        "$0.000017",
        "$0.0042",
        "$0.42",
        "$12.35",
        "$1,234.50",
    ]


def test_json_progress_carries_the_figures() -> None:
    out = io.StringIO()
    known = cost(usd=0.5, projected_usd=1.0)
    Progress(as_json=True, out=out).read(snapshot(finished=2, state="ended", cost=known))
    found = json.loads(out.getvalue())["cost"]
    assert (found["usd"], found["projected_usd"]) == (0.5, 1.0)
