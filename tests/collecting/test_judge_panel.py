"""`rk.judge`: models, a rubric and a vote, as the verifier of a run and on their own."""

import ast
import asyncio
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from endpoint import served
from support import blocks
from workplace import ROOT

import rollout_kit as rk
from rollout_kit.api.given import Given
from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import load
from rollout_kit.responses import make_response, message_item

ROWS = [{"responses_create_params": {"input": f"What is {n} + 2?"}} for n in range(4)]


def says(score: Any) -> Any:
    """A judge that gives each criterion this score."""

    def judge(params: dict[str, Any]) -> str:
        names = re.findall(r"^- (\w+):", params["input"][0]["content"], re.MULTILINE)
        entry = {"evidence": "", "reason": "so", "score": score}
        return json.dumps({"criteria": [{"name": name, **entry} for name in names]})

    return judge


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_three_judges_verify_a_run() -> None:
    judges = rk.judge(
        {"kind": says(True), "strict": says(False), "fair": says(True)},
        "The answer is right.",
        judge_cache_fpath=Path("replies.jsonl"),
    )
    table = rk.collect_sync(ROWS, model=lambda params: "4", verify=judges).table()
    assert [each.reward for each in table] == [1.0] * 4 and Path("replies.jsonl").is_file()
    [first, *_] = table
    assert [each["judge"] for each in first.line["judge_evaluations"]] == ["kind", "strict", "fair"]
    assert table.metrics["metrics"]["criterion_rubric"] == 1.0


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"calls": 2}, r"the judge 'c' was not asked: rollout_limits\.calls: reached before"),
        ({"tokens": 20}, r"the judge 'c' was not asked: rollout_limits\.tokens: reached before"),
        ({"calls": 3, "tokens": 21}, ""),
        ({"seconds": 1e9}, ""),
    ],
)
def test_past_a_limit_no_further_judge_is_asked(limits: dict[str, Any], error: str) -> None:
    """Each of these judges uses ten tokens."""

    def judge(score: bool) -> Any:
        def reply(params: dict[str, Any]) -> Any:
            usage = {"input_tokens": 8, "output_tokens": 2, "total_tokens": 10}
            return {**make_response("judge", [message_item(says(score)(params))], usage)}

        return reply

    async def main() -> float:
        three = {"a": judge(True), "b": judge(False), "c": judge(True)}
        async with rk.judge(three, "R.", vote="third", rollout_limits=limits) as judges:
            return (await judges.grade("What is 2 + 2?", "4")).reward

    if not error:
        assert asyncio.run(main()) == 1.0
        return
    with pytest.raises(rk.VerifyError, match=error):
        asyncio.run(main())


def test_limits_that_no_verdict_can_keep_are_refused() -> None:
    with pytest.raises(rk.ConfigError, match="2 calls are too few for 3 judges"):
        rk.collect_sync(
            ROWS,
            model=lambda params: "4",
            verify=rk.judge([says(1)] * 3, "R.", rollout_limits={"calls": 2}),
        )


def test_stored_responses_are_graded_without_a_policy() -> None:
    made = rk.collect_sync(
        ROWS, model=lambda params: "4", verify=rk.judge(says(False), "Right."), output="a.jsonl"
    )
    assert [each.reward for each in made.table()] == [0.0] * 4

    async def again() -> Any:
        return await rk.reverify("a.jsonl", verify=rk.judge(says(True), "R."), output="b.jsonl")

    assert [each.reward for each in asyncio.run(again())] == [1.0] * 4


def test_judges_grade_on_their_own() -> None:
    async def main() -> None:
        rubric = [
            rk.Criterion(name="right", description="It is right.", weight=3),
            {"name": "better", "description": "It is better.", "kind": "pairwise"},
        ]
        both = rk.judge([says(True)], {"right": "It is right.", "short": "It is short."})
        async with both as judges:
            found = await judges.grade("What is 2 + 2?", "4")
            assert found.reward == 1.0 and found.scores == {"right": 1.0, "short": 1.0}
            assert found.opinions[0].grades[0].reason == "so"
            with pytest.raises(rk.ConfigError, match="it is open already"):
                await both.__aenter__()
        with pytest.raises(rk.ConfigError, match="works inside"):
            await both.grade("What is 2 + 2?", "4")
        async with rk.judge([says("first")], rubric[1:]) as judges:
            assert (await judges.grade("q", "4", reference="5")).reward == 0.5
            with pytest.raises(rk.TaskError, match="reference_answer is missing"):
                await judges.grade("q", "4")

    asyncio.run(main())


