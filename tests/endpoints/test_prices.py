"""What an answer costs: from the table, from the YAML, and where nobody knows."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollout_kit.api.testing import ScriptedModel, text_response
from rollout_kit.responses import make_response
from rollout_kit.serving.endpoints.prices import FREE, Prices, Tariff, tariff_of
from rollout_kit.serving.endpoints.replies import from_chat
from rollout_kit.serving.model import Model
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.session import Session, Spent

OPENAI = "https://api.openai.com/v1"


def usage(asked: int, given: int, cached: int = 0, written: int = 0) -> dict:
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    total = {"input_tokens": asked, "output_tokens": given, "total_tokens": asked + given}
    return {**total, "input_tokens_details": details}


def known(tariff: Tariff | None) -> Tariff:
    assert tariff is not None
    return tariff


def test_prices_of_the_yaml_are_per_million_tokens_and_cached_input_is_input_unless_it_says() -> (
    None
):
    plain = known(tariff_of(Prices(input=2, output=8), "any", ""))
    assert plain.cost(usage(1000, 100, cached=400)) == pytest.approx(1000 * 2e-6 + 100 * 8e-6)
    cached = known(tariff_of(Prices(input=2, output=8, cached_input=0.5), "any", ""))
    assert cached.cost(usage(1000, 100, cached=400)) == pytest.approx(
        600 * 2e-6 + 400 * 0.5e-6 + 100 * 8e-6
    )


def test_the_table_knows_openai_s_models_and_their_tiers() -> None:
    tariff = known(tariff_of(None, "gpt-5", OPENAI))
    assert set(tariff.tiers) == {"standard", "batch", "flex", "priority", "fast"}
    asked = usage(1_000_000, 100_000)
    standard = tariff.cost(asked)
    assert 0 < tariff.cost(asked, "flex") < standard < tariff.cost(asked, "priority")
    assert tariff.cost(asked, "batch") < standard
    assert tariff.cost(usage(1_000_000, 0, cached=1_000_000)) < tariff.cost(usage(1_000_000, 0))
    assert tariff.cost(asked, "default") == tariff.cost(asked, "a tier of tomorrow") == standard
    dated = known(tariff_of(None, "gpt-4o-mini-2024-07-18", OPENAI))
    assert dated == tariff_of(None, "gpt-4o-mini", OPENAI)


def test_the_table_knows_claude_s_caches_and_tiers() -> None:
    tariff = known(tariff_of(None, "claude-sonnet-5-5", "https://api.anthropic.com"))
    plain = tariff.cost(usage(1_000_000, 0))
    assert tariff.cost(usage(1_000_000, 0, cached=1_000_000)) <= 0.1 * plain
    written = usage(1_000_000, 0, written=1_000_000)
    assert tariff.cost(written) == pytest.approx(1.25 * plain)
    written["input_tokens_details"]["cache_write_1h_tokens"] = 1_000_000
    assert tariff.cost(written) == pytest.approx(2 * plain)
    assert tariff.cost(written, "batch") == pytest.approx(plain)
    assert "written to a cache $2.5" in tariff.words()
    fast = known(tariff_of(None, "claude-fable-5-2", "https://api.anthropic.com"))
    assert fast.cost(usage(1000, 0), "fast") > fast.cost(usage(1000, 0))


def test_a_long_prompt_costs_more_of_every_token_by_the_length_of_one_request() -> None:
    url = "https://generativelanguage.googleapis.com/v1beta/openai"
    tariff = known(tariff_of(None, "gemini-2.5-pro", url))
    short, long = tariff.cost(usage(200_000, 0)), tariff.cost(usage(200_001, 0))
    assert long > 1.9 * short
    assert tariff.cost(usage(400_000, 0), requests=2) == pytest.approx(2 * short)


def test_who_cannot_be_priced_has_no_price_and_the_table_is_not_even_imported() -> None:
    assert tariff_of(None, "some-model", "https://example.com/v1") is None
    assert tariff_of(None, "no-such-model-of-openai", OPENAI) is None
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from rollout_kit.serving.endpoints.prices import *;"
            "print(tariff_of(None, 'gpt-5', 'http://localhost:8000/v1'), tariff_of(None, 'm', ''),"
            "tariff_of(Prices(input=1, output=1), 'm', 'https://api.openai.com/v1') is None,"
            "'genai_prices' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["None", "None", "False", "False"]


def test_an_endpoint_in_front_is_priced_by_the_provider_and_the_model_that_are_named() -> None:
    behind = Prices(provider="openai", model="gpt-5")
    assert tariff_of(behind, "our-name", "http://localhost:4000") == tariff_of(
        None, "gpt-5", OPENAI
    )


def test_factors_price_the_tiers_that_the_table_does_not_know() -> None:
    given = known(tariff_of(Prices(input=2, output=8, factors={"batch": 0.5}), "any", ""))
    assert given.cost(usage(10, 10), "batch") == pytest.approx(given.cost(usage(10, 10)) / 2)
    table = known(tariff_of(Prices(factors={"flex": 0.25}), "gpt-4o-mini", OPENAI))
    assert table.cost(usage(10, 10), "flex") == pytest.approx(table.cost(usage(10, 10)) / 4)


def test_tokens_that_only_the_total_counts_were_generated() -> None:
    tariff = known(tariff_of(Prices(input=0, output=1), "any", ""))
    hidden = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 1015}
    assert tariff.cost(hidden) == pytest.approx(1005e-6)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"input": 1}, "give both input and output"),
        ({"cached_input": 1}, "need input and output"),
        ({"input": 1, "output": 1, "provider": "openai"}, "not both"),
        ({"factors": {"batch": -1}}, "not be negative"),
        ({"input": -1, "output": 1}, "greater than or equal to 0"),
    ],
)
def test_prices_that_mean_nothing_are_refused(given: dict, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Prices.model_validate(given)


counts = st.integers(0, 10**9)


@given(counts, counts, counts, counts)
def test_a_cost_is_never_negative_nor_beyond_the_dearest_rate(
    asked: int, answered: int, cached: int, written: int
) -> None:
    tariff = known(tariff_of(Prices(input=3, output=7, cached_input=1, cache_write=4), "any", ""))
    cost = tariff.cost(usage(asked, answered, cached, written))
    assert 0 <= cost <= (asked + answered) * 7e-6 + 1e-9


def test_a_tariff_is_the_same_after_a_journey_as_json_and_anything_else_is_none() -> None:
    for model, url in (("gpt-5", OPENAI), ("claude-opus-4-5", "https://api.anthropic.com")):
        tariff = known(tariff_of(None, model, url))
        assert Tariff.from_json(tariff.to_json()) == tariff
    for other in (None, 3, [], {}, {"standard": []}, {"standard": [[1]]}, {"flex": [[0] * 5]}):
        assert Tariff.from_json(other) is None


def test_a_response_is_billed_by_its_own_tier_and_what_cannot_be_read_is_not_known() -> None:
    model = ScriptedModel([])
    model.config = Model.Config(prices={"input": 1, "output": 1, "factors": {"flex": 0.5}})
    spent = Spent()
    model.bill({**text_response("a b c"), "service_tier": "flex"}, spent)
    assert (spent.calls, spent.tokens, spent.usd) == (1, 4, pytest.approx(2e-6))
    for nothing in ({"input_tokens": "many", "total_tokens": "more"}, {"total_tokens": 0}, None, 3):
        model.bill({**text_response("a b c"), "usage": nothing}, spent)
    assert (spent.calls, spent.unpriced, spent.cost_usd) == (5, 4, None)
    refused = Spent()
    model.bill(make_response("scripted", [], None), refused)  # the prompt was too long
    assert refused.cost_usd == 0.0


def test_a_model_of_one_s_own_is_free_and_one_that_somebody_wrote_is_not_known() -> None:
    assert ScriptedModel([]).describe()["prices"] == FREE.to_json()
    assert "prices" not in Model(Model.Config(), Peers({}), "mine").describe()


def test_what_was_spent_crosses_processes_and_garbage_adds_nothing() -> None:
    there, here = Spent(2, 30, 0.1 + 0.2, 1, 4, 0.7, 1), Spent()
    here.add_header(there.to_header())
    for garbage in ("", "1 2", "a b c d", "1 2 3 4 5 6", "1 2 3 4 x", "1 2 3 4 5 6 x"):
        here.add_header(garbage)
    assert here == there
    here.add_header("1 2 0.5 0")
    assert here.calls == 3 and here.throttled == 4, "by a server of an earlier version"
    assert here.unlisted == 2, "whose standard price is not known"


def test_statistics_cross_processes_and_lost_times_add_up() -> None:
    there, here = Session(), Session()
    there.stats |= {"num_turns": 2, "finish_reason": "ünfinished", "retry_s": 0.5}
    assert there.stats_to_header().isascii()
    here.add_stats_header(there.stats_to_header())
    assert here.stats == there.stats
    garbage = ("", "1", "[2]", "{", '{"rate_limit_s": "x"}')
    for header in (*garbage, '{"num_turns": 3, "retry_s": 1}'):
        here.add_stats_header(header)
    assert here.stats == {"num_turns": 3, "finish_reason": "ünfinished", "retry_s": 1.5}


def test_a_chat_completion_keeps_its_tier() -> None:
    choice = {"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    completion = {"choices": [choice], "model": "m", "service_tier": "flex"}
    assert from_chat(completion, {})["service_tier"] == "flex"
