"""A canary and what it says of the whole: intervals that hold, rollouts that stay, a question."""

import asyncio
import json
import math
import os
import pty
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import HANG_S, Bench, asked, row

from rollout_kit.analysis.metrics.intervals import share, total
from rollout_kit.api.testing import ScriptedModel, run_virtual
from rollout_kit.commands import canary as estimate
from rollout_kit.commands.estimate import estimate_through
from rollout_kit.errors import ModelError
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving.endpoints.prices import Prices
from rollout_kit.serving.model import Model
from rollout_kit.session import current_session

NUM_RUNS, COVERED = 50, 45

ROOT = Path(__file__).resolve().parents[2]


def log_normal(sigma: float) -> Callable[[random.Random], float]:
    return lambda chance: chance.lognormvariate(5, sigma)


def of_the_input(chance: random.Random) -> float:
    """Long prompts get long answers, more or less."""
    length = chance.lognormvariate(6, 1)
    return 0.25 * length + math.sqrt(length) * chance.lognormvariate(2, 0.8)


def some_fail(chance: random.Random) -> float:
    return 0.0 if chance.random() < 0.1 else chance.lognormvariate(5, 1)


def cut_off(chance: random.Random) -> float:
    return min(chance.lognormvariate(6, 1.2), 1024.0)


