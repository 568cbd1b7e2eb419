"""Collections from Python objects: models, verifiers, agents, limiters, budgets, retries, sinks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from support import read_jsonl

import rollout_kit as rk
from rollout_kit.api.testing import ScriptedModel, mount
from rollout_kit.collecting.pacing.limiter import Fixed
from rollout_kit.config import overrides
from rollout_kit.responses import make_response, message_item, output_text
from rollout_kit.serving.transport.peers import Http

ROWS = [{"responses_create_params": {"input": f"What is {n} + 2?"}, "sum": n + 2} for n in range(4)]

LIGHT = """
config_paths: [resources_servers/string_match/configs/string_match.yaml]
policy_model:
  responses_api_models:
    simulated_model: {answer: text, text: "Answer: 4"}
"""

OLD = LIGHT + "tracker_wait_s: 5\n"

STRING_ROW = {
    "responses_create_params": {"input": "What is 2 + 2?"},
    "expected_answer": "4",
    "agent_ref": {"name": "string_match_simple_agent"},
}


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "light.yaml").write_text(LIGHT)
    return tmp_path


def add(params: dict[str, Any]) -> str:
    """The sum that a row asks for."""
    words = params["input"][0]["content"] if isinstance(params["input"], list) else params["input"]
    return str(int(str(words).split()[2]) + 2)


def is_sum(task: dict[str, Any], response: dict[str, Any]) -> float:
    return float(output_text(response) == str(task["sum"]))


class Adder(rk.Model):
    async def responses(self, params: dict[str, Any]) -> dict[str, Any]:
        usage = {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10}
        return make_response("adder", [message_item(add(params))], usage)


class SumConfig(rk.ResourcesServerConfig):
    worth: float = 1.0


class Sums(rk.ResourcesServer):
    Config = SumConfig

    def verify(self, task: Any, response: Any) -> float:  # type: ignore[override]
        return self.config.worth * is_sum(task, response)


class Asking(rk.Agent):
    """Asks once."""

    async def respond(self, params: dict[str, Any]) -> dict[str, Any]:
        assert self.config.model_server is not None
        return await self.peers.call(self.config.model_server.name, "/v1/responses", params, dict)


async def collected(*given: Any, **named: Any) -> list[Any]:
    return [outcome async for outcome in rk.collect(*given, **named)]


def rewards(**named: Any) -> list[float | None]:
    table = rk.collect_sync(ROWS, **named).table()
    assert [failure.error.message for failure in table.failures] == []
    return [rollout.reward for rollout in table]


async def add_later(params: dict[str, Any]) -> str:
    await asyncio.sleep(0)
    return add(params)


async def is_sum_later(request: rk.VerifyRequest) -> rk.VerifyResponse:
    await asyncio.sleep(0)
    row = request.model_dump()
    return rk.VerifyResponse(**row, reward=is_sum(row, request.response))


@pytest.mark.parametrize("model", [add, add_later, Adder, Adder(), lambda params: add(params)])
def test_a_model_may_be_a_function_a_class_or_an_object(model: Any) -> None:
    assert rewards(model=model, verify=is_sum) == [1.0] * 4


@in_loop
async def test_verifiers_are_functions_classes_or_objects() -> None:
    async def late(task: Any, response: Any) -> Any:
        return {"reward": is_sum(task, response), "kind": "late"}

    def of_request(request: Any) -> Any:
        return is_sum(request.model_dump(), request.response)

    for verify in (is_sum, late, of_request, is_sum_later, Sums, Sums(), Sums(SumConfig(worth=1))):
        table = await rk.collect(ROWS, model=add, verify=verify)
        assert [each.reward for each in table] == [1.0] * 4, verify
    table = await rk.collect(ROWS, model=add, environment=Sums(SumConfig(worth=0.5), None, "half"))
    assert [each.reward for each in table] == [0.5] * 4
    assert {each.key.agent for each in table} == {"half_simple_agent"}


@in_loop
async def test_an_environment_is_named_and_its_verifier_judges() -> None:
    said = "Answer: 4"
    table = await rk.collect([STRING_ROW], model=lambda p: said, environment="string_match")
    assert [each.reward for each in table] == [1.0]
    with pytest.raises(rk.ConfigError, match="did you mean 'string_match'"):
        await rk.collect([STRING_ROW], model=add, environment="string_matches")


@in_loop
async def test_a_model_takes_the_place_of_that_of_the_files() -> None:
    said = await rk.collect([STRING_ROW], servers="light.yaml", model=lambda params: "5")
    assert [rk.output_text(each.response) for each in said] == ["5"]
    said = await rk.collect([STRING_ROW], servers="light.yaml")
    assert [each.reward for each in said] == [1.0]


@in_loop
async def test_agents_ask_the_servers_that_are_there() -> None:
    for agents in (Asking, [Asking()], {"mine": Asking}):
        async with rk.servers(model=add, verify=is_sum, agents=agents) as servers:
            assert servers.agents == ["mine" if isinstance(agents, dict) else "Asking"]
            table = await rk.collect(ROWS, servers=servers)
            assert [each.reward for each in table] == [1.0] * 4


@in_loop
async def test_an_endpoint_is_asked_over_http() -> None:
    async with mount({"policy": lambda peers, name: Adder(None, peers, name)}, "http") as peers:
        transport = peers.transport("policy")
        assert isinstance(transport, Http)
        model = rk.Endpoint(f"{transport.urls[0]}/v1", "adder", settings={"max_tries": 1})
        table = await rk.collect(ROWS, model=model, verify=is_sum)
        assert [each.reward for each in table] == [1.0] * 4, table.failures
    assert "secret" not in repr(rk.Endpoint("http://x/v1", "m", "secret"))


@in_loop
async def test_a_running_model_server_is_named() -> None:
    model = ScriptedModel(add)
    async with rk.servers(model=model, verify=is_sum) as servers:
        for name in ("policy_model", None):
            table = await rk.collect(ROWS, servers=servers, model=name, verify=lambda t, r: 0.25)
            assert [each.reward for each in table] == [0.25] * 4
            assert {each.info.output_tokens for each in table} == {1}
        assert len(model.calls) == 8
        with pytest.raises(rk.ConfigError, match="'other' is none of the running model servers"):
            await rk.collect(ROWS, servers=servers, model="other", verify=is_sum)


def test_a_table_holds_the_file_or_this_run(folder: Path) -> None:
    given: dict[str, Any] = {"model": add, "verify": is_sum}
    table = rk.collect_sync(ROWS[:2], output="out.jsonl", **given).table()
    assert len(table) == 2 and table.status == 0
    table = rk.collect_sync(ROWS, output="out.jsonl", **given).table()
    assert len(table) == 4 == len(list(table)) and table.metrics["counts"]["rollouts"] == 4
    assert len(rk.collect_sync(ROWS, **given).table()) == 4

    def fail(params: dict[str, Any]) -> str:
        raise rk.ModelError("no", retryable=False)

    table = rk.collect_sync(ROWS, model=fail, verify=is_sum, stop_early=False).table()
    assert len(table) == 0 and len(table.failures) == 4 and table.status != 0


class Narrow:
    """A limiter that notes what it is asked and told."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self) -> int:
        return 2

    def record_outcomes(self, now: float, number: int, in_flight: int, *, overloaded: bool) -> None:
        self.seen.append(in_flight)

    def record_time(self, now: float, in_flight: int, seconds: float) -> None: ...

    def record_load(self, now: float, load: Any) -> None: ...


