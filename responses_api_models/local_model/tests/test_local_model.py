import asyncio
import importlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import MODULE, shapes_of, write_adapter
from openai.types.responses import Response
from support import HANG_S, use_model

from rollout_kit.errors import ConfigError, ModelError, TaskError
from rollout_kit.responses import function_call_output, output_text
from rollout_kit.serving import registry
from rollout_kit.trajectory import sequences

LocalModel: Any = registry.load("responses_api_models", "local_model")
FOLDER = Path(sys.modules[LocalModel.__module__].__file__ or "").parent
CHECKPOINT = FOLDER / "checkpoint"
SHIPPED_CONTEXT = 8192
"""Tokens. A prompt that fills it takes many seconds."""

ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two integers",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
    "strict": True,
}
LARGEST = "Which number is largest? A) 12 B) 45 C) 27 D) 30"
RIGHT = "max(A:12,B:45)=B:45, max(B:45,C:27)=B:45, max(B:45,D:30)=B:45. Answer: B"


def sibling(name: str) -> Any:
    package = LocalModel.__module__.removesuffix(".app")
    return importlib.import_module(f"{package}.{name}")


@pytest.fixture(autouse=True, scope="module")
def cache_of_its_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def ask(params: dict[str, Any], **config: Any) -> dict[str, Any]:
    return use_model(LocalModel, lambda model: model.responses(params), **config)


