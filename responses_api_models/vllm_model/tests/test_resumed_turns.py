"""Turns that are stopped in the middle go on by token ids, with fake vLLMs."""

import asyncio
import json
import time

import pytest
from endpoint import Endpoint, says
from support import HANG_S, row, write_jsonl
from workplace import Workplace

from rollout_kit.errors import ModelError
from rollout_kit.rl import BufferPolicy, CheckpointManager, MemoryBuffer, serve_buffer
from rollout_kit.session import Session, entered
from rollout_kit.trajectory import sequences

SAMPLED = [1011, 1012, 2]
HI = [1, *map(ord, "user:Hi"), 2, 1]
ASKED = {"input": "Hi", "max_output_tokens": 9}
ON = {"return_token_ids": True, "resume_turns": True}


async def until(holds):
    give_up = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.01)


async def ask(model, run="one", **params):
    with entered(Session.of(("abc", 0), None, run)):
        return await model.responses({**ASKED, **params})


async def stop(fakes, model, **params):
    """Ask, and leave when vLLM has begun."""
    number = len(fakes.seen("held")) + 1
    asking = asyncio.create_task(ask(model, **params))
    await until(lambda: len(fakes.seen("held")) == number)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_a_stopped_turn_goes_on_behind_its_tokens(fakes, tmp_path):
    steps = tmp_path / "steps"

    async def use(model):
        await stop(fakes, model)
        with CheckpointManager(steps).write(5) as step:
            header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
            raw = len(header).to_bytes(8, "little") + header + b"x"
            (step / "model.safetensors").write_bytes(raw)
            (step / "weights").write_text("5")
        await model.load_weights({})
        made = await ask(model)
        assert model.load_figures()["resumed_turns"] == 1
        return made

    fakes.plan(hold_after=2)
    made = fakes.run(use, weight_sync={"path": str(steps), "poll_s": 1e6}, **ON)
    last = made["output"][-1]
    assert last["prompt_token_ids"] == HI and last["generation_token_ids"] == SAMPLED
    assert last["generation_log_probs"] == [-0.25] * 3
    assert last["policy_version_spans"] == [[0, 2, 0], [2, 3, 5]]
    assert made["usage"]["input_tokens"] == len(HI) and made["usage"]["output_tokens"] == 3
    first, rest = fakes.seen("generated")
    assert (first["token_ids"], rest["token_ids"]) == (HI, HI + SAMPLED[:2])
    assert rest["sampling_params"]["max_tokens"] == first["sampling_params"]["max_tokens"] - 2
    [derendered] = fakes.seen("derendered")
    assert derendered["generate_response"]["choices"][0]["token_ids"] == SAMPLED[:-1]


def test_a_request_that_a_trainer_aborts_goes_on_by_itself(fakes):
    async def use(model):
        asking = asyncio.create_task(model.responses(dict(ASKED)))
        await until(lambda: fakes.seen("held"))
        [body] = fakes.seen("generated")
        url = model._endpoints.all[0].url
        ids = b'{"request_ids": ["%s"]}' % body["request_id"].encode()
        await model._http.post(f"{url}/inference/v1/abort_requests", ids)
        return await asking

    fakes.plan(hold_after=1)
    [last] = fakes.run(use, **ON)["output"]
    assert last["generation_token_ids"] == SAMPLED and "generation_stopped_by" not in last


@pytest.mark.parametrize(
    ("params", "run"),
    [({}, "two"), ({"stop": ["x"]}, "one"), ({"presence_penalty": 0.5}, "one")],
)
def test_another_run_and_what_depends_on_the_whole_turn_begin_anew(fakes, params, run):
    async def use(model):
        await stop(fakes, model, **params)
        again = asyncio.create_task(ask(model, run=run, **params))
        await until(lambda: len(fakes.seen("held")) == 2)
        again.cancel()
        await asyncio.wait([again])

    fakes.plan(hold_after=2)
    fakes.run(use, **ON)
    assert [each["token_ids"] for each in fakes.seen("generated")] == [HI, HI]


def test_without_the_key_an_aborted_turn_is_an_error_and_no_answer(fakes):
    async def use(model):
        items = [{"role": "user", "content": "Hi"}]
        items += (await model.responses({"input": items}))["output"]
        asking = model.responses({"input": [*items, {"role": "user", "content": "?"}]})
        later = asyncio.create_task(asking)
        await until(lambda: fakes.seen("held"))
        url = model._endpoints.all[0].url
        await model._http.post(f"{url}/inference/v1/abort_requests", b'{"request_ids": ["None"]}')
        with pytest.raises(ModelError, match="told to abort"):
            await later

    fakes.plan(hold_after=2)
    fakes.run(use, return_token_ids=True, max_tries=1)


LONG = "a long one"


@pytest.fixture
def place(fakes, tmp_path):
    """Servers whose vLLM holds the long one until it is told to abort it."""
    fakes.plan(hold_after=2, holds=LONG)
    made = Workplace(tmp_path, Endpoint(says(str), 0))
    block = {"model_name": "org/m", "vllm_executable": str(fakes.executable)}
    block |= {"entrypoint": "app.py", "return_token_ids": True, "resume_turns": True}
    echo = {"resources_servers": {"echo": {}}}
    config = {"echo": echo, "policy_model": {"responses_api_models": {"vllm_model": block}}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    write_jsonl(tmp_path / "tasks.jsonl", [row(LONG), row("b"), row("c")])
    return made


def test_an_over_provisioned_rollout_goes_on_in_the_next_step_of_an_ng_run(fakes, place):
    async def train(buffer):
        """Wait with the first step until the long one was stopped."""
        await until(lambda: fakes.seen("aborted"))
        found = []
        for step in range(1, 4):
            batch = await buffer.get(1)
            found += batch.groups
            await buffer.ack(batch.lease)
            await buffer.set_version(step)
        return found

    async def collect(port):
        buffer = MemoryBuffer(BufferPolicy(batch=1, staleness=1, over_provision=1.0))
        async with serve_buffer(buffer) as url:
            files = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
            words = [*files, f"+head_server.port={port}", f"+buffer={url}"]
            process = place.start("collect_rollouts", "+agent_name=echo_simple_agent", *words)
            try:
                found = await asyncio.wait_for(train(buffer), HANG_S)
                said, _ = await asyncio.to_thread(process.communicate, timeout=HANG_S)
            finally:
                process.kill()
        assert process.returncode == 0, said
        assert "1 rollout stopped at a full step" in said
        return found

    with place.ng_run() as (_, port, _):
        groups = asyncio.run(collect(port))
    assert [len(group.rollouts) for group in groups] == [1, 1, 1]
    assert place.questions() == [LONG, "b", "c"]
    asked = [each["token_ids"] for each in fakes.seen("generated")]
    [stopped, rest] = [each for each in asked if LONG in "".join(map(chr, each))]
    assert rest == stopped + SAMPLED[:2]
    for group in groups:
        [sequence] = sequences(group.rollouts[0]["response"]["output"])
        assert sequence.turns[0].generation == SAMPLED