@in_loop
async def test_a_limiter_is_asked_and_told() -> None:
    for limiter in (Narrow(), Fixed(2)):
        model = ScriptedModel(add_later)
        most = []

        async def note(params: Any, model: Any = model, most: Any = most) -> str:
            most.append(model.in_flight)
            return await add_later(params)

        model._answer = note
        await rk.collect(ROWS, model=model, verify=is_sum, num_repeats=3, parallelism=limiter)
        assert len(most) == 12 and max(most) == 2
        if isinstance(limiter, Narrow):
            assert max(limiter.seen) <= 2


@in_loop
async def test_runs_share_a_budget() -> None:
    budget = rk.Budget(max_total_tokens=60)
    given: dict[str, Any] = {"verify": is_sum, "limits": budget, "parallelism": 1}
    first = await rk.collect(ROWS, model=Adder, **given)
    assert len(first) == 4 and budget.total.spent.tokens == 40
    second = await rk.collect(ROWS, model=Adder, **given)
    assert len(second) == 2 and budget.total.spent.tokens == 60
    assert [bill.spent.tokens for bill in budget.bills] == [40, 20]


@in_loop
async def test_limits_of_a_rollout_and_retries_are_objects() -> None:
    def failing(times: int) -> ScriptedModel:
        left = [times]

        def answer(params: dict[str, Any]) -> str:
            left[0] -= 1
            if left[0] >= 0:
                raise rk.ModelError("busy", retryable=True, status=500)
            return add(params)

        return ScriptedModel(answer)

    quick = rk.RetryPolicy(max_tries=5, base_s=0.0)
    table = await rk.collect(ROWS[:1], model=failing(4), verify=is_sum, retry=quick)
    assert [each.reward for each in table] == [1.0]
    table = await rk.collect(ROWS[:1], model=failing(5), verify=is_sum, retry=quick)
    assert len(table.failures) == 1 and len(table.failures[0].attempts) == 5
    picky = rk.RetryPolicy(base_s=0.0, errors=rk.VerifyError)
    table = await rk.collect(ROWS[:1], model=failing(1), verify=is_sum, retry=picky)
    assert len(table.failures[0].attempts) == 1
    limits = rk.RolloutLimits(max_attempts=1)
    table = await rk.collect(ROWS[:1], model=failing(1), verify=is_sum, limits=limits)
    assert len(table.failures[0].attempts) == 1