def asked(*many: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    """All at once."""

    async def scenario(model):
        return await asyncio.gather(*(model.responses(params) for params in many))

    return use_model(LocalModel, scenario, **config)


def tokens(response: dict[str, Any]) -> list[int]:
    return response["output"][-1]["generation_token_ids"]


def mixed_prompts(count: int) -> list[str]:
    """Questions it was trained on among word salad of 1 to 60 words, where near-ties abound."""
    rng = random.Random(7)
    words = (FOLDER / "README.md").read_text().split()
    salad = [" ".join(rng.choices(words, k=rng.randrange(1, 60))) for _ in range(count // 2)]
    sums = [f"What is {rng.randrange(99)}+{rng.randrange(99)}?" for _ in range(count - count // 2)]
    both = salad + sums
    rng.shuffle(both)
    return both


def reference_log_probs(token_ids: list[int]) -> np.ndarray:
    """Qwen3 written out in numpy: log-probs after each position, [positions, vocabulary]."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    weights = sibling("convert").read_safetensors(CHECKPOINT / "model.safetensors")
    num_heads, num_kv, dim = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    length = len(token_ids)

    def norm(x, name):
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"])
        return x / scale * weights[f"{name}.weight"]

    theta = config["rope_parameters"]["rope_theta"]
    angles = np.outer(np.arange(length), theta ** (-np.arange(0, dim, 2) / dim))
    cos, sin = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))

    def rotate(x):
        first, second = np.split(x, 2, -1)
        return x * cos + np.concatenate([-second, first], -1) * sin

    hidden = weights["model.embed_tokens.weight"][token_ids].astype(np.float64)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        x = norm(hidden, f"{at}.input_layernorm")
        q, k, v = (
            (x @ weights[f"{at}.self_attn.{part}_proj.weight"].T).reshape(length, -1, dim)
            for part in "qkv"
        )
        q = rotate(norm(q, f"{at}.self_attn.q_norm"))
        k = rotate(norm(k, f"{at}.self_attn.k_norm"))
        k, v = (np.repeat(x, num_heads // num_kv, axis=1) for x in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        attended = np.einsum("hqk,khd->qhd", np.exp(log_softmax(scores)), v).reshape(length, -1)
        hidden = hidden + attended @ weights[f"{at}.self_attn.o_proj.weight"].T
        x = norm(hidden, f"{at}.post_attention_layernorm")
        gate, up = (x @ weights[f"{at}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        hidden = (
            hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}.mlp.down_proj.weight"].T
        )
    return log_softmax(norm(hidden, "model.norm") @ weights["model.embed_tokens.weight"].T)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def reference_of(item: dict[str, Any], temperature: float) -> np.ndarray:
    """What the reference gives the item's generated tokens, tempered."""
    prompt, generated = item["prompt_token_ids"], item["generation_token_ids"]
    rows = reference_log_probs(prompt + generated)[len(prompt) - 1 : -1]
    return log_softmax(rows / temperature)[np.arange(len(generated)), generated]


def test_log_probs_are_those_of_the_tempered_distribution_in_a_plain_numpy_qwen3():
    params = {"input": "Use the tool: 31+45", "tools": [ADD], "return_token_ids": True}
    temperatures = (1.0, 1.5, 2.5)
    many = [{**params, "temperature": t, "seed": 5, "max_output_tokens": 30} for t in temperatures]
    for temperature, response in zip(temperatures, asked(*many), strict=True):
        item = response["output"][-1]
        expected = reference_of(item, temperature)
        assert np.allclose(item["generation_log_probs"], expected, atol=2e-4)
        assert len(expected) > 3


def test_temperature_0_takes_the_likeliest_token_and_gives_the_models_own_log_probs():
    response = ask({"input": LARGEST, "temperature": 0, "return_token_ids": True})
    item = response["output"][-1]
    prompt, generated = item["prompt_token_ids"], item["generation_token_ids"]
    rows = reference_log_probs(prompt + generated)[len(prompt) - 1 : -1]
    assert generated == rows.argmax(-1).tolist()
    assert np.allclose(item["generation_log_probs"], rows.max(-1), atol=2e-4)
    assert output_text(response) == RIGHT


def test_tokens_are_drawn_as_often_as_their_log_probs_say():
    params = {"input": LARGEST, "temperature": 3, "max_output_tokens": 1, "return_token_ids": True}
    seeded = [{**params, "seed": number} for number in range(800)]  # the same draws each time
    items = [response["output"][-1] for response in asked(*seeded)]
    drawn = Counter(item["generation_token_ids"][0] for item in items)
    expected = np.exp(log_softmax(reference_log_probs(items[0]["prompt_token_ids"])[-1] / 3))
    likely = np.flatnonzero(800 * expected >= 5)
    assert len(likely) > 1
    pairs = [(drawn[token_id], expected[token_id]) for token_id in likely]
    pairs.append((800 - sum(drawn[token_id] for token_id in likely), 1 - expected[likely].sum()))
    for count, probability in pairs:
        assert abs(count - 800 * probability) < 4 * math.sqrt(800 * probability * (1 - probability))


def test_top_k_and_top_p_cut_the_distribution_and_log_probs_are_of_what_is_left():
    use_model(LocalModel, lambda model: model.load())
    choose, Sampling = sibling("engine").choose, sibling("sampling").Sampling
    logits = np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05], dtype=np.float32))
    draws = random.Random(0)

    def possible(**cut):
        sampling = Sampling(temperature=1.0, max_tokens=1, **cut)
        found = dict(choose(logits, sampling, draws) for _ in range(500))
        return {token_id: round(math.exp(value), 3) for token_id, value in sorted(found.items())}

    assert possible() == {0: 0.5, 1: 0.2, 2: 0.15, 3: 0.1, 4: 0.05}
    assert possible(top_k=2) == {0: 0.714, 1: 0.286}
    assert possible(top_p=0.6) == {0: 0.714, 1: 0.286}
    assert possible(top_p=0.55) == {0: 0.714, 1: 0.286}
    assert possible(top_k=3, top_p=0.55) == {0: 1.0}, "top-p is of the mass that top-k leaves"
    assert possible(top_p=1e-9) == {0: 1.0}


def test_at_temperature_0_a_prompt_gives_the_same_tokens_alone_and_among_others():
    prompts = mixed_prompts(96)
    many = [
        {"input": text, "temperature": 0, "max_output_tokens": 40, "return_token_ids": True}
        for text in prompts
    ]

    async def one_by_one(model):
        return [await model.responses(params) for params in many]

    alone = use_model(LocalModel, one_by_one)
    together = asked(*reversed(many), num_threads=2)
    assert [tokens(one) for one in alone] == [tokens(one) for one in reversed(together)]


def test_answers_stay_the_same_when_kept_prompts_are_let_go(monkeypatch):
    many = [
        {"input": text, "seed": 3, "max_output_tokens": 9, "return_token_ids": True}
        for text in mixed_prompts(60) * 2
    ]
    kept = [tokens(response) for response in asked(*many)]
    monkeypatch.setattr(sibling("engine"), "MIN_CACHE_BYTES", 0)
    let_go = [tokens(response) for response in asked(*many, num_threads=2)]
    assert kept == let_go
    assert kept[:60] == kept[60:]


def test_a_seed_decides_the_tokens_whatever_else_is_in_flight():
    params = {"input": "hello there", "temperature": 2, "max_output_tokens": 20}
    params["return_token_ids"] = True
    seeded = [{**params, "seed": seed} for seed in range(8)]
    alone = [tokens(ask(one)) for one in seeded]
    together = asked(*seeded, *[params] * 20, num_threads=2)
    assert [tokens(one) for one in together[:8]] == alone
    assert len({tuple(one) for one in alone}) > 4
    assert len({tuple(tokens(one)) for one in together[8:]}) > 10


def test_the_shipped_model_is_mostly_right_on_what_it_was_trained_on_and_not_always():
    rng = random.Random(1)
    drawn = [rng.sample(range(10, 100), 4) for _ in range(48)]
    question = "Which number is largest? A) {} B) {} C) {} D) {}"
    right = ["ABCD"[numbers.index(max(numbers))] for numbers in drawn]
    for temperature, least, most in ((0, 0.65, 0.99), (1, 0.5, 0.9), (2, 0, 0.4)):
        many = [
            {
                "input": question.format(*numbers),
                "temperature": temperature,
                "seed": index,
                "max_output_tokens": 64,
            }
            for index, numbers in enumerate(drawn)
        ]
        answers = [output_text(response)[-1:] for response in asked(*many)]
        assert least <= np.mean([a == b for a, b in zip(answers, right, strict=True)]) <= most


def test_a_tool_is_called_and_its_output_becomes_the_answer():
    async def scenario(model):
        first = await model.responses({"input": "Use the tool: 17+25", **params})
        call = first["output"][0]
        assert (call["type"], call["name"]) == ("function_call", "add")
        assert json.loads(call["arguments"]) == {"a": 17, "b": 25}
        history = [
            {"role": "user", "content": "Use the tool: 17+25"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            *first["output"],
            function_call_output(call["call_id"], "42"),
        ]
        return first, await model.responses({"input": history, **params})

    params = {"tools": [ADD], "temperature": 0, "return_token_ids": True}
    first, second = use_model(LocalModel, scenario)
    assert output_text(second) == "Answer: 42"
    for response in (first, second):
        Response.model_validate(response)
    # the trainer's view: the second prompt begins with all of the first turn, token for token
    [sequence] = sequences([*first["output"], *second["output"]])
    assert [turn.generation for turn in sequence.turns] == [tokens(first), tokens(second)]


def test_the_prompt_is_the_one_that_the_model_was_trained_on():
    async def scenario(model):
        ids = (await model.responses({**params, "return_token_ids": True}))["output"][-1]
        return model.tokenizer._tokenizer.decode(ids["prompt_token_ids"], skip_special_tokens=False)

    params = {"instructions": "Be <brief> & \u00fcber.", "input": "hi", "tools": [ADD]}
    definition = {key: ADD[key] for key in ("name", "description", "parameters")}
    nested = json.dumps({"type": "function", "function": definition})
    assert use_model(LocalModel, scenario) == (
        "<|im_start|>system\nBe <brief> & \u00fcber.\n\n# Tools\n\n<tools>\n"
        + nested
        + "\n</tools><|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_developer_messages_and_parts_are_read_like_system_messages_and_strings():
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": LARGEST}]
    parts = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": LARGEST}]},
    ]
    many = [{"input": items, "return_token_ids": True} for items in (plain, parts)]
    many.append({"instructions": "Be brief.", "input": LARGEST, "return_token_ids": True})
    prompts = [response["output"][-1]["prompt_token_ids"] for response in asked(*many)]
    assert prompts[0] == prompts[1] == prompts[2]


def test_what_does_not_parse_as_a_call_stays_text():
    output_items = sibling("chat").output_items
    good = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    malformed = (
        "<tool_call>\n{not json\n</tool_call>",
        '<tool_call>\n{"name": "add", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n["add"]\n</tool_call>',
        '<tool_call>\n{"name": "add", "argu',
    )
    for text in malformed:
        items = output_items(text + good)
        assert [item["type"] for item in items][-1:] == ["function_call"] or "argu" in text
        assert output_text({"output": output_items(text)}) == text
    items = output_items(f"first {good} between {good}")
    kinds = [item["type"] for item in items]
    assert kinds == ["message", "function_call", "message", "function_call"]
    assert output_items("")[0]["content"][0]["text"] == ""


def test_running_into_max_output_tokens_is_an_incomplete_response():
    params = {"input": "Use the tool: 17+25", "tools": [ADD], "max_output_tokens": 5}
    response = ask({**params, "temperature": 0})
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 5
    Response.model_validate(response)


@pytest.mark.parametrize("context", [512, pytest.param(SHIPPED_CONTEXT, marks=pytest.mark.slow)])
def test_generation_ends_where_the_context_does_and_a_longer_prompt_yields_no_output(
    context, tmp_path
):
    checkpoint = shutil.copytree(CHECKPOINT, tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["max_position_embeddings"] == SHIPPED_CONTEXT
    config["max_position_embeddings"] = context
    (checkpoint / "config.json").write_text(json.dumps(config))

    async def scenario(model):
        around = (await model.responses({"input": "7"}))["usage"]["input_tokens"] - 1
        sizes = (context - 1, context, context + 800)
        asked = [{"input": "7" * (size - around), "temperature": 0} for size in sizes]
        return [await model.responses(params) for params in asked]

    last, *beyond = use_model(LocalModel, scenario, model_path=str(checkpoint))
    assert last["usage"] | {"input_tokens": context - 1, "output_tokens": 1} == last["usage"]
    assert last["output"]
    for response in beyond:
        assert (response["status"], response["output"]) == ("incomplete", [])
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == 0
        Response.model_validate(response)


def test_log_probs_of_the_text_come_with_the_text_when_included():
    params = {"input": "What is 17+25?", "temperature": 0}
    for wish in ({}, {"top_logprobs": 0}):
        response = ask({**params, **wish, "include": ["message.output_text.logprobs"]})
        part = response["output"][0]["content"][0]
        assert (
            "".join(entry["token"] for entry in part["logprobs"])
            == part["text"]
            == "7+5=12, 1+2+1=4. Answer: 42"
        )
        assert all(entry["logprob"] < 0 for entry in part["logprobs"])
        Response.model_validate(response)
    assert "logprobs" not in ask(params)["output"][0]["content"][0]


def test_token_ids_are_given_on_request_or_always_and_otherwise_not():
    assert "generation_token_ids" not in ask({"input": "hi"})["output"][-1]
    item = ask({"input": "hi"}, return_token_ids=True)["output"][-1]
    assert len(item["generation_token_ids"]) == len(item["generation_log_probs"])
    assert item["prompt_token_ids"][0] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": math.inf},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"max_output_tokens": 0},
        {"max_output_tokens": 2.5},
        {"seed": "x"},
        {"input": None},
        {"input": []},
        {"input": ["hi"]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "wizard", "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"input": [{"role": "user", "content": None}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": {}}]},
        {"tools": [{"type": "web_search"}]},
    ],
    ids=str,
)
def test_params_that_it_cannot_take_are_a_task_error(wrong):
    with pytest.raises(TaskError) as caught:
        ask({"input": "hi", **wrong})
    assert caught.value.status == 400
    assert caught.value.terminal


