"""The server in front of vLLM processes that are real processes, if not vLLM."""

import asyncio
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import HANG_S, eventually

from rollout_kit.errors import ConfigError, ModelError, TaskError
from rollout_kit.serving import registry
from rollout_kit.serving.sockets import bound_socket
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.retry import RetryPolicy
from rollout_kit.session import Session, entered

VllmModel = registry.load("responses_api_models", "vllm_model")
PARTS = VllmModel.__module__.rpartition(".")[0]

OOM = """\
(EngineCore pid=2) ERROR 11-21 22:01:02 [core.py:1001] torch.OutOfMemoryError: CUDA out of memory.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."""

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}


async def said(model, session=None, **params):
    with entered(session):
        response = await model.responses({"input": "Hi", **params})
    return response["output"][0]["content"][0]["text"]


def children_of(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def told_to(model, what, number=0):
    http = HttpClient()
    try:
        await http.post(f"{model._endpoints.all[number].url}/{what}", b"{}", timeout_s=HANG_S)
    except Exception as error:
        assert what == "crash", error
    await http.close()


async def until(condition):
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110  a process decides
            await asyncio.sleep(0.02)


def test_it_starts_answers_and_ends(fakes):
    async def use(model):
        assert await said(model) == f"said by {fakes.seen('starts')[0]['pid']}"

    fakes.run(use, max_model_len=2048, api_key="top-secret")
    [start] = fakes.seen("starts")
    words = start["argv"]
    assert words[:2] == ["serve", "org/m"]
    assert words[words.index("--max-model-len") + 1] == "2048"
    [asked] = fakes.seen("asked")
    assert asked["key"] == "Bearer top-secret" and asked["body"]["model"] == "org/m"


def test_a_failed_load_tells_vllm_s_own_reason_and_what_to_lower(fakes):
    fakes.plan(fails=OOM)
    with pytest.raises(ConfigError) as caught:
        fakes.run(said)
    text = str(caught.value)
    assert "torch.OutOfMemoryError: CUDA out of memory." in text
    assert "initialization failed" not in text
    assert "gpu_memory_utilization" in text and "max_model_len" in text


def test_one_that_is_never_ready_is_given_up(fakes):
    fakes.plan(deaf=True)
    with pytest.raises(ConfigError, match="not ready within 1 s"):
        fakes.run(said, ready_timeout_s=1)


def test_phases_are_told_once(fakes, caplog):
    fakes.run(said)
    told = [record.message for record in caplog.records]
    for phase in ("is loading org/m", "has loaded the weights (0.01 s)", "524,288 tokens", "ready"):
        assert sum(phase in line for line in told) == 1, told


def test_a_crash_is_noticed_and_the_request_asked_again(fakes):
    gate = fakes.folder / "gate"
    fakes.plan(gate=str(gate))

    async def use(model):
        asking = asyncio.create_task(said(model))
        await until(lambda: fakes.seen("asked"))
        os.kill(fakes.seen("starts")[0]["pid"], signal.SIGKILL)
        gate.touch()
        text = await asking
        assert text == f"said by {fakes.seen('starts')[1]['pid']}"
        assert model.load_figures()["vllm_restarts"] == 1

    fakes.run(use)


def test_a_429_is_waited_for_counted_and_shown(fakes):
    fakes.plan(refusals=1)

    async def use(model):
        asking = asyncio.create_task(said(model))
        await until(lambda: model.load_figures()["num_429"])
        assert model.load_figures()["throttled"]
        await asking
        assert len(fakes.seen("asked")) == 2

    fakes.run(use)


def test_workers_of_a_dead_one_are_gone_before_the_next_starts(fakes):
    async def use(model):
        pid = fakes.seen("starts")[0]["pid"]
        children = children_of(pid)
        assert children
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(fakes.seen("starts")) == 2)
        assert not any(map(fakes.is_alive, children))

    fakes.run(use)


def test_it_is_given_up_and_says_why(fakes):
    fakes.plan(fails="ValueError: no such thing", fails_after=1)

    async def use(model):
        await told_to(model, "crash")
        with pytest.raises(ModelError, match="ValueError: no such thing") as caught:
            await said(model)
        assert not caught.value.retryable and not caught.value.terminal
        assert len(fakes.seen("starts")) == 3

    fakes.run(use, max_restarts=2)