@in_loop
async def test_a_sink_sees_outcomes_first(folder: Path) -> None:
    class Sink:
        def __init__(self) -> None:
            self.keys: list[Any] = []

        def append_all(self, outcomes: Sequence[Any]) -> None:
            on_disk = {each["rollout"]["task_id"] for each in read_jsonl(folder / "out.jsonl")}
            assert {each.key.task_id for each in outcomes} <= on_disk
            self.keys += [each.key for each in outcomes]

    sink = Sink()
    seen = []
    given: dict[str, Any] = {"model": add, "verify": is_sum}
    async for outcome in rk.collect(ROWS, output="out.jsonl", sink=sink, **given):
        assert outcome.key in sink.keys
        seen.append(outcome.key)
    assert sorted(seen) == sorted(sink.keys) and len(seen) == 4

    class Full:
        def append_all(self, outcomes: Sequence[Any]) -> None:
            raise LookupError("the database is gone")

    for output in ("other.jsonl", None):
        with pytest.raises(LookupError, match="the database is gone"):
            await rk.collect(ROWS, output=output, sink=Full(), **given)
    assert len(read_jsonl(folder / "other.jsonl")) >= 1, "what was collected is on disk"


@in_loop
async def test_keys_name_files_and_servers_too(folder: Path) -> None:
    (folder / "tasks.jsonl").write_text(json.dumps(STRING_ROW) + "\n")
    keys: dict[str, Any] = {"input_jsonl_fpath": "tasks.jsonl", "config_paths": ["light.yaml"]}
    table = await rk.collect(output_jsonl_fpath="out.jsonl", record="tape", **keys)
    assert len(table) == 1 == len(read_jsonl(folder / "out.jsonl"))
    assert any((folder / "tape").iterdir())
    again = await rk.reverify("light.yaml", "out.jsonl", output="again.jsonl")
    assert again.metrics["verdicts"]["same"] == 1