def test_nulls_in_the_params_mean_the_defaults():
    nulls = dict.fromkeys(("temperature", "top_p", "max_output_tokens", "seed", "tools"))
    assert ask({"input": "hi", **nulls})["status"] in ("completed", "incomplete")


def test_a_cancelled_request_leaves_the_others_alone():
    async def scenario(model):
        slow = {"input": "hello", "temperature": 50.0, "max_output_tokens": 2000, "seed": 0}
        doomed = [asyncio.create_task(model.responses(slow)) for _ in range(3)]
        kept = asyncio.create_task(model.responses({"input": LARGEST, "temperature": 0}))
        load = await model.load()
        while (load["running"], load["waiting"]) != (1, 3):
            await asyncio.sleep(0)
            load = await model.load()
        for task in doomed:
            task.cancel()
        results = await asyncio.gather(*doomed, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        response = await asyncio.wait_for(kept, HANG_S)
        load = await model.load()
        return output_text(response), load["running"], load["waiting"]

    assert use_model(LocalModel, scenario) == (RIGHT, 0, 0)


def test_stopping_fails_what_is_pending_and_joins_the_threads():
    async def scenario(model):
        slow = {"input": "hello", "temperature": 50.0, "max_output_tokens": 2000, "seed": 0}
        pending = [asyncio.create_task(model.responses(slow)) for _ in range(5)]
        await asyncio.sleep(0.02)
        await asyncio.wait_for(model.stop(), HANG_S)
        results = await asyncio.gather(*pending, model.responses(slow), return_exceptions=True)
        assert all(isinstance(result, ModelError) for result in results), results
        assert "stopping" in str(results[0])

    use_model(LocalModel, scenario)
    assert not [t for t in threading.enumerate() if t.name.startswith("local_model")]


def test_models_that_are_dropped_unstopped_do_not_abort_the_process():
    source = (
        "import asyncio\n"
        "from rollout_kit.serving import registry\n"
        "cls = registry.load('responses_api_models', 'local_model')\n"
        "async def run(is_stopped):\n"
        "    model = cls(cls.Config(num_threads=2), peers=None, name='m')\n"
        "    await model.start()\n"
        "    many = [model.responses({'input': f'{i}+1=', 'temperature': 2}) for i in range(10)]\n"
        "    await asyncio.gather(*many)\n"
        "    if is_stopped: await model.stop()\n"
        "for number in range(8): asyncio.run(run(number % 2))"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


def test_importing_the_server_imports_nothing_heavy():
    source = (
        "import sys; from rollout_kit.serving import registry;"
        "registry.load('responses_api_models', 'local_model');"
        "heavy = {'ctranslate2', 'tokenizers', 'numpy', 'jinja2', 'torch'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


def test_missing_packages_are_a_config_error_that_says_what_to_install():
    source = (
        "import asyncio, sys; sys.modules['ctranslate2'] = None\n"
        "from rollout_kit.serving import registry\n"
        "cls = registry.load('responses_api_models', 'local_model')\n"
        "asyncio.run(cls(cls.Config(), peers=None, name='m').start())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigError" in last
    assert "pip install 'rollout-kit[local]'" in last


def test_it_starts_where_the_cache_cannot_be_written(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert ask({"input": LARGEST, "temperature": 0})["status"] == "completed"


def test_the_cache_may_be_read_by_all_who_may_read_its_folder(monkeypatch, tmp_path):
    before = os.umask(0o022)
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert ask({"input": LARGEST, "temperature": 0})["status"] == "completed"
    finally:
        os.umask(before)
    [entry] = (tmp_path / "rollout_kit/local_model").iterdir()
    assert entry.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in entry.iterdir()} == {0o644}


def test_starts_at_the_same_time_share_one_conversion(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def scenario():
        models = [LocalModel(LocalModel.Config(), peers=None, name="m") for _ in range(4)]
        await asyncio.gather(*(model.start() for model in models))
        responses = [await m.responses({"input": LARGEST, "temperature": 0}) for m in models]
        await asyncio.gather(*(model.stop() for model in models))
        return {output_text(response) for response in responses}

    assert asyncio.run(scenario()) == {RIGHT}
    assert len(list((tmp_path / "rollout_kit" / "local_model").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", {"model_type": "llama"}, "model_type is not qwen3"),
        ("config.json", {"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": None}, "RoPE"),
        ("config.json", {"tie_word_embeddings": False}, "no tensor 'lm_head.weight'"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        ("chat_template.jinja", None, "no chat template"),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_a_config_error(tmp_path, name, content, complaint):
    for file in CHECKPOINT.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    elif isinstance(content, dict):
        config = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({**config, **content}))
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        ask({"input": "hi"}, model_path=str(tmp_path))


def test_a_relative_model_path_is_looked_up_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine").symlink_to(CHECKPOINT)
    monkeypatch.chdir(tmp_path)
    response = ask({"input": LARGEST, "model": "mine"}, model_path="mine", model_name="mine")
    assert response["model"] == "mine"
    with pytest.raises(ConfigError, match="no such folder"):
        ask({"input": "hi"}, model_path="absent")


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"stop": ["END"]}, "stop: this model cannot follow it"),
        ({"stop": "END"}, "stop: this model cannot follow it"),
        ({"logit_bias": {"5": 10}}, "logit_bias: this model cannot follow it"),
        ({"top_logprobs": 2}, "top_logprobs: this model cannot follow it"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "held to a 'json_schema'"),
        ({"text": {"format": {"type": "json_object"}}}, "held to a 'json_object'"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"previous_response_id": "resp_1"}, "previous_response_id: this model stores no"),
        ({"conversation": {"id": "conv_1"}}, "conversation: this model stores no responses"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(params, reason):
    with pytest.raises(TaskError, match=reason) as refused:
        ask({"input": LARGEST, **params})
    assert refused.value.status == 400


def test_params_that_change_nothing_are_taken():
    neutral = {"stop": [], "logit_bias": {}, "top_logprobs": 0, "frequency_penalty": 0.0}
    neutral |= {"presence_penalty": 0, "text": {"format": {"type": "text"}}, "user": "u"}
    assert ask({"input": LARGEST, **neutral, "reasoning": {"effort": None}})["output"]


def test_a_name_that_no_model_has_is_refused():
    with pytest.raises(ModelError, match="no model 'other'; there are: tiny") as refused:
        ask({"input": LARGEST, "model": "other"})
    assert refused.value.status == 404


def test_a_raw_prompt_is_continued_as_it_is():
    chat = ask({"input": "What is 3+4?", "temperature": 0, "return_token_ids": True})
    template = use_model(LocalModel, as_text_of(chat["output"][-1]["prompt_token_ids"]))
    raw = ask({"input": template, "raw_prompt": True, "temperature": 0, "return_token_ids": True})
    assert tokens(raw) == tokens(chat)
    assert raw["output"][-1]["prompt_token_ids"] == chat["output"][-1]["prompt_token_ids"]
    bare = ask({"input": "3+4=", "raw_prompt": True, "max_output_tokens": 4, "seed": 1})
    assert len(bare["output"]) == 1 and bare["usage"]["input_tokens"] < 5


def as_text_of(token_ids: list[int]) -> Any:
    """A scenario that returns the text of tokens, special ones included."""

    async def scenario(model):
        return "".join(map(model.tokenizer.token_text, token_ids))

    return scenario


def test_a_client_of_the_completions_gets_a_completion():
    async def scenario(model):
        body = {"model": "tiny", "prompt": "3+4=", "max_tokens": 4, "seed": 1, "logprobs": 1}
        told = await model.handle("/v1/completions", json.dumps(body).encode())
        with pytest.raises(TaskError, match="stream: "):
            asked = {**body, "stream": True}
            await model.handle("/v1/completions", json.dumps(asked).encode())
        return told

    told = use_model(LocalModel, scenario)
    direct = ask({"input": "3+4=", "raw_prompt": True, "max_output_tokens": 4, "seed": 1})
    assert told["choices"][0]["text"] == output_text(direct)
    assert told["usage"]["completion_tokens"] == direct["usage"]["output_tokens"]


def write_weights(path: Path, weights: dict[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, values in weights.items():
        raw = values.astype("<f4").tobytes()
        places = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": places}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_an_adapter_beside_the_checkpoint_gives_the_answers_of_the_merged_one(tmp_path):
    adapter, merged = write_adapter(tmp_path / "lora"), tmp_path / "merged"
    shutil.copytree(CHECKPOINT, merged)
    read = sibling("convert").read_safetensors
    weights, added = (
        read(CHECKPOINT / "model.safetensors"),
        read(adapter / "adapter_model.safetensors"),
    )
    for layer in range(4):
        module = MODULE.format(layer=layer)
        down, up = (added[f"{module}.lora_{side}.weight"] for side in "AB")
        weights[f"model.layers.{layer}.self_attn.q_proj.weight"] += 8 / 2 * up @ down
    write_weights(merged / "model.safetensors", weights)
    prompts = mixed_prompts(12)
    many = [{"input": text, "max_output_tokens": 24, "seed": 5} for text in prompts]
    tuned = [{**params, "model": "tuned"} for params in many]
    beside = asked(*tuned, *many, lora_modules={"tuned": str(adapter)}, return_token_ids=True)
    alone = asked(*many, model_path=str(merged), return_token_ids=True)
    assert [tokens(each) for each in beside[:12]] == [tokens(each) for each in alone]
    assert {each["model"] for each in beside[:12]} == {"tuned"}
    assert [tokens(each) for each in beside[12:]] == [
        tokens(each) for each in asked(*many, return_token_ids=True)
    ]
    assert [tokens(each) for each in beside[12:]] != [tokens(each) for each in alone]


def test_an_adapter_that_is_not_there_or_does_not_fit_is_named(tmp_path):
    adapters = {"tuned": str(write_adapter(tmp_path / "lora"))}
    with pytest.raises(ModelError, match="no model 'tunde'; there are: tiny, tuned") as refused:
        ask({"input": "What is 17+25?", "model": "tunde"}, lora_modules=adapters)
    assert refused.value.status == 404
    for breaks, complaint in (
        ({"shapes": shapes_of(size=64)}, "does not fit the checkpoint: it changes model.layers.0"),
        ({"use_dora": True}, "use_dora cannot be served here; try ng_merge_lora"),
        ({"peft_type": "IA3"}, "peft_type IA3 cannot"),
    ):
        wrong = write_adapter(tmp_path / "wrong", **breaks)
        with pytest.raises(ConfigError, match=complaint):
            ask({"input": "What is 17+25?"}, lora_modules={"tuned": str(wrong)})
    with pytest.raises(ConfigError, match=r"lora_modules\.tuned .*: no such folder"):
        ask({"input": "What is 17+25?"}, lora_modules={"tuned": str(tmp_path / "nowhere")})
    (tmp_path / "lora/adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"has no adapter_config\.json"):
        ask({"input": "What is 17+25?"}, lora_modules=adapters)
