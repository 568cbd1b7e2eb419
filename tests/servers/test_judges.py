"""A judge that says nothing that can be read, or nothing at all: no verdict, and its name."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import Desk, asked

import rollout_kit as rk
from rollout_kit.api.testing import OVERS, Over, ScriptedModel, making, run_virtual
from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import Program, load
from rollout_kit.errors import ConfigError, ModelError
from rollout_kit.serving import registry
from rollout_kit.types import JsonObject

Equivalence = registry.load("resources_servers", "equivalence_llm_judge")
Genrm = registry.load("resources_servers", "genrm_compare")
ROWS = [
    {
        "responses_create_params": {"input": [{"role": "user", "content": f"q{number}"}]},
        "expected_answer": f"a{number}",
    }
    for number in range(4)
]


class Silent(ScriptedModel):
    """Never answers."""

    async def responses(self, params: JsonObject) -> JsonObject:
        await asyncio.sleep(10**6)
        return {}


def desk_with(folder: Path, judge: Any, server: Any = Equivalence, **settings: Any) -> Desk:
    desk = Desk(folder)
    ref = {"type": "responses_api_models", "name": "strict_judge"}
    desk.verifier = making(server, judge_model_server=ref, **settings)
    desk.others = desk.verifiers = {"strict_judge": lambda peers, name: judge}
    return desk


def down(params: JsonObject) -> str:
    raise ModelError("connection refused", status=503, retryable=False)


JUDGES = {
    "unreadable": lambda: ScriptedModel(lambda params: "I like both."),
    "empty": lambda: ScriptedModel(lambda params: ""),
    "down": lambda: ScriptedModel(down),
    "silent": lambda: Silent(asked),
}


@pytest.mark.parametrize("kind", JUDGES)
def test_without_a_judge_the_response_waits_and_the_report_names_it(
    tmp_path: Path, kind: str
) -> None:
    desk = desk_with(tmp_path, JUDGES[kind]())
    assert run_virtual(desk.collect(ROWS, stop_early=False, verify_timeout_s=60)) == 2
    assert desk.lines() == [] and len(desk.lines("unverified")) == 4
    said = desk.out.getvalue()
    assert "4 wait for their verdict" in said and "the judge 'strict_judge' gave no" in said
    assert "reward" not in desk.metrics()
    desk.verifiers = {"strict_judge": lambda peers, name: ScriptedModel(lambda params: "[[A=B]]")}
    source = str(tmp_path / "rollouts.d/unverified.jsonl")
    assert run_virtual(desk.reverify(input_jsonl_fpath=source)) == 0
    assert [line["reward"] for line in desk.new()] == [1.0] * 4


@pytest.mark.parametrize("over", OVERS[1:])
def test_a_silent_judge_is_named_in_time_over_every_transport(tmp_path: Path, over: Over) -> None:
    desk = desk_with(tmp_path, Silent(asked))
    desk.collects_over = over
    assert asyncio.run(desk.collect(ROWS[:1], stop_early=False, verify_timeout_s=1)) == 2
    [failure] = desk.lines("failures")
    assert "the judge 'strict_judge' gave no answer within" in failure["failure"]["message"]


def test_one_judge_of_three_that_is_down_is_named(tmp_path: Path) -> None:
    """Three verifiers with a judge each."""
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.mkdir()
        judge = Silent(asked) if name == "two" else ScriptedModel(lambda params: "[[A=B]]")
        desk = desk_with(folder, judge)
        status = run_virtual(desk.collect(ROWS, stop_early=False))
        assert status == (2 if name == "two" else 0)
        assert ("'strict_judge'" in desk.out.getvalue()) == (name == "two")


def test_a_group_whose_judge_cannot_be_read_has_no_score(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, JUDGES["unreadable"](), Genrm)
    assert run_virtual(desk.collect(ROWS[:2], num_repeats=2)) == 2
    assert len(desk.lines()) == 4 and not desk.lines("groups")
    assert "the judge 'strict_judge' gave no scores" in desk.out.getvalue()


class Priced(rk.Model):
    """A judge at a dollar for each output token, who says what `says` returns."""

    says = staticmethod(lambda params: "[[A=B]]")
    usage: ClassVar[JsonObject | None] = {"input_tokens": 0, "output_tokens": 1, "total_tokens": 1}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.calls: list[JsonObject] = []
        self.in_flight = self.most_in_flight = 0

    async def responses(self, params: JsonObject) -> JsonObject:
        self.calls.append(params)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(1)
        self.in_flight -= 1
        return rk.make_response("priced", [rk.message_item(self.says(params))], self.usage)


def priced_judge(limit: float, **settings: Any) -> tuple[Any, list[Priced]]:
    made: list[Priced] = []

    def make(peers: Any, name: str) -> Priced:
        given = {"max_cost_usd": limit, "prices": {"input": 0, "output": 1e6}, **settings}
        made.append(Priced(Priced.Config.model_validate(given), peers, name))
        return made[-1]

    return make, made


MANY = [
    {
        "responses_create_params": {"input": [{"role": "user", "content": f"q{number}"}]},
        "expected_answer": f"a{number}",
    }
    for number in range(20)
]


def test_a_judge_spends_no_more_than_it_may(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, None)
    make, made = priced_judge(7.5)
    desk.others = desk.verifiers = {"strict_judge": make}
    assert run_virtual(desk.collect(MANY, stop_early=False)) == 2
    assert len(made[0].calls) == 7 and made[0].most_in_flight > 1
    assert len(desk.lines()) == 7 and len(desk.lines("unverified")) == 13
    assert "max_cost_usd=7.5 is reached: $7.0000 were spent" in desk.out.getvalue()
    # the next run has the same limit again, and asks for those that wait
    assert run_virtual(desk.collect(MANY, stop_early=False)) == 2
    assert len(made[1].calls) == 7 and len(desk.lines()) == 14
    assert run_virtual(desk.collect(MANY, stop_early=False)) == 0
    assert len(desk.lines()) == 20 and {line["reward"] for line in desk.lines()} == {1.0}


def test_a_limit_in_dollars_needs_a_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_with(tmp_path, None)
    make, made = priced_judge(7.5, prices=None)
    monkeypatch.setattr(Priced, "usage", None)
    desk.others = desk.verifiers = {"strict_judge": make}
    assert run_virtual(desk.collect(MANY, stop_early=False)) == 2
    assert len(made[0].calls) == 1 and len(desk.lines()) == 1
    assert "the price of this model is unknown: set its prices" in desk.out.getvalue()


def test_only_requests_with_a_known_cost_are_let_in() -> None:
    async def main() -> None:
        make, _ = priced_judge(5)
        model = make(None, "judge")
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/completions"):
            with pytest.raises(ModelError, match="only requests to /v1/responses"):
                await model.handle(path, b'{"messages": []}')
        with pytest.raises(ModelError, match="without a stream"):
            await model.handle("/v1/responses", b'{"input": "x", "stream": true}')
        assert await model.handle("/v1/responses", b'{"input": "x"}')

    run_virtual(main())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"placement": "process", "num_workers": 2}, "each process would spend that much"),
        ({"max_cost_usd": 0}, "max_cost_usd"),
    ],
)
def test_a_limit_in_dollars_that_would_not_hold(settings: JsonObject, why: str) -> None:
    own = {"openai_base_url": "http://127.0.0.1:1/v1", "openai_model": "m", "max_cost_usd": 5}
    block = {"responses_api_models": {"openai_model": {**own, **settings}}}
    with pytest.raises(ConfigError, match=why):
        load([], CollectConfig, program=Program(values={"judge": block}))


def test_a_limit_in_dollars_of_a_server_that_sends_batches_is_refused() -> None:
    openai = registry.load("responses_api_models", "openai_model")
    own = {"openai_base_url": "http://127.0.0.1:1/v1", "openai_model": "m", "max_cost_usd": 5}
    with pytest.raises(ConfigError, match="the cost of a batch is known when it has ended"):
        making(openai, **own, batch=True)(None, "judge")  # type: ignore[arg-type]
