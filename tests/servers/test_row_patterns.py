"""A row's patterns are compiled in a process that can be killed, before the model is called."""

import asyncio
import re
from typing import Any

import orjson
import pytest

from rollout_kit import TaskError
from rollout_kit.api.testing import OVERS, ScriptedModel, making, mount
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject

JUDGE = {"type": "responses_api_models", "name": "judge"}
PROMPT: JsonObject = {"responses_create_params": {"input": "?"}}


def mcqa(pattern: str) -> JsonObject:
    return {**PROMPT, "expected_answer": "A", "template_metadata": {"output_regex": [pattern]}}


def string_match(pattern: str) -> JsonObject:
    return {**PROMPT, "expected_answer": pattern, "match_mode": "regex"}


def equivalence_llm_judge(pattern: str) -> JsonObject:
    return {**PROMPT, "expected_answer": "A", "template_metadata": {"output_regex": pattern}}


SERVERS = [mcqa, string_match, equivalence_llm_judge]

SLOW = {
    "many groups": "(a)" * 200_000,
    "a long text": "(?:ab|cd)" * 2_000_000,
}


def seed(server: Any, pattern: str, over: str = "local", **settings: Any) -> JsonObject:
    name = server.__name__
    if server is equivalence_llm_judge:
        settings = {"judge_model_server": JUDGE, **settings}

    async def run() -> JsonObject:
        servers = {
            "judge": lambda peers, name: ScriptedModel(["[[A=B]]"]),
            name: making(load("resources_servers", name), **settings),
        }
        row = server(pattern)
        async with mount(servers, over) as peers:
            if over == "local" and (check := peers.row_check(name)) is not None:
                if (later := check(row)) is not None:
                    await later
                return {}
            with entered(Session()):
                return await peers.call(name, "/seed_session", row, dict)

    return asyncio.run(run())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Patterns that this process compiles."""
    found: list[str] = []
    compile_it = re._compiler.compile  # type: ignore[attr-defined]

    def note(pattern: Any, *flags: Any) -> Any:
        found.append(str(pattern))
        return compile_it(pattern, *flags)

    monkeypatch.setattr(re._compiler, "compile", note)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("server", SERVERS, ids=lambda each: each.__name__)
def test_a_pattern_is_compiled_elsewhere(server: Any, over: str, compiled: list[str]) -> None:
    pattern = f"only-in-the-worker-{over}-(.)"
    seed(server, pattern, over)
    assert not [each for each in compiled if "only-in-the-worker" in each]


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("server", SERVERS, ids=lambda each: each.__name__)
def test_a_bad_pattern_is_refused_by_name(server: Any, over: str) -> None:
    with pytest.raises(TaskError, match="is not a regular expression: missing \\)"):
        seed(server, "(", over)


@pytest.mark.parametrize("pattern", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("server", SERVERS, ids=lambda each: each.__name__)
def test_a_pattern_that_takes_too_much_is_refused(server: Any, pattern: str) -> None:
    with pytest.raises(TaskError, match=r"takes too much|is not a regular expression"):
        seed(server, pattern, regex_timeout_s=0.2)


@pytest.mark.parametrize("server", SERVERS, ids=lambda each: each.__name__)
def test_a_row_without_patterns_starts_no_worker(server: Any) -> None:
    row = {**PROMPT, "expected_answer": "A"}
    servers = {"judge_model_server": JUDGE} if server is equivalence_llm_judge else {}
    made = making(load("resources_servers", server.__name__), **servers)(None, server.__name__)
    assert made._begin_row_check(orjson.loads(orjson.dumps(row))) is None