class Waiting:
    async def append_all(self, outcomes: Sequence[Any]) -> None:
        raise AssertionError("it would never be awaited")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tasks": ROWS}, "servers: none are given"),
    ({"tasks": ROWS, "servers": "light.yaml", "config_paths": ["a.yaml"]}, "mean the same"),
    ({"tasks": ROWS, "model": add, "record": "x", "verify": is_sum, "shard": "x"}, "shard"),
    ({"tasks": ROWS, "record": "x"}, "record: it concerns servers"),
    ({"tasks": ROWS, "model": add, "verify": is_sum, "parallelism": "many"}, "parallel"),
    ({"tasks": ROWS, "model": add, "parallelism": 2, "num_samples_in_parallel": 2}, "the same"),
    ({"tasks": ROWS, "model": add, "retry": 2, "max_attempts": 2}, "the same"),
    ({"tasks": ROWS, "model": add, "limits": rk.Budget(1.0), "max_cost_usd": 2}, "the same"),
    ({"tasks": ROWS, "model": add, "limits": 5}, "limits: expected a Budget"),
    ({"tasks": ROWS, "model": add, "limits": rk.RolloutLimits(output="x")}, "limits: output"),
    ({"tasks": ROWS, "model": add, "sink": print}, "append_all"),
    ({"tasks": ROWS, "model": add, "sink": Waiting()}, "append_all is async"),
    ({"tasks": ROWS, "input_jsonl_fpath": "x"}, "given twice"),
    ({"tasks": ROWS, "servers": "x.yaml", "output": "a", "output_jsonl_fpath": "b"}, "the same"),
    ({"tasks": ROWS, "servers": "x.yaml", "buffer": "memory"}, "rollout_kit.rl.collect"),
    ({"servers": "x.yaml"}, "tasks: expected"),
]


@pytest.mark.parametrize(("given", "what"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_starts(given: Any, what: str) -> None:
    with pytest.raises(rk.ConfigError, match=what):
        rk.collect(**given)


def of_text(text: str) -> float:
    return float(len(text))


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"model": Sums, "verify": is_sum}, "model: expected a Model, or a class of one, got Sums"),
    ({"model": 5, "verify": is_sum}, "model: expected a Model, or a class of one, got int"),
    ({"model": "gpt-4o", "verify": is_sum}, "openai/gpt-4o-mini"),
    ({"model": add, "verify": Adder}, "verify: expected a ResourcesServer"),
    ({"model": add, "verify": 5}, "verify: expected a function"),
    ({"model": add, "verify": of_text}, "verify: of_text must take a VerifyRequest"),
    ({"model": add, "verify": lambda: 1.0}, r"verify: expected a function .*got function\(\)"),
    ({"model": add, "verify": is_sum, "environment": Sums}, "give one of the two"),
    ({"servers": "light.yaml", "verify": is_sum}, "is_sum: no agent asks this server"),
    ({"model": add, "verify": is_sum, "executor": "processes"}, "this process only"),
    ({"model": add}, "agent"),
    ({"servers": "none.yaml"}, "none.yaml: no such file, asked for by the program"),
]


@pytest.mark.parametrize(("given", "what"), UNFIT)
@in_loop
async def test_what_does_not_fit_is_named(given: Any, what: str) -> None:
    with pytest.raises(rk.ConfigError, match=what):
        await rk.collect(ROWS, **given)


@in_loop
async def test_no_command_line_is_written_for_the_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Sequence[str]] = []
    parse = overrides.parse

    def note(words: Sequence[str], is_text: Any) -> Any:
        given.append(words)
        return parse(words, is_text)

    monkeypatch.setattr(overrides, "parse", note)
    odd = folder / "a,b] c.yaml"
    odd.write_text(LIGHT)
    async with rk.servers(odd, record=Path("t=1"), max_restarts=2) as servers:
        assert servers.agents == ["string_match_simple_agent"]
    word = "++policy_model.responses_api_models.simulated_model.text=5"
    async with rk.servers("light.yaml", overrides=[word]):
        pass
    assert [list(words) for words in given] == [[], [word]]


@in_loop
async def test_what_was_typed_in_has_a_fingerprint_of_its_code() -> None:
    """As in a notebook: no file has the function or the class."""
    text = """
def judge(task, response):
    return {worth} if "4" in {{"3", "4", "5"}} else 0.0

class Judge(rk.ResourcesServer):
    def verify(self, task, response):
        return judge(task, response) + {worth}
"""
    found = []
    for worth in (1.0, 0.5, 0.5):
        scope: dict[str, Any] = {"rk": rk, "__name__": "nowhere"}
        exec(text.format(worth=worth), scope)
        for verify in (scope["judge"], scope["Judge"], scope["Judge"]()):
            table = await rk.collect(ROWS[:1], model=add, verify=verify)
            assert [each.reward for each in table] == [worth * (verify is scope["judge"] or 2)]
            found.append(next(iter(table)).info.verifier)
    first, second, third = found[:3], found[3:6], found[6:]
    assert second == third and set(first).isdisjoint(second)