def test_a_request_that_waits_in_vain_may_be_tried_again(fakes):
    fakes.plan(fails="ValueError: no", fails_after=1)

    async def use(model):
        await told_to(model, "crash")
        with pytest.raises(ModelError, match="no vLLM answers") as caught:
            await said(model)
        assert caught.value.retryable and caught.value.status == 503

    engine = importlib.import_module(f"{PARTS}.engine")
    slow = RetryPolicy(base_s=100, cap_s=100, jitter=0)
    fakes.monkeypatch.setattr(engine, "VLLM_RESTART", slow)
    fakes.run(use, request_timeout_s=0.5)


def test_the_port_is_kept_from_others(fakes):
    async def use(model):
        host, _, port = model._engines[0].url.removeprefix("http://").partition(":")
        with pytest.raises(OSError):
            bound_socket(host, int(port))

    fakes.run(use)


def test_replicas_get_gpus_of_their_own(fakes):
    fakes.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")

    async def use(model):
        return None

    fakes.run(use, num_replicas=2, tensor_parallel_size=2)
    assert sorted(each["gpus"] for each in fakes.seen("starts")) == ["0,1", "2,3"]


def test_requests_go_to_the_least_busy_and_a_session_stays(fakes):
    fakes.plan(answer_s=0.1)

    async def use(model):
        texts = await asyncio.gather(*(said(model) for _ in range(8)))
        assert [texts.count(text) for text in set(texts)] == [4, 4]
        for session in (Session(), Session(), Session()):
            assert len({await said(model, session) for _ in range(4)}) == 1
        told = (await model.load())["endpoints"]
        assert sum(each["requests"] for each in told) == 20

    fakes.run(use, num_replicas=2)


def test_one_of_two_that_dies_costs_nothing(fakes):
    gate = fakes.folder / "gate"
    fakes.plan(gate=str(gate))

    async def use(model):
        asking = [asyncio.create_task(said(model, Session())) for _ in range(20)]
        await until(lambda: model.load_figures()["running"] == 20)
        await told_to(model, "crash", number=0)
        gate.touch()
        texts = await asyncio.gather(*asking)
        assert len(texts) == 20
        await until(lambda: not model._endpoints.all[0].ejected_for)
        assert len(set(await asyncio.gather(*(said(model) for _ in range(8))))) == 2

    fakes.run(use, num_replicas=2)


def test_a_sick_endpoint_is_left_out_until_it_is_well(fakes):
    async def use(first):
        async def elsewhere(second):
            urls = [each._endpoints.all[0].url + "/v1" for each in (first, second)]
            config = VllmModel.Config(model_name="org/m", base_url=urls)
            model = VllmModel(config, None, "policy_model")
            await model.start()
            try:
                await told_to(model, "sick", number=0)
                assert len({await said(model) for _ in range(8)}) == 1
                figures = await model.load()
                assert figures["endpoints_down"] == 1
                assert "500" in figures["endpoints"][0]["why"]
                await told_to(model, "well", number=0)
                await until(lambda: "endpoints_down" not in model.load_figures())
                assert len(set(await asyncio.gather(*(said(model) for _ in range(8))))) == 2
            finally:
                await model.stop()

        block = {"model_name": "org/m", "vllm_executable": str(fakes.executable)}
        second = VllmModel(VllmModel.Config(**block), None, "other")
        try:
            await second.start()
            await elsewhere(second)
        finally:
            await second.stop()

    fakes.run(use)


def test_token_ids_lie_on_the_last_item_of_the_turn(fakes):
    async def use(model):
        response = await model.responses({"input": "Hi", "tools": [ADD]})
        *before, last = response["output"]
        assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
        assert last["prompt_token_ids"] == [1, *map(ord, "user:Hi"), 2, 1]
        assert last["generation_token_ids"] == [1011, 1012, 2]
        assert last["generation_log_probs"] == [-0.5, -0.5, -0.5]
        assert not any("prompt_token_ids" in item for item in before)
        plain = await model.responses({"input": "Hi", "return_token_ids": False})
        assert "prompt_token_ids" not in plain["output"][-1]

    fakes.run(use, return_token_ids=True)
    with_ids, without = (each["body"] for each in fakes.seen("asked"))
    assert with_ids["return_token_ids"] is True and with_ids["logprobs"] is True
    assert "return_token_ids" not in without and "logprobs" not in without