@pytest.mark.parametrize("drawn", [20, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "cost",
    [log_normal(0.3), log_normal(0.8), log_normal(1.3), of_the_input, some_fail, cut_off],
    ids=["narrow", "wide", "very wide", "of the input", "some fail", "cut off"],
)
def test_the_interval_covers_the_true_cost(
    cost: Callable[[random.Random], float], drawn: int
) -> None:
    chance, covered = random.Random(1), 0
    for _ in range(4 * NUM_RUNS):
        everyone = [cost(chance) for _ in range(500)]
        found = total(chance.sample(everyone, drawn), len(everyone))
        covered += found.low <= sum(everyone) <= found.high
    assert covered >= 4 * COVERED


class Spender(ScriptedModel):
    """Says as many words as the task's number, after a second each, at a dollar a word."""

    def __init__(self, prices: Prices | None = None) -> None:
        super().__init__(lambda params: "")
        self.config = Model.Config(prices=prices or Prices(input=0, output=1e6))

    async def responses(self, params: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(params)
        number = int(asked(params).split()[-1])
        await asyncio.sleep(number)
        used = {"input_tokens": 10, "output_tokens": number, "total_tokens": 10 + number}
        return make_response("spender", [message_item(asked(params))], used)


def tasks(lengths: list[int]) -> list[dict[str, Any]]:
    return [row(f"task {index} of {number}") for index, number in enumerate(lengths)]


def estimate_of(bench: Bench) -> dict[str, Any]:
    [line] = [each for each in bench.out.getvalue().splitlines() if '"estimate"' in each]
    return json.loads(line)


@pytest.mark.parametrize(
    ("num_runs", "num_covered"), [(10, 9), pytest.param(NUM_RUNS, COVERED, marks=pytest.mark.slow)]
)
def test_runs_through_the_whole_pipeline_are_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_runs: int, num_covered: int
) -> None:
    """Answers log-normal in length; the canary is drawn, collected, priced and added up."""
    chance, covered = random.Random(7), 0
    for number in range(num_runs):
        lengths = [max(1, round(chance.lognormvariate(4, 1))) for _ in range(400)]
        folder = tmp_path / str(number)
        folder.mkdir()
        bench = Bench(folder)
        bench.model = Spender()
        monkeypatch.setattr("rollout_kit.commands.canary.SEED", number)
        run_virtual(
            bench.collect(
                tasks(lengths),
                through=estimate_through,
                num_canary=30,
                json=True,
            )
        )
        _, low, high = estimate_of(bench)["cost_usd"]
        covered += low <= sum(lengths) <= high
    assert covered >= num_covered


def test_the_canary_stays_in_the_output_and_the_collection_goes_on_behind_it(bench: Bench) -> None:
    bench.model = Spender()
    keys: dict[str, Any] = {"num_repeats": 2, "num_canary": 12}
    assert run_virtual(bench.collect(tasks([5] * 40), through=estimate_through, **keys)) == 0
    drawn = bench.keys()
    assert len(drawn) == len(set(drawn)) == 12 == len(bench.model.calls)
    assert bench.metrics()["counts"]["rollouts"] == 12
    said = bench.out.getvalue()
    assert "Canary: 12 rollouts of 80, drawn at random; kept in" in said
    assert "cost          $400.00    $400.00 … $400.00" in said
    assert "This collects the rest:\n  ng_collect_rollouts" in said
    assert run_virtual(bench.collect(**keys)) == 0
    assert len(bench.model.calls) == 80 and len(set(bench.keys())) == 80


def test_the_same_seed_draws_the_same_rollouts_and_all_are_as_likely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[int, list[Any]] = {}
    for attempt, seed in enumerate([3, 3, 4]):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        bench = Bench(folder)
        monkeypatch.setattr("rollout_kit.commands.canary.SEED", seed)
        run_virtual(bench.collect(tasks([1] * 200), through=estimate_through, num_canary=20))
        drawn.setdefault(seed, []).append(bench.keys())
    assert drawn[3][0] == drawn[3][1] != drawn[4][0]
    positions = [int(question.split()[1]) for question, _ in drawn[3][0]]
    assert min(positions) < 60 and max(positions) > 140


def test_each_tier_that_is_priced_is_told(bench: Bench) -> None:
    bench.model = Spender(Prices(input=0, output=1e6, factors={"batch": 0.5, "priority": 2}))
    run_virtual(bench.collect(tasks([5] * 40), through=estimate_through, num_canary=10, json=True))
    found = estimate_of(bench)
    assert found["cost_usd"] == [200.0] * 3
    assert found["tiers_usd"] == {
        "standard": [200.0] * 3,
        "batch": [100.0] * 3,
        "priority": [400.0] * 3,
    }
    assert found["total_tokens"] == [600.0] * 3 and found["rollouts"] == 40


def test_an_unknown_price_is_said_and_the_rest_is_told_all_the_same(bench: Bench) -> None:
    bench.model = Spender()
    bench.model.config, bench.model.is_own = Model.Config(), False  # type: ignore[misc]
    run_virtual(bench.collect(tasks([5] * 40), through=estimate_through, num_canary=10))
    said = bench.out.getvalue()
    assert "cost        not known" in said and "tokens            600" in said


def test_failures_are_told_with_their_share_and_reasons(bench: Bench) -> None:
    def answer(params: dict[str, Any]) -> str:
        if int(asked(params).split()[1]) % 4 == 0:
            raise ModelError("the engine broke", status=422)
        return "fine"

    bench.model = ScriptedModel(answer)
    run_virtual(bench.collect(tasks([1] * 100), through=estimate_through, num_canary=40, json=True))
    value, low, high = estimate_of(bench)["failed"]
    assert 0 < low < value < high < 1
    assert "the engine broke" in bench.out.getvalue()


def test_a_canary_without_any_response_is_no_ground_for_an_estimate(bench: Bench) -> None:
    def answer(params: dict[str, Any]) -> str:
        raise ModelError("the key is wrong", status=422)

    bench.model = ScriptedModel(answer)
    status = run_virtual(
        bench.collect(tasks([1] * 40), through=estimate_through, num_canary=10, stop_early=False)
    )
    said = bench.out.getvalue()
    assert status != 0 and "10 × " in said and "the key is wrong" in said
    assert "No estimate: none of the 10 rollouts of the canary has a response" in said
    assert "Estimate" not in said and "cost   " not in said


def test_a_canary_that_a_limit_stops_is_no_ground_for_an_estimate(bench: Bench) -> None:
    bench.model = Spender()
    status = run_virtual(
        bench.collect(
            tasks([5] * 100),
            through=estimate_through,
            num_canary=50,
            num_samples_in_parallel=2,
            max_cost_usd=20,
        )
    )
    assert status == 3
    assert "no estimate" in bench.out.getvalue() and "Estimate" not in bench.out.getvalue()
    assert 4 <= len(bench.lines()) <= 6


def test_nothing_owed_is_nothing_to_estimate(bench: Bench) -> None:
    run_virtual(bench.collect(tasks([1] * 3)))
    assert run_virtual(bench.collect(through=estimate_through)) == 0
    assert "there is nothing to estimate" in bench.out.getvalue()


def test_a_small_run_is_not_asked_about(bench: Bench) -> None:
    assert run_virtual(bench.collect(tasks([1] * 19), confirm=True, num_canary=10)) == 0
    assert len(bench.lines()) == 19
    assert bench.out.getvalue().count("Plan:") == 1 and "Canary" not in bench.out.getvalue()


def test_without_a_terminal_it_says_how_to_go_on_and_stops(bench: Bench) -> None:
    bench.model = Spender()
    assert run_virtual(bench.collect(tasks([5] * 100), confirm=True, num_canary=10)) == 3
    assert len(bench.lines()) == 10
    said = bench.out.getvalue()
    assert "Estimate for all 100" in said and "There is no terminal to ask at" in said
    assert "ng_collect_rollouts" in said and "confirm" not in said


def say_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To whatever is asked."""

    async def yes() -> str:
        return "y\n"

    monkeypatch.setattr(estimate, "read_line", yes)
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())


def test_a_canary_that_takes_all_that_may_be_spent_is_followed_by_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_yes(monkeypatch)
    bench.model = Spender()
    keys: dict[str, Any] = {"num_canary": 10, "confirm": True, "max_cost_usd": 50}
    assert run_virtual(bench.collect(tasks([5] * 100), **keys)) == 3
    assert len(bench.lines()) == len(bench.model.calls) == 10
    said = bench.out.getvalue()
    assert "Estimate for all 100" in said and "max_cost_usd=50 is reached" in said


def test_a_canary_counts_towards_the_limit_of_the_run_that_it_comes_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_yes(monkeypatch)
    bench.model = Spender()
    keys: dict[str, Any] = {"num_canary": 10, "num_samples_in_parallel": 4}
    assert run_virtual(bench.collect(tasks([5] * 100), confirm=True, max_cost_usd=200, **keys)) == 3
    assert len(bench.lines()) == 40  # 10 of them the canary's


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 3), ("\n", 3)])
def test_on_a_terminal_it_asks(tmp_path: Path, answer: str, status: int) -> None:
    rows = ROOT / "resources_servers/mcqa/data/example.jsonl"
    config = f"""
config_paths: [resources_servers/mcqa/configs/mcqa.yaml]
policy_model:
  responses_api_models:
    simulated_model: {{prices: {{input: 1, output: 2}}}}
input_jsonl_fpath: {rows}
output_jsonl_fpath: out.jsonl
num_repeats: 10
num_canary: 8
confirm: true
"""
    (tmp_path / "run.yaml").write_text(config)
    here, there = pty.openpty()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ng_collect_rollouts"), "+config_paths=[run.yaml]"],
        cwd=tmp_path,
        stdin=there,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.write(here, answer.encode())
    output, _ = process.communicate(timeout=HANG_S)
    os.close(here)
    os.close(there)
    assert process.returncode == status, output
    assert "Collect the rest? [y/N]" in output
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == (60 if status == 0 else 8)


numbers = st.lists(st.just(0.0) | st.floats(1e-9, 1e6), min_size=2, max_size=40)


@given(numbers, st.integers(0, 10_000))
def test_a_total_lies_within_its_bounds_which_leave_out_nothing_that_is_known(
    drawn: list[float], more: int
) -> None:
    value, low, high = total(drawn, len(drawn) + more)
    assert math.fsum(drawn) <= low * (1 + 1e-9) + 1e-9
    assert low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)
    assert math.isfinite(high)
    if not more:
        assert low == value == high


@given(st.integers(1, 500), st.data())
def test_a_share_lies_between_0_and_1(drawn: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, drawn))
    value, low, high = share(hits, drawn)
    assert 0 <= low <= value + 1e-12 and value <= high + 1e-12 <= 1 + 1e-12


class Limited(ScriptedModel):
    """A model server that knows what its endpoint allows."""

    paces: ClassVar[dict[str, float]] = {}

    def load_figures(self) -> dict[str, Any]:
        return {"running": 0, "waiting": 0, **self.paces}


@pytest.mark.parametrize(
    ("paces", "seconds", "shown"),
    [
        ({"requests_per_minute": 60.0}, 200.0, "at the rate limit of 60 requests a minute"),
        ({"requests_per_minute": 6e9}, 2.0, "with 64 in flight"),
        ({"tokens_per_minute": 6.0}, None, "at the rate limit of 6 tokens a minute"),
        ({}, 2.0, "with 64 in flight"),
    ],
)
def test_a_rate_limit_bounds_the_time(
    bench: Bench, paces: dict[str, float], seconds: float | None, shown: str
) -> None:
    rows = [row(f"q{number}") for number in range(200)]
    bench.model = Limited(asked, delay_s=0.5)
    bench.model.paces = paces
    keys = {"num_canary": 10, "json": True}
    run_virtual(bench.collect(rows, through=estimate_through, **keys))
    events = [json.loads(line) for line in bench.out.getvalue().splitlines()]
    [found] = [each for each in events if each["event"] == "estimate"]
    is_long = bool(found["rate_limit"])
    assert not seconds or (found["seconds"][0] == pytest.approx(seconds, rel=0.3)) == is_long
    assert bool(found["rate_limit"]) == ("rate limit" in shown)
    run_virtual(bench.collect(through=estimate_through, num_canary=10))
    assert shown in bench.out.getvalue()


def test_the_refusals_of_a_rate_limit_are_counted(bench: Bench) -> None:
    """Also those of rollouts that failed."""

    def refuse(params: dict[str, Any]) -> str:
        session = current_session()
        assert session is not None
        session.spent.throttled += 2
        if asked(params) == "q1":
            raise ModelError("no", retryable=False)
        return asked(params)

    bench.model = ScriptedModel(refuse)
    run_virtual(bench.collect([row(f"q{number}") for number in range(5)]))
    assert bench.metrics()["throughput"]["requests_429"] == 10
