"""vllm_model follows a trainer, with fake vLLMs that change their weights as vLLM does."""

import asyncio
import importlib
import json
import shutil
import time

import pytest
from support import HANG_S

from rollout_kit.errors import ModelError, PeerError
from rollout_kit.responses import output_text
from rollout_kit.rl import CheckpointManager
from rollout_kit.serving import registry

PARTS = registry.load("responses_api_models", "vllm_model").__module__.rpartition(".")[0]

ASKED = {"input": "Hi"}


def write_step(folder, version, text=None):
    with CheckpointManager(folder, keep_last=100).write(version) as step:
        (step / "weights").write_text(str(version) if text is None else text)
        header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
        (step / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x")


def versions(response):
    last = response["output"][-1]
    return last["policy_version_first"], last["policy_version_last"]


def written(response):
    """The weights that wrote the first and the last token, as the fake tells."""
    return tuple(map(int, output_text(response).split()))


def label_agrees(response):
    (first, last), told = versions(response), written(response)
    return first <= told[0] and told[1] == last


async def until(holds):
    give_up = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.01)


@pytest.fixture
def steps(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    write_step(base, 0)
    return tmp_path / "steps"


def follow(fakes, use, steps, mode="checkpoint_dir", **settings):
    sync = {"mode": mode, "path": str(steps), "poll_s": 1e6}
    if mode == "external":
        sync = {"mode": mode, "poll_s": 1e6}
    settings.setdefault("model_name", str(steps.parent / "base/step_0"))
    return fakes.run(use, weight_sync=sync, **settings)


def events(fakes):
    return [each["what"] for each in fakes.seen("events")]


def test_updates_under_load_fail_no_request_and_label_each_rightly(fakes, steps):
    fakes.plan(answer_s=0.01)

    async def use(model):
        is_over, answers = False, []

        async def client():
            while not is_over:
                answers.append(await model.responses(ASKED))

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for version in range(1, 9):
            write_step(steps, version)
            assert (await model.load_weights({}))["version"] == version
            have = len(answers) + 8
            await until(lambda have=have: len(answers) >= have)
        is_over = True
        await asyncio.gather(*clients)
        known = [each for each in answers if versions(each) != (0, 0)]
        assert known and all(label_agrees(each) for each in known)
        assert any(first < last for first, last in map(versions, known))
        assert {last for _, last in map(versions, known)} >= set(range(1, 9))

    follow(fakes, use, steps, num_replicas=2)
    calls = events(fakes)
    assert calls.count("pause keep") == calls.count("resume") == 16
    salts = {each["body"].get("cache_salt") for each in fakes.seen("asked")}
    assert salts >= {"step-1", "step-8"}


def test_a_request_in_flight_spans_the_update_and_its_time_limit_stands_still(fakes, steps):
    """Its limit is shorter than the update; a request that comes meanwhile waits for the end."""
    fakes.plan(gate=str(fakes.folder / "gate"))
    slow, gate = fakes.folder / "slow", fakes.folder / "gate"

    async def use(model):
        first = asyncio.create_task(model.responses(ASKED))
        await until(lambda: len(fakes.seen("asked")) == 1)
        slow.touch()
        write_step(steps, 1)
        update = asyncio.create_task(model.load_weights({}))
        await until(lambda: "pause keep" in events(fakes))
        later = asyncio.create_task(model.responses(ASKED))
        await asyncio.sleep(LIMIT_S + 0.2)
        assert not first.done() and not later.done() and len(fakes.seen("asked")) == 1
        gate.touch()
        slow.unlink()
        assert (await update)["version"] == 1
        assert versions(await first) == (0, 1) and versions(await later) == (1, 1)

    follow(fakes, use, steps, request_timeout_s=LIMIT_S, max_tries=1)


LIMIT_S = 0.5


def test_a_replica_that_fails_is_left_out_until_it_has_the_weights(fakes, steps):
    async def use(model):
        pids = [each["pid"] for each in fakes.seen("starts")]
        write_step(steps, 1)
        await model.load_weights({})
        (fakes.folder / "bad").write_text(str(pids[0]))
        write_step(steps, 2)
        assert (await model.load_weights({}))["version"] == 2
        assert model.load_figures()["endpoints_down"] == 1
        answers = await asyncio.gather(*(model.responses(ASKED) for _ in range(8)))
        assert {written(each) for each in answers} == {(2, 2)} == {versions(e) for e in answers}
        (fakes.folder / "bad").unlink()
        await until(lambda: "endpoints_down" not in model.load_figures())
        answers = await asyncio.gather(*(model.responses(ASKED) for _ in range(8)))
        assert {written(each) for each in answers} == {(2, 2)}

    follow(fakes, use, steps, num_replicas=2)


def test_an_answer_from_mixed_weights_is_asked_again_elsewhere(fakes, steps):
    fakes.plan(gate=str(fakes.folder / "gate"))

    async def use(model):
        waiting = [asyncio.create_task(model.responses(ASKED)) for _ in range(2)]
        await until(lambda: len(fakes.seen("asked")) == 2)
        pids = [each["pid"] for each in fakes.seen("starts")]
        (fakes.folder / "bad").write_text(str(pids[0]))
        write_step(steps, 1)
        await model.load_weights({})
        (fakes.folder / "gate").touch()
        answers = await asyncio.gather(*waiting)
        assert all("mixed" not in output_text(each) for each in answers)
        assert len(fakes.seen("asked")) == 3

    follow(fakes, use, steps, num_replicas=2)


def test_an_update_that_fails_everywhere_leaves_the_version_in_use(fakes, steps):
    async def use(model):
        write_step(steps, 1)
        await model.load_weights({})
        (fakes.folder / "bad").write_text("all")
        write_step(steps, 2)
        shutil.copytree(steps / "step_1", fakes.folder / "kept")
        told = await model.load_weights({})
        assert told["version"] == 1 and "no space" in told["refused"]["step_2"]
        (fakes.folder / "bad").unlink()  # the weights are mixed until the old ones are loaded again
        answer = await model.responses(ASKED)
        assert written(answer) == versions(answer) == (1, 1)
        write_step(steps, 3)
        await model.load_weights({})
        answer = await model.responses(ASKED)
        assert written(answer) == versions(answer) == (3, 3)

    follow(fakes, use, steps)


def test_weights_that_did_not_change_are_found_out(fakes, steps):
    fakes.plan(ignores=True)

    async def use(model):
        write_step(steps, 1)
        told = await model.load_weights({})
        assert told["version"] == 0 and "the same after the reload" in told["refused"]["step_1"]

    follow(fakes, use, steps)


def test_half_and_corrupt_steps_never_reach_vllm(fakes, steps):
    async def use(model):
        write_step(steps, 1)
        (steps / "step_1/STABLE").unlink()
        write_step(steps, 2)
        (steps / "step_2/weights").write_text("other")
        told = await model.load_weights({})
        assert told["version"] == 0 and list(told["refused"]) == ["step_2"]

    follow(fakes, use, steps)
    assert events(fakes) == []


def test_a_vllm_that_died_comes_back_with_the_version_in_use(fakes, steps):
    async def use(model):
        write_step(steps, 1)
        await model.load_weights({})
        with pytest.raises(PeerError):
            await model._http.post(f"{model._endpoints.all[0].url}/crash", b"{}", timeout_s=5)
        answer = await model.responses(ASKED)
        assert written(answer) == versions(answer) == (1, 1)

    follow(fakes, use, steps)
    assert len(fakes.seen("starts")) == 2


def test_adapters_are_loaded_beside_each_other_and_unloaded_when_unused(fakes, steps):
    fakes.plan(gate=str(fakes.folder / "gate"))

    async def use(model):
        write_step(steps, 1)
        await model.load_weights({})
        old = asyncio.create_task(model.responses(ASKED))
        await until(lambda: len(fakes.seen("asked")) == 1)
        write_step(steps, 2)
        await model.load_weights({})
        assert "unload step-1" not in events(fakes)
        (fakes.folder / "gate").touch()
        answer, new = await old, await model.responses(ASKED)
        assert written(answer) == versions(answer) == (1, 1)
        assert written(new) == versions(new) == (2, 2)
        assert events(fakes) == ["load step-1", "load step-2", "unload step-1"]

    follow(fakes, use, steps, mode="lora_dir")
    [start] = fakes.seen("starts")
    assert "--enable-lora" in start["argv"]


def test_a_trainer_that_updates_vllm_itself_is_observed(fakes, steps):
    async def use(model):
        url = model._endpoints.all[0].url
        await model._http.post(f"{url}/update_weight_version", json_of(new_version="step-41"))
        assert versions(await model.responses(ASKED)) == (41, 41)
        assert (await model.load_weights({}))["version"] == 41

    follow(fakes, use, steps, mode="external")


def json_of(**fields):
    return json.dumps(fields).encode()


def test_sleep_waits_for_requests_and_later_ones_wait_for_the_end(fakes, steps):
    fakes.plan(gate=str(fakes.folder / "gate"))

    async def use(model):
        first = asyncio.create_task(model.responses(ASKED))
        await until(lambda: len(fakes.seen("asked")) == 1)
        sleeping = asyncio.create_task(model.sleep({"level": 2}))
        (fakes.folder / "gate").touch()
        await first
        await sleeping
        assert events(fakes) == ["sleep 2"]
        later = asyncio.create_task(model.responses(ASKED))
        write_step(steps, 1)
        assert "sleeps" in (await model.load_weights({}))["refused"]["step_1"]
        assert len(fakes.seen("asked")) == 1
        await model.wake_up({})
        await later

    follow(fakes, use, steps)


def test_sleep_does_not_wait_for_a_turn_that_waits_for_its_end(fakes, steps):
    """A turn by token ids is several requests, and a sleep may begin between two of them."""
    fakes.plan(render_gate=str(fakes.folder / "gate"))

    async def use(model):
        turn = asyncio.create_task(model.responses(ASKED))
        await until(lambda: fakes.seen("rendered"))
        sleeping = asyncio.create_task(model.sleep({}))
        await asyncio.sleep(0)
        (fakes.folder / "gate").touch()
        async with asyncio.timeout(HANG_S):
            await sleeping
        assert events(fakes) == ["sleep 1"] and not turn.done()
        await model.wake_up({})
        assert "generation_token_ids" in (await turn)["output"][-1]

    follow(fakes, use, steps, return_token_ids=True)


def test_a_required_version_is_waited_for_and_an_old_one_is_refused(fakes, steps):
    async def use(model):
        waiting = asyncio.create_task(model.responses({**ASKED, "require_version": 1}))
        write_step(steps, 1)
        await model.load_weights({})
        assert versions(await waiting) == (1, 1)
        with pytest.raises(ModelError, match="version 0 of the weights is over"):
            await model.responses({**ASKED, "require_version": 0})
        assert all("require_version" not in each["body"] for each in fakes.seen("asked"))

    follow(fakes, use, steps)


def test_without_its_routes_vllm_is_not_followed_and_says_why(fakes, steps, monkeypatch):
    async def use(model):
        told = await model.load_weights({})
        assert told["version"] == 0
        assert "VLLM_SERVER_DEV_MODE=1" in told["refused"]["step_1"]
        assert "endpoints_down" not in model.load_figures()
        await model.responses(ASKED)

    write_step(steps, 1)
    module = importlib.import_module(f"{PARTS}.replicas")
    monkeypatch.setattr(module, "FOR_RL", {})
    follow(fakes, use, steps)


def test_the_preset_sets_what_a_training_loop_needs(fakes):
    async def use(model):
        assert model.config.return_token_ids
        assert "weight_sync" not in model.describe()["settings"]

    fakes.run(use, rl=True)
    [start] = fakes.seen("starts")
    words = start["argv"]
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert {"--enable-scale-out", "--enable-sleep-mode"} <= set(words)
    assert words[words.index("--host") + 1] == "127.0.0.1"