@in_loop
async def test_an_object_serves_one_run_after_another() -> None:
    class Counting(rk.Model):
        num_starts = num_stops = 0

        async def start(self) -> None:
            self.num_starts += 1

        async def stop(self) -> None:
            self.num_stops += 1

        async def responses(self, params: Any) -> Any:
            return make_response("x", [message_item(add(params))], {})

    model = Counting()
    for _ in range(2):
        assert len(await rk.collect(ROWS, model=model, verify=is_sum)) == 4
    assert (model.num_starts, model.num_stops) == (2, 2)


@in_loop
async def test_rows_may_come_one_by_one_from_anywhere() -> None:
    async def stream() -> AsyncIterator[dict[str, Any]]:
        for row in ROWS:
            await asyncio.sleep(0)
            yield row

    assert len(await collected(stream(), model=add, verify=is_sum)) == 4


@in_loop
async def test_a_source_is_asked_when_there_is_room() -> None:
    class Rows:
        def __init__(self) -> None:
            self.ready, self.num_asked, self.left = asyncio.Event(), 0, list(ROWS)

        def next(self) -> Any:
            self.num_asked += 1
            if not self.ready.is_set():
                asyncio.get_running_loop().call_soon(self.ready.set)
                return rk.Later(self.ready, "rows")
            return self.left.pop() if self.left else rk.END

    rows = Rows()
    table = await rk.collect(rows, model=add, verify=is_sum, num_repeats=2, output="out.jsonl")
    assert len(table) == 8 and rows.num_asked == 6 and table.status == 0
    rows = Rows()
    table = await rk.collect(rows, model=add, verify=is_sum, num_repeats=2, output="out.jsonl")
    assert len(table) == 8 and rows.num_asked == 6, "all are there: nothing is collected again"
    rows = Rows()
    async for _ in rk.collect(rows, model=add, verify=is_sum, parallelism=1):
        break
    assert rows.num_asked <= 4 and rows.left
    budget = rk.Budget(max_total_tokens=20)
    rows = Rows()
    await rk.collect(rows, model=Adder, verify=is_sum, parallelism=1, limits=budget)
    assert len(rows.left) == 2


@in_loop
async def test_a_run_that_was_left_is_continued_at_once_with_servers_of_its_own() -> None:
    given: dict[str, Any] = {"model": add_later, "verify": is_sum, "output": "out.jsonl"}
    async for _ in rk.collect(ROWS, num_repeats=9, parallelism=1, **given):
        break
    assert len(await rk.collect(ROWS, num_repeats=9, **given)) == 36


@in_loop
async def test_responses_that_wait_for_a_verdict_get_it_though_rows_come_one_by_one() -> None:
    is_down, num_asked = True, 0

    def ask(params: dict[str, Any]) -> str:
        nonlocal num_asked
        num_asked += 1
        return add(params)

    def judge(task: dict[str, Any], response: dict[str, Any]) -> float:
        if is_down:
            raise rk.VerifyError("the judge is down", retryable=False)
        return is_sum(task, response)

    given: dict[str, Any] = {"model": ask, "verify": judge, "stop_early": False}
    table = await rk.collect(ROWS, output="out.jsonl", **given)
    assert len(table) == 0 and len(table.unverified) == 4 and table.status == 2
    held = await rk.collect(ROWS, **given)
    assert len(held.unverified) == 4 == held.metrics["counts"]["unverified"]
    assert num_asked == 8
    is_down = False
    table = await rk.collect(ROWS, output="out.jsonl", **given)
    assert [each.reward for each in table] == [1.0] * 4 and table.status == 0
    assert num_asked == 8 and table.unverified == [], "the responses are on disk"