def test_providers_are_named_as_the_policy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-environment")
    Path("env.yaml").write_text("OPENAI_API_KEY: sk-of-the-file\n")
    models = [
        *("openai/gpt-5-mini", "anthropic/claude-haiku-4-5", "openai/gpt-5-mini"),
        *(rk.Endpoint("http://127.0.0.1:1/v1", "Qwen/Qwen3-8B"), says(True)),
    ]
    judges = rk.judge(models, "It is right.", ask="each")
    program = Given("openai/gpt-4o-mini", judges).program((), {})
    config = load([], CollectConfig, program=program)
    found = {name: one.settings for name, one in config.instances.items()}
    assert found["gpt_5_mini"]["openai_model"] == "gpt-5-mini"
    assert found["gpt_5_mini_2"]["openai_api_key"] == "sk-of-the-file"
    assert found["claude_haiku_4_5"]["anthropic_model"] == "claude-haiku-4-5"
    assert found["claude_haiku_4_5"]["anthropic_api_key"] == "sk-of-the-environment"
    assert found["qwen3_8b"]["openai_base_url"] == "http://127.0.0.1:1/v1"
    assert found["policy_model"]["openai_model"] == "gpt-4o-mini"
    assert found["rubric_judge"]["ask"] == "each"
    names = [each["name"] for each in found["rubric_judge"]["judges"]]
    assert names == ["gpt_5_mini", "claude_haiku_4_5", "gpt_5_mini_2", "qwen3_8b", "judge"]


@pytest.mark.parametrize(
    ("models", "rubric", "settings", "why"),
    [
        ([], "R.", {}, "none is named"),
        (["gpt-5-mini"], "R.", {}, "'gpt-5-mini' is no provider/model"),
        (["judge.yaml"], "R.", {}, "names the policy model"),
        ([says(True)] * 2, "R.", {}, "majority needs an odd number of judges, not 2"),
        ([says(True)] * 2, "R.", {"vote": "third"}, "third needs three judges"),
        ([says(True)], "R.", {"cache": 1}, "cache"),
        ([says(True)], [{"name": "a"}], {}, "description"),
        ({"rubric_judge": says(True)}, "R.", {}, "the name of the environment"),
        ({"policy_model": says(True)}, "R.", {}, "the name of the policy"),
        ([3], "R.", {}, "expected a Model"),
        ({"a.b": says(True)}, "R.", {}, "'a.b': a name has letters"),
    ],
)
def test_what_no_panel_can_be_made_of(
    models: Any, rubric: Any, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(rk.ConfigError, match=why):
        rk.judge(models, rubric, **settings)


@pytest.mark.parametrize("score", [True, False])
def test_the_page_s_python_runs(score: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """With functions in place of the models, which need keys."""
    named = {
        '"openai/gpt-5-mini"': "says(True)",
        '"anthropic/claude-haiku-4-5"': f"says({score})",
        'rk.Endpoint("http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B")': f"says({score})",
        '"openai/gpt-5"': "lambda params: 'It scatters.'",
    }
    page = (ROOT / "docs/judges.md").read_text()
    scope: dict[str, Any] = {"says": says}

    async def main() -> None:
        for block in blocks(page):
            if block.language == "python" and not block.reason:
                code = block.text
                for text, stand_in in named.items():
                    code = code.replace(text, stand_in)
                compiled = compile(
                    code, "docs/judges.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                )
                found = eval(compiled, scope)
                if inspect.iscoroutine(found):
                    await found

    asyncio.run(main())
    printed = capsys.readouterr().out
    worth = float(score)
    assert printed.count(f"{worth} {{'correct': {worth}, 'clear': {worth}}}") == 3
    assert printed.count("['so', 'so']") == 3
    assert [each.weight for each in scope["rubric"]] == [3, 1, -1]


def test_a_judge_may_be_the_url_of_an_endpoint_with_one_model() -> None:
    asked: list[str] = []

    async def list_models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "Qwen/Qwen3-8B"}]})

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body["model"])
        said = says(True)({"input": body["messages"]})
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": said}}
        return web.json_response({"model": body["model"], "choices": [choice]})

    app = web.Application()
    app.router.add_get("/v1/models", list_models)
    app.router.add_post("/v1/chat/completions", answer)
    with served(app) as url:
        judges = rk.judge([url, f"{url}/v1", says(False)], "It is right.")
        table = rk.collect_sync(ROWS, model=lambda params: "4", verify=judges).table()
        assert [each.reward for each in table] == [1.0] * 4 and table.failures == []
    assert asked == ["Qwen/Qwen3-8B"] * 8
    host = url.removeprefix("http://").replace(".", "_").replace(":", "_")
    [first, *_] = [each.line["judge_evaluations"] for each in table]
    assert [each["judge"] for each in first] == [host, f"{host}_2", "judge"]
