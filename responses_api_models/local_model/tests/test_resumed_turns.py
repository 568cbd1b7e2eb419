"""Turns that are stopped in the middle go on from the tokens that there are."""

import asyncio
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import use_model
from weight_steps import write_step

from rollout_kit.errors import ModelError
from rollout_kit.rl import check_tokens
from rollout_kit.rl.partial import PartialTurns
from rollout_kit.serving import registry
from rollout_kit.serving.model import ScoreRequest
from rollout_kit.session import Session, entered
from rollout_kit.store.lines import rollout_of

LocalModel: Any = registry.load("responses_api_models", "local_model")
engine: Any = importlib.import_module(f"{LocalModel.__module__.rpartition('.')[0]}.engine")

ASKED = {"input": "What is 123+456?", "temperature": 1.3, "seed": 11, "return_token_ids": True}

KEPT = 3


class Stops:
    """Stops a request behind its first tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_sampled = 0
        self._stop: Callable[[], object] | None = None
        self._stopped = threading.Event()
        choose = engine.choose

        def count(*given: Any) -> Any:
            self.num_sampled += 1
            if self._stop and self.num_sampled > KEPT:
                self._stop()
                assert self._stopped.wait(60)
            return choose(*given)

        monkeypatch.setattr(engine, "choose", count)

    async def stop(self, model: Any, params: Any) -> None:
        task = asyncio.create_task(model.responses(dict(params)))
        loop = asyncio.get_running_loop()
        self.num_sampled, self._stop = 0, lambda: loop.call_soon_threadsafe(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        self._stop = None
        self._stopped.set()


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stops:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Stops(monkeypatch)


def of(index: int = 0, run: str = "one") -> Any:
    return entered(Session.of(("abc", index), None, run))


def test_a_stopped_turn_is_the_one_that_was_not_stopped(stops: Stops) -> None:
    async def scenario(model: Any) -> None:
        whole = await model.responses(dict(ASKED))
        with of():
            await stops.stop(model, ASKED)
        for other in (of(index=1), of(run="two")):
            with other:
                stops.num_sampled = 0
                await model.responses(dict(ASKED))
        number = len(whole["output"][-1]["generation_token_ids"])
        assert stops.num_sampled == number > KEPT + 1
        with of():
            stops.num_sampled = 0
            again = await model.responses(dict(ASKED))
        assert stops.num_sampled == number - KEPT and model.load_figures()["resumed_turns"] == 1
        was, now = whole["output"][-1], again["output"][-1]
        for name in ("generation_token_ids", "prompt_token_ids", "content"):
            assert now[name] == was[name]
        assert now["generation_log_probs"] == pytest.approx(was["generation_log_probs"], abs=1e-6)
        assert again["usage"] == whole["usage"]

    use_model(LocalModel, scenario, resume_turns=True)


def test_a_turn_that_goes_on_after_an_update_has_spans_that_score_alike(
    stops: Stops, tmp_path: Path
) -> None:
    async def scenario(model: Any) -> Any:
        with of():
            await stops.stop(model, ASKED)
            write_step(tmp_path / "steps", 4)
            await model.load_weights({})
            made = await model.responses(dict(ASKED))
        last = made["output"][-1]
        end = len(last["generation_token_ids"])
        assert last["policy_version_spans"] == [[0, KEPT, 0], [KEPT, end, 4]]
        assert (last["policy_version_first"], last["policy_version_last"]) == (0, 4)

        async def score(token_ids: Any, temperature: float, version: int | None) -> Any:
            asked = ScoreRequest(token_ids=token_ids, temperature=temperature, version=version)
            return (await model.score_tokens(asked))["log_probs"]

        block = {"task_id": "abc", "scope": "", "rollout_index": 0, "scores": []}
        line = {"agent_ref": {"name": "a"}, "rollout": block, "response": made}
        return await check_tokens([rollout_of(line)], score)

    sync = {"path": str(tmp_path / "steps"), "poll_s": 1e6}
    found = use_model(LocalModel, scenario, resume_turns=True, weight_sync=sync)
    assert (found.matched, found.mismatched, found.spanning) == (1, 0, 1)
    assert (found.num_behind, found.matched_behind) == (1, 1) and found.spanning_worst < 1e-4


@pytest.mark.parametrize("config", [{}, {"resume_turns": True}])
def test_nothing_is_kept_unless_it_is_asked_for(stops: Stops, config: Any, tmp_path: Path) -> None:
    asked = {**ASKED, **({"require_version": 0} if config else {})}

    async def scenario(model: Any) -> None:
        with of():
            await stops.stop(model, asked)
            stops.num_sampled = 0
            made = await model.responses(dict(asked))
        assert stops.num_sampled == len(made["output"][-1]["generation_token_ids"])

    use_model(
        LocalModel, scenario, weight_sync={"path": str(tmp_path / "steps"), "poll_s": 1e6}, **config
    )


def test_the_oldest_turns_go_first() -> None:
    turns = PartialTurns(max_tokens=5)
    for name in ("a", "b", "c"):
        with pytest.raises(ModelError), turns.resume(name) as turn:
            turn.add([(1, -0.5), (2, -0.5)], [3, 3])
            raise ModelError("the engine is gone")
    kept = {}
    for name in ("a", "b", "c"):
        with turns.resume(name) as turn:
            kept[name] = len(turn.token_ids)
    assert kept == {"a": 0, "b": 2, "c": 2} and turns.num_resumed == 2
