"""+cheapest=true: each request takes the cheapest way that the prices have."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from batches import Imitation, echo, imitation
from claims import assert_prints
from support import Bench, row, skip_unless_installed, slow, write_jsonl
from workload import ANTHROPIC, BATCH_ONLY, OPENAI, REPEATS, PriceList, Provider, Solving, make_rows
from workplace import ROOT, Workplace

import rollout_kit as rk
from rollout_kit.api.testing import making
from rollout_kit.collecting.cheapest.savings import recall_costs
from rollout_kit.collecting.cheapest.ways import Calls, ModelWays
from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry
from rollout_kit.serving.batches.offers import find_offer
from rollout_kit.serving.endpoints.prices import tariff_of
from rollout_kit.store.files import OutputPaths

skip_unless_installed("openai", "anthropic")

SOON = {"batch_gather_s": 0.2, "batch_poll_s": 0.02}


def hosted(found: Imitation, given: PriceList, bench: Bench, **settings: Any) -> Any:
    """What makes the model server of a price list."""
    cls = registry.load("responses_api_models", given.server)
    kind = given.server.removesuffix("_model")
    url = found.url if kind == "openai" else found.url.removesuffix("/v1")
    own = {f"{kind}_base_url": url, f"{kind}_model": "m", "prices": given.prices}
    own |= {"batch_dir": str(bench.folder / "batches"), **SOON}
    return making(cls, **own, **settings)


def collect(bench: Bench, rows: list[Any] | None, model: Any, **keys: Any) -> int:
    bench.others = {**bench.others, "policy_model": model}
    return asyncio.run(bench.collect(rows, **keys))


def usd_of(bench: Bench) -> float:
    return sum(each["rollout"]["cost_usd"] for each in bench.lines())


@pytest.mark.parametrize("number", [20, slow(400)], ids=str)
@pytest.mark.parametrize(
    ("given", "bar"),
    [(OPENAI, 0.4), (ANTHROPIC, 0.4), (BATCH_ONLY, 0.6)],
    ids=["cache and flex", "cache", "batches"],
)
def test_the_bill_is_a_part_of_the_naive_one(
    bench: Bench, given: PriceList, bar: float, number: int
) -> None:
    bench.verifier, rows = making(Solving), make_rows(number)
    with imitation() as found:
        naive = Provider(found, given, has_cache=False)
        off = {"prompt_caching": "off"} if given is ANTHROPIC else {}
        assert collect(bench, rows, hosted(found, given, bench, **off), num_repeats=REPEATS) == 0
        before = bench.metrics()
        assert before["cost"]["usd"] == pytest.approx(naive.naive_usd)
        (bench.folder / "rollouts.jsonl").unlink()
        provider = Provider(found, given)
        model = hosted(found, given, bench, cheapest=True)
        assert collect(bench, None, model, num_repeats=REPEATS, resume="fresh") == 0
    after = bench.metrics()
    said = bench.out.getvalue()
    if given is OPENAI:
        assert_prints("docs/cheapest.md", "Cheapest: $", said)
    assert len(bench.lines()) == number * REPEATS
    assert after["intervals"]["reward"] == pytest.approx(before["intervals"]["reward"])
    figures = after["cheapest"]
    assert figures["naive_usd"] == pytest.approx(provider.naive_usd)
    assert figures["usd"] == pytest.approx(
        sum(each["rollout"]["cost_usd"] for each in bench.lines())
    )
    assert figures["usd"] <= bar * before["cost"]["usd"]


def test_the_plan_says_each_way_and_the_run_keeps_to_it(bench: Bench) -> None:
    bench.verifier = making(Solving)
    with imitation() as found:
        Provider(found, OPENAI)
        model = hosted(found, OPENAI, bench, cheapest=True)
        keys = {"num_repeats": REPEATS, "max_cost_usd": 20.0}
        assert collect(bench, make_rows(20), model, **keys) == 0
        said = bench.out.getvalue()
        assert_prints("docs/cheapest.md", "Cheapest way", said)
        batched = [line["body"] for batch in found.batches.values() for line in batch.lines]
        tiers = Counter(
            (body.get("service_tier"), bool(body.get("tools"))) for body in found.single
        )
    assert all(not body.get("tools") and "service_tier" not in body for body in batched)
    num_single = tiers[None, False]
    assert len(batched) + num_single == 112 and num_single < 17, "the canary is at once"
    assert tiers["flex", False] == 0
    assert tiers["flex", True] + tiers[None, True] == 10 * 48 and tiers["flex", True] > 300
    assert {body["prompt_cache_key"] for body in batched} <= {
        line["rollout"]["task_id"] for line in bench.lines()
    }
    of_turns = [line for line in bench.lines() if line["rollout"]["num_turns"] == 10]
    assert sum(line["rollout"]["cached_tokens"] for line in of_turns) > 0
    assert of_turns[0]["rollout"]["standard_usd"] > of_turns[0]["rollout"]["cost_usd"]


def test_a_limit_counts_what_waits_for_batches(bench: Bench) -> None:
    bench.verifier = making(Solving)
    with imitation() as found:
        Provider(found, OPENAI)
        model = hosted(found, OPENAI, bench, cheapest=True)
        rows = [each for each in make_rows(60) if "tools" in each["responses_create_params"]]
        assert collect(bench, rows, model, num_repeats=REPEATS, max_cost_usd=0.1) == 3
        first = usd_of(bench)
        assert 0.05 < first <= 0.1
        assert found.submitted.total() < 42 * REPEATS, "not all were submitted"
        assert collect(bench, None, model, num_repeats=REPEATS, max_cost_usd=0.1) == 3
        assert "canary: none, as the output has rollouts already" in bench.out.getvalue()
        assert usd_of(bench) - first <= 0.1
        assert max(found.submitted.values()) == 1


def test_a_limit_counts_what_earlier_runs_have_cost(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    assert recall_costs(paths).spent.usd == 0
    line = {
        "kind": "failure",
        "schema": 1,
        "agent_ref": {"name": "a"},
        "rollout": {"task_id": "t", "rollout_index": 0},
        "failure": {"class": "ModelError", "message": "down"},
    }
    paths.failures.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(paths.failures, [{**line, "cost_usd": 0.25}, {**line, "cost_usd": 0.5}, line])
    assert recall_costs(paths).spent.usd == 0.75


def test_what_is_not_there_is_named_with_its_reason_and_no_figure_is_made_up(bench: Bench) -> None:
    bench.agent_settings = {"max_steps": 1}
    with imitation() as found:
        model = hosted(found, PriceList({}), bench, cheapest=True)
        assert collect(bench, [row("q")], model) == 0
    said = bench.out.getvalue()
    unknown = "its price is not known: give its server `prices`"
    assert f"no batches: {unknown}; no flex: {unknown}; no cache: {unknown}" in said
    assert "1 rollout of echo_agent with one call, as the agent makes no more: at once" in said
    assert "Cheapest: the price of some calls is not known" in said
    assert not found.batches and bench.metrics()["cheapest"]["naive_usd"] is None


def offer(**settings: Any) -> Any:
    cls = registry.load("responses_api_models", "openai_model")
    given = {"openai_base_url": "http://x", "openai_model": "m", "cheapest": True, **settings}
    config = cls.Config.model_validate(given)
    tariff = tariff_of(config.prices, "m", "")
    return ModelWays(find_offer(config, tariff), tariff)


PRICES = {"input": 1.0, "output": 4.0}


@pytest.mark.parametrize(
    ("prices", "takes"),
    [
        ({**PRICES, "cached_input": 0.5, "factors": {"batch": 0.5}}, True),
        ({**PRICES, "cached_input": 0.25, "factors": {"batch": 0.5}}, False),
        ({**PRICES, "factors": {"batch": 0.5, "flex": 0.5}}, False),
        ({**PRICES, "factors": {"flex": 0.5}}, False),
    ],
)
def test_long_rollouts_go_into_batches_if_these_cost_less(prices: Any, takes: bool) -> None:
    found = offer(prices=prices)
    assert found.takes_batch(Calls.SEVERAL) is found.takes_batch(Calls.UNKNOWN) is takes
    assert found.takes_batch(Calls.ONE) is ("batch" in prices["factors"])


def test_keys_of_a_server_are_respected() -> None:
    prices = {**PRICES, "factors": {"batch": 0.5, "flex": 0.5}}
    assert offer(prices=prices, batch=False).offer.batch == "its key batch is false"
    found = offer(prices=prices, service_tier="priority").offer
    assert found.flex == "its key service_tier is priority"
    assert found.batch == "its key service_tier means nothing in a batch"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"executor": "processes"}, "executor"),
        ({"epochs": 2}, "epochs"),
        ({"buffer": "memory:"}, "buffer"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    bench: Bench, keys: dict[str, Any], why: str
) -> None:
    with imitation() as found:
        given = PriceList({**PRICES, "factors": {"flex": 0.5}})
        model = hosted(found, given, bench, cheapest=True)
        with pytest.raises(ConfigError, match=f"cheapest: {why} does not go with it"):
            collect(bench, [row("q")], model, **keys)
        assert not found.single


def test_a_command_cannot_have_both_and_needs_a_hosted_model() -> None:
    with pytest.raises(ConfigError, match="leave one out"):
        load(["+config_paths=[configs/demo.yaml]", "+batch=true", "+cheapest=true"], CollectConfig)
    with pytest.raises(ConfigError, match="cheapest: no model server here"):
        load(["+config_paths=[configs/demo.yaml]", "+cheapest=true"], CollectConfig)


def test_a_program_gets_the_plan_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rollout_kit")
    rows = [{**each, "expected_answer": "4"} for each in make_rows(7)]
    tasks = write_jsonl(tmp_path / "tasks.jsonl", rows)
    with imitation() as found:
        Provider(found, OPENAI)
        found.answer = found.answer_at_once = echo
        own = {"openai_base_url": found.url, "openai_model": "m", "prices": OPENAI.prices, **SOON}
        own["batch_dir"] = str(tmp_path / "batches")
        model = {"policy_model": {"responses_api_models": {"openai_model": own}}}
        config = tmp_path / "model.yaml"
        config.write_text(json.dumps(model))

        async def main() -> Any:
            output = tmp_path / "rollouts.jsonl"
            paths = [
                str(ROOT / "resources_servers/string_match/configs/string_match.yaml"),
                str(config),
            ]
            return await rk.collect(tasks, servers=paths, output=output, cheapest=True)

        table = asyncio.run(main())
        assert len(table) == 7 and found.submitted.total() == 7
    assert "with one call, as their rows have no tools: in batches" in caplog.text


def test_the_command_chooses_for_servers_that_run(tmp_path: Path) -> None:
    with imitation() as found:
        workplace = Workplace(tmp_path, found)  # type: ignore[arg-type]
        workplace.tasks(60)
        of_model = "policy_model.responses_api_models.openai_model"
        soon = [f"+{of_model}.{key}={value}" for key, value in SOON.items()]
        prices = f"+{of_model}.prices={{input: 1.0, output: 2.0, factors: {{batch: 0.5}}}}"
        with workplace.ng_run("+cheapest=true", prices, *soon) as (_, port, _):
            files = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
            status, said = workplace.run("collect_rollouts", *files, f"+head_server.port={port}")
        assert status == 0, said
        assert found.submitted.total() == 54 and len(found.single) == 6
    assert (
        "60 rollouts of echo_agent with one call, as their rows have no tools: in batches" in said
    )
    assert "Without it: $" in said