@in_loop
async def test_a_limit_that_leaves_rows_is_no_success() -> None:
    given: dict[str, Any] = {"model": Adder, "verify": is_sum, "parallelism": 1}
    table = await rk.collect(ROWS, max_total_tokens=20, **given)
    assert len(table) == 2 and table.status == 3
    spent = rk.Budget(max_total_tokens=20)
    assert (await rk.collect(ROWS[:2], limits=spent, **given)).metrics["counts"]["rollouts"] == 2
    table = await rk.collect(iter(ROWS), limits=spent, **given)
    assert len(table) == 0 and table.status == 3


@in_loop
async def test_a_source_that_gives_no_row_is_named() -> None:
    class Nothing:
        def next(self) -> Any:
            return None

    class Later:
        async def next(self) -> Any:
            return ROWS[0]

    for source, what in ((Nothing(), "None"), (Later(), "a coroutine")):
        with pytest.raises(rk.ConfigError, match=f"tasks: next.* {what}"):
            await rk.collect(source, model=add, verify=is_sum)  # type: ignore[arg-type]


@in_loop
async def test_servers_that_would_be_lost_are_named() -> None:
    for named, what in (
        ({"agents": [Asking, Asking]}, "two servers would be called 'Asking'"),
        ({"overrides": {"policy_model": {}}}, "give a mapping as values="),
    ):
        given: dict[str, Any] = {"model": add, "verify": is_sum, **named}
        with pytest.raises(rk.ConfigError, match=what):
            async with rk.servers(**given):
                pass


@in_loop
async def test_verifying_again_needs_no_policy_model(folder: Path) -> None:
    row = {key: value for key, value in STRING_ROW.items() if key != "agent_ref"}
    await rk.collect([row], model=add, environment="string_match", output="out.jsonl")
    shipped = "resources_servers/string_match/configs/string_match.yaml"
    keyless = "responses_api_models/openai_model/configs/openai.yaml"
    for number, given in enumerate(
        (
            {"environment": "string_match"},
            {"servers": shipped},
            {"servers": [shipped, keyless]},
        )
    ):
        table = await rk.reverify("out.jsonl", output=f"again{number}.jsonl", **given)
        assert len(table) == 1 and table.metrics["verdicts"]["same"] == 1

    def is_sum(task: dict[str, Any], response: dict[str, Any]) -> float:
        return 0.5

    given = {"model": add, "verify": globals()["is_sum"]}
    await rk.collect(ROWS, output="sums.jsonl", **given)
    table = await rk.reverify("sums.jsonl", verify=is_sum, output="halves.jsonl")
    assert [each.reward for each in table] == [0.5] * 4
    for wrong in ({}, {"verify": add_later, "environment": "string_match"}):
        with pytest.raises(rk.ConfigError, match=r"servers: none are given|give one of the two"):
            await rk.reverify("sums.jsonl", output="x.jsonl", **wrong)


@in_loop
async def test_the_logger_gets_the_warnings_and_notes_that_a_command_prints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "old.yaml").write_text(OLD)
    (tmp_path / "other.yaml").write_text("policy_model: {responses_api_models: {local_model: {}}}")
    caplog.set_level("INFO", "rollout_kit")
    files = [tmp_path / "other.yaml", tmp_path / "old.yaml"]
    table = await rk.collect([STRING_ROW], servers=files, audit_seed=3)  # type: ignore[call-arg]
    assert len(table) == 1
    said = {(each.levelname, each.getMessage()) for each in caplog.records}
    warned = [text for level, text in said if level == "WARNING"]
    assert [text.split()[0] for text in sorted(warned)] == ["'audit_seed'", "'tracker_wait_s'"]
    assert any(text.startswith("policy_model is simulated_model") for _, text in said)


def test_a_run_says_what_has_no_reward(caplog: pytest.LogCaptureFixture) -> None:
    def verify(task: Any, response: Any) -> float:
        raise rk.VerifyError("the judge is away", retryable=False)

    rows = [{"responses_create_params": {"input": "2 + 2?"}}]
    table = rk.collect_sync(rows, model=lambda params: "4", verify=verify).table()
    said = "1 without a verdict, the last one with: the judge is away"
    assert repr(table) == f"Collected(0 rollouts; {said})"
    assert said in caplog.text and "`unverified`" in caplog.text
    assert repr(rk.collect_sync(rows, model=lambda params: "4", verify=lambda *_: 1.0).table()) == (
        "Collected(1 rollout)"
    )
