"""Mistakes that fail every rollout stop a run early; those of some rows do not."""

import asyncio
from typing import Any

import pytest
from support import Bench, Echo, EchoRequest, asked, row

from rollout_kit.api.testing import Over, ScriptedModel, making, run_virtual
from rollout_kit.collecting.pacing.give_up import MIN_ALIKE
from rollout_kit.errors import ConfigError, ModelError, StopRun
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

ROWS = [row(f"q{number}") for number in range(200)]

IN_PARALLEL = 16


def refuse(params: JsonObject) -> str:
    raise ModelError("http://endpoint answered 400: Unsupported parameter: 'top_k'", status=400)


class Buggy(Echo):
    num_verdicts = 0

    async def verify(self, body: EchoRequest) -> VerifyResponse:
        type(self).num_verdicts += 1
        return body.scored(float({}[body.expected]))


def test_an_endpoint_that_answers_all_with_the_same_400_stops_the_run(bench: Bench) -> None:
    bench.model = ScriptedModel(refuse)
    with pytest.raises(StopRun) as stopped:
        run_virtual(bench.collect(ROWS, num_samples_in_parallel=IN_PARALLEL))
    assert len(bench.model.calls) <= 2 * IN_PARALLEL
    assert "Unsupported parameter: 'top_k'" in str(stopped.value)
    assert "+stop_early=false" in str(stopped.value)


def test_stop_early_false_goes_on(bench: Bench) -> None:
    bench.model = ScriptedModel(refuse)
    keys: dict[str, Any] = {"num_samples_in_parallel": IN_PARALLEL, "stop_early": False}
    assert run_virtual(bench.collect(ROWS, **keys)) == 2
    assert len(bench.model.calls) == len(ROWS)


@pytest.mark.parametrize("every", [2, 5])
def test_rows_that_fail_before_others_end_stop_nothing(bench: Bench, every: int) -> None:
    """Refusals come at once, and answers take long."""

    class Slow(ScriptedModel):
        async def responses(self, params: JsonObject) -> JsonObject:
            if int(asked(params)[1:]) % every:
                refuse(params)
            await asyncio.sleep(100)
            return await super().responses(params)

    bench.model = Slow(asked)
    assert run_virtual(bench.collect(ROWS, num_samples_in_parallel=IN_PARALLEL)) == 2
    assert len(bench.lines()) == len(ROWS) / every


def test_few_rows_that_all_fail_are_failures_as_ever(bench: Bench) -> None:
    bench.model = ScriptedModel(refuse)
    assert run_virtual(bench.collect(ROWS[: MIN_ALIKE - 1])) == 2
    assert len(bench.lines("failures")) == MIN_ALIKE - 1


def test_a_verifier_that_raises_each_time_stops_the_run_and_shows_its_traceback_once(
    bench: Bench, over: Over
) -> None:
    bench.collects_over, bench.verifier = over, making(Buggy)
    bench.model = ScriptedModel(asked)
    with pytest.raises(StopRun, match=r"verdicts all failed alike.*KeyError"):
        asyncio.run(bench.collect(ROWS, num_samples_in_parallel=IN_PARALLEL, park_after_s=60))
    assert len(bench.model.calls) < len(ROWS) / 2  # each verdict is tried three times
    said = bench.out.getvalue()
    assert said.count("Traceback (most recent call last)") == 1
    assert "return body.scored(float({}[body.expected]))" in said
    line = bench.lines("failures")[0]
    assert line["failure"]["traceback"].startswith("Traceback (most recent call last)")
    assert "KeyError: 'q" in line["failure"]["traceback"]
    parked = {asked(line["responses_create_params"]) for line in bench.lines("unverified")}
    assert len(parked) >= MIN_ALIKE, "the responses are kept"


def test_some_rows_whose_verdict_fails_stop_nothing_in_a_later_run_either(bench: Bench) -> None:
    class Picky(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if body.expected < "q20":
                raise KeyError(body.expected)
            return await super().verify(body)

    bench.verifier = making(Picky)
    for _ in range(2):
        assert run_virtual(bench.collect(ROWS, num_samples_in_parallel=1000)) == 2
    assert len(bench.lines("unverified")) == sum(each["expected"] < "q20" for each in ROWS)


class Misspelt(ResourcesServer):
    def verfiy(self, task: JsonObject, response: JsonObject) -> float:
        return 1.0


def test_a_server_without_verify_is_refused_before_any_model_call(bench: Bench, over: Over) -> None:
    bench.collects_over, bench.verifier = over, making(Misspelt)
    with pytest.raises(ConfigError) as refused:
        asyncio.run(bench.collect(ROWS))
    assert "Misspelt in " in str(refused.value) and "did you mean 'verfiy'?" in str(refused.value)
    assert not bench.model.calls
    assert asyncio.run(bench.collect(ROWS[:1], skip_verification=True)) == 0


def test_an_application_of_its_own_may_verify_elsewhere() -> None:
    class Own(ResourcesServer):
        async def handle(self, path: str, raw: bytes) -> Any:
            return {}

    assert not Own.find_lack() and Misspelt.find_lack()


def test_a_traceback_carries_no_secret() -> None:
    class Talkative(ResourcesServer):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            raise RuntimeError(f"refused: {self.config.get('api_key')}")

    server = making(Talkative, api_key="sk-planted-0123456789")(None, "talkative")  # type: ignore[arg-type]

    async def main() -> Any:
        with pytest.raises(Exception) as failed:
            await server.answer("/verify", b'{"responses_create_params": {}, "response": {}}')
        return failed.value

    error = asyncio.run(main())
    assert "RuntimeError" in error.traceback
    assert "sk-planted" not in f"{error.to_wire()}"