def test_a_row_s_parameters_win_over_the_block_s(fakes):
    async def use(model):
        await model.responses(
            {
                "instructions": "Be brief.",
                "input": [
                    {"role": "developer", "content": "Really."},
                    {"role": "user", "content": "Hi"},
                ],
                "model": "sums",
                "seed": 7,
                "top_k": 5,
                "max_output_tokens": 9,
                "chat_template_kwargs": {"enable_thinking": True},
                "metadata": {"extra_body": '{"min_p": 0.2}', "row": "1"},
            }
        )

    fakes.run(
        use,
        extra_body={"top_k": 1, "min_tokens": 2},
        chat_template_kwargs={"enable_thinking": False, "style": "x"},
        lora_modules={"sums": "/adapters/sums"},
    )
    [asked] = fakes.seen("asked")
    assert asked["body"] == {
        "model": "sums",
        "messages": [
            {"role": "system", "content": "Be brief.\n\nReally."},
            {"role": "user", "content": "Hi"},
        ],
        "seed": 7,
        "top_k": 5,
        "min_tokens": 2,
        "min_p": 0.2,
        "max_tokens": 9,
        "chat_template_kwargs": {"enable_thinking": True, "style": "x"},
        "metadata": {"row": "1"},
    }
    assert "sums=/adapters/sums" in fakes.seen("starts")[0]["argv"]


def test_reasoning_goes_back_to_the_model_unless_that_is_turned_off(fakes):
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye"},
    ]

    async def use(model):
        await model.responses({"input": items})

    fakes.run(use)
    fakes.run(use, drop_input_reasoning_items=True)
    first, second = (each["body"]["messages"][1] for each in fakes.seen("asked"))
    assert first == {"role": "assistant", "reasoning": "hm", "content": "Yes?"}
    assert second == {"role": "assistant", "content": "Yes?"}


def test_an_input_beyond_the_context_is_an_incomplete_response(fakes):
    async def use(model):
        response = await model.responses({"input": "too long"})
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"] == []
        with pytest.raises(ModelError, match="is not a parameter") as caught:
            await model.responses({"input": "bad"})
        assert caught.value.status == 400 and caught.value.terminal

    fakes.run(use)


@pytest.mark.parametrize(
    ("plan", "room"),
    [
        ({"param": "max_tokens"}, 2048 - 10),
        ({"longest": 2048 - 10}, 2048 - 10),  # before 0.30 it named no parameter
    ],
)
def test_more_than_the_context_leaves_is_asked_for_once_and_never_again(fakes, plan, room):
    fakes.plan(**plan)

    async def use(model):
        for _ in range(3):
            response = await model.responses({"input": "Hi", "max_output_tokens": 5000})
            assert response["status"] == "completed"

    fakes.run(use)
    wanted = [each["body"]["max_tokens"] for each in fakes.seen("asked")]
    assert wanted[:2] == [5000, room] and max(wanted[2:]) <= 2048


@pytest.mark.parametrize("upstream_api", ["chat_completions", "responses"])
def test_tokens_of_the_input_are_counted(fakes, upstream_api):
    async def use(model):
        assert await model.count_input({"input": "Hi"}) == 10
        assert not fakes.seen("asked")

    fakes.run(use, upstream_api=upstream_api)


def test_vllm_s_own_responses_api_may_be_asked(fakes):
    async def use(model):
        response = await model.responses({"input": "Hi", "top_k": 5, "max_output_tokens": 5000})
        assert response["output"][0]["content"][0]["text"] == "vLLM's own"
        with pytest.raises(TaskError, match="returns none"):
            await model.responses({"input": "Hi", "return_token_ids": True})

    fakes.run(use, upstream_api="responses", chat_template_kwargs={"style": "x"})
    first, second = (each["body"] for each in fakes.seen("asked"))
    kwargs = {"chat_template_kwargs": {"style": "x"}}
    assert first == {
        "model": "org/m",
        "input": "Hi",
        "top_k": 5,
        "max_output_tokens": 5000,
        **kwargs,
    }
    assert second == {**first, "max_output_tokens": 2048 - 10}


def test_the_engine_s_own_figures_are_in_the_load(fakes):

    async def use(model):
        await asyncio.gather(*(said(model) for _ in range(3)))
        await until(lambda: "kv_cache" in model.load_figures())
        figures = model.load_figures()
        assert figures["kv_cache"] == 0.5
        assert figures["engine_running"] == 3 and figures["engine_waiting"] == 4
        assert figures["preemptions"] == 7
        assert figures["running"] == figures["waiting"] == 0

    fakes.run(use)


def test_the_capacity_of_data_parallel_engines_adds_up():
    text = """\
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",engine="2",num_gpu_blocks="None"} 1.0
vllm:generation_tokens_total{engine="0"} 300.0
vllm:generation_tokens_total{engine="1"} 100.0
vllm:request_success_total{engine="0",finished_reason="stop"} 3.0
vllm:request_success_total{engine="1",finished_reason="length"} 1.0
"""
    metrics = importlib.import_module(f"{PARTS}.metrics")
    found = metrics.read_capacity(text)
    assert (found + found).figures(64, 4096) == {
        "max_sequences": 4 * 64,
        "kv_cache_tokens": 64_000,
        "max_model_len": 4096,
        "output_tokens_each": 100.0,
    }
    assert metrics.read_capacity("# nothing").figures(64, 4096) == {}


def ng_run(fakes, *words):
    """An ng_run with nothing but a vllm_model; its output is in `ng_run.txt`."""
    (fakes.folder / "vllm.yaml").write_text(
        f"vllm_model: {{model_name: org/m, vllm_executable: {fakes.executable}}}"
    )
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [Path(sys.executable).parent / "ng_run", "+config_paths=[vllm.yaml]", *words]
    with (fakes.folder / "ng_run.txt").open("w") as out:
        return subprocess.Popen(
            [*command, f"+head_server.port={port}"], cwd=fakes.folder, stdout=out, stderr=out
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_vllm_does_not_outlive_an_ng_run(fakes, number):
    process = ng_run(fakes)
    said = fakes.folder / "ng_run.txt"
    try:
        eventually(lambda: "servers ready" in said.read_text())
        [start] = fakes.seen("starts")
        members = [start["pid"], *children_of(start["pid"])]
        assert len(members) == 2 and all(map(fakes.is_alive, members))
        process.send_signal(number)
        eventually(lambda: not any(map(fakes.is_alive, members)))
    finally:
        process.kill()
        process.wait()
    [log] = fakes.folder.glob("logs/*/vllm_model.log")
    assert "Resolved architecture" in log.read_text() and "\x0e" not in log.read_text()
    assert "Resolved architecture" not in said.read_text()
    assert "(vllm_model) vLLM is loading org/m" in said.read_text()


def test_vllm_dies_with_its_server_process_and_comes_back_with_it(fakes):
    process = ng_run(fakes)
    said = fakes.folder / "ng_run.txt"
    try:
        eventually(lambda: "servers ready" in said.read_text())
        first = fakes.seen("starts")[0]["pid"]
        members = [first, *children_of(first)]
        status = Path(f"/proc/{first}/status").read_text()
        os.kill(int(re.search(r"PPid:\s+(\d+)", status)[1]), signal.SIGKILL)
        eventually(lambda: "is back" in said.read_text())
        assert len(fakes.seen("starts")) == 2 and not any(map(fakes.is_alive, members))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(HANG_S)


def test_a_failed_start_is_told_by_ng_run_with_the_log_s_path(fakes):
    fakes.plan(fails=OOM)
    process = ng_run(fakes)
    assert process.wait(HANG_S) != 0
    said = (fakes.folder / "ng_run.txt").read_text()
    assert "torch.OutOfMemoryError: CUDA out of memory." in said
    assert "gpu_memory_utilization" in said
    assert "logs/" in said and "vllm_model.log" in said


def test_ctrl_c_ends_one_that_is_still_loading(fakes):
    fakes.plan(load_s=10_000)
    process = ng_run(fakes)
    eventually(lambda: fakes.seen("starts"))
    process.send_signal(signal.SIGINT)
    process.wait(HANG_S)
    assert not fakes.is_alive(fakes.seen("starts")[0]["pid"])


def test_a_raw_prompt_is_continued_without_a_chat_template(fakes):
    raw = {"input": "Q: 1+1\nA:", "raw_prompt": True, "max_output_tokens": 9, "seed": 3}

    async def use(model):
        text = await model.responses(raw)
        with_ids = await model.responses({**raw, "return_token_ids": True, "max_output_tokens": 3})
        overflowed = await model.responses({**raw, "input": "too long"})
        return text, with_ids, overflowed

    text, with_ids, overflowed = fakes.run(use, chat_template_kwargs={"x": 1})
    [first, second, _] = [each["body"] for each in fakes.seen("asked")]
    assert first == {"model": "org/m", "prompt": "Q: 1+1\nA:", "max_tokens": 9, "seed": 3}
    assert second["return_token_ids"] is True and second["logprobs"] == 0
    assert text["output"][0]["content"][0]["text"] == " continued"
    assert text["status"] == "completed" and text["usage"]["output_tokens"] == 3
    assert with_ids["incomplete_details"] == {"reason": "max_output_tokens"}
    last = with_ids["output"][-1]
    assert last["prompt_token_ids"] == [ord(letter) for letter in raw["input"]]
    assert last["generation_token_ids"] == [1011, 1012, 2]
    assert last["generation_log_probs"] == [-0.5] * 3
    assert overflowed["output"] == []


def test_the_block_s_sampling_overrides_win_over_everything(fakes):
    async def use(model):
        extra = '{"top_k": 5, "min_p": 0.2}'
        asked = {"input": "Hi", "temperature": 0.3, "max_output_tokens": 9}
        await model.responses({**asked, "metadata": {"extra_body": extra, "row": "1"}})
        await model.responses({"input": "Hi", "raw_prompt": True, "temperature": 0.3})

    fakes.run(use, sampling_overrides={"temperature": 1.0, "top_k": -1, "max_tokens": 7})
    [chat, raw] = [each["body"] for each in fakes.seen("asked")]
    messages = [{"role": "user", "content": "Hi"}]
    sampling = {"temperature": 1.0, "top_k": -1, "max_tokens": 7}
    metadata = {"metadata": {"row": "1"}}
    assert chat == {"model": "org/m", "messages": messages, "min_p": 0.2, **sampling, **metadata}
    assert raw == {"model": "org/m", "prompt": "Hi", **sampling}


def test_a_final_message_of_the_assistant_is_continued(fakes):
    user = {"role": "user", "content": "Say it."}
    prefix = {"role": "assistant", "content": "The answer is"}

    async def use(model):
        await model.responses({"input": [user, prefix]})
        await model.responses({"input": [user]})

    fakes.run(use, continue_final_assistant_message=True)
    [first, second] = [each["body"] for each in fakes.seen("asked")]
    assert first["messages"] == [user, prefix]
    assert (first["continue_final_message"], first["add_generation_prompt"]) == (True, False)
    assert second == {"model": "org/m", "messages": [user]}


def test_reasoning_of_earlier_turns_may_be_sent_in_their_text(fakes):
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "3"}
    user = {"role": "user", "content": "Hi"}

    async def use(model):
        await model.responses({"input": [user, thought, said, user, thought, call, output]})

    fakes.run(use, preserve_reasoning_in_assistant_content=True)
    [asked] = fakes.seen("asked")
    [_, first, _, second, _] = asked["body"]["messages"]
    assert first == {"role": "assistant", "content": "<think>Hm.</think>Yes."}
    assert second["content"] == "<think>Hm.</think>"
    assert second["tool_calls"][0]["function"]["name"] == "add"


def test_every_input_may_be_sent_as_a_raw_prompt(fakes):
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    parts = [{"type": "input_text", "text": "Hi"}, {"type": "input_text", "text": "!"}]

    async def use(model):
        for asked in ("Hi", [user], [system, user], [{"role": "user", "content": parts}]):
            await model.responses({"input": asked})
        await model.responses({"input": [user], "instructions": "Be brief."})
        for wrong in ([user, user], [user, {"role": "assistant", "content": "x"}], [system]):
            with pytest.raises(TaskError, match="raw_prompt: the input must be one text"):
                await model.responses({"input": wrong})
        with pytest.raises(TaskError, match="raw_prompt: a raw completion cannot call tools"):
            await model.responses({"input": [user], "tools": [ADD]})

    fakes.run(use, use_completions_api=True)
    prompts = [each["body"]["prompt"] for each in fakes.seen("asked")]
    assert prompts == ["Hi", "Hi", "Be brief.\n\nHi", "Hi!", "Be brief.\n\nHi"]


def test_a_raw_prompt_is_one_text_without_tools(fakes):
    async def use(model):
        for more in ({"tools": [ADD]}, {"instructions": "x"}, {"input": []}):
            with pytest.raises(TaskError, match="raw_prompt: "):
                await model.responses({"input": "Hi", "raw_prompt": True, **more})

    fakes.run(use)
