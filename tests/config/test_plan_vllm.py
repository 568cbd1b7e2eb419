"""ng_plan_vllm: parameters, bytes and layouts, against published figures and vLLM's own."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from claims import assert_prints
from workplace import ROOT

from rollout_kit.authoring.plan_vllm import architecture, capacity, checkpoint, gpus, shown
from rollout_kit.authoring.plan_vllm.plan import plan
from rollout_kit.config.keys import InspectConfig, PlanVllmConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError

TINY = ROOT / "responses_api_models/local_model/checkpoint"
LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"


def planned(name, cards, **keys):
    return plan(PlanVllmConfig(model_name=str(name), gpus=cards, **keys))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        ("meta-llama/Llama-3.1-405B", 405_853_388_800),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-72B", 72_706_203_648),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
    ],
)
def test_parameters_are_those_that_were_published(name, number):
    assert checkpoint.find(name).num_params == number


@pytest.mark.parametrize(
    ("name", "tp", "bytes_each"),
    [
        (LLAMA_8B, 1, 131_072),
        (LLAMA_8B, 8, 16_384),
        (LLAMA_8B, 16, 16_384),  # 8 heads on 16 GPUs: each stands twice
        (LLAMA_70B, 1, 327_680),
        ("Qwen/Qwen2.5-7B", 1, 57_344),
        ("Qwen/Qwen3-30B-A3B", 1, 98_304),
        ("deepseek-ai/DeepSeek-V3", 1, 70_272),
        ("deepseek-ai/DeepSeek-V3", 8, 70_272),  # the latent is on every GPU
    ],
)
def test_bytes_of_a_token_in_the_kv_cache(name, tp, bytes_each):
    arch = architecture.read(checkpoint.find(name).config)
    assert capacity.compute_kv_bytes(arch, tp, 2) * arch.num_layers == bytes_each


def test_the_tiny_model_is_as_vllm_itself_reckons_it():
    found = checkpoint.find(str(TINY))
    arch = architecture.read(found.config)
    assert found.is_exact and found.num_params == 730_496
    # "CPU KV cache size: 524,288 tokens", with VLLM_CPU_KVCACHE_SPACE=1
    assert (1 << 30) // (capacity.compute_kv_bytes(arch, 1, 2) * arch.num_layers) == 524_288


def test_parameters_read_and_reckoned_agree():
    found = checkpoint.find(str(TINY))
    assert architecture.count_params(found.config) == found.num_params


@pytest.mark.parametrize(
    ("name", "cards", "tp", "replicas", "num_tokens"),
    [
        (LLAMA_8B, "80GB", 1, 1, 416_000),
        (LLAMA_70B, "4x80GB", 4, 1, 431_000),
        ("Qwen/Qwen3-30B-A3B", "1x80", 1, 1, 97_000),
        (LLAMA_8B, "4xH100", 1, 4, 455_000),
        (LLAMA_70B, "8x80GB", 4, 2, 431_000),
    ],
)
def test_the_layout_that_is_chosen(name, cards, tp, replicas, num_tokens):
    chosen = planned(name, cards).chosen
    assert (chosen.tensor_parallel_size, chosen.num_replicas) == (tp, replicas)
    assert chosen.num_tokens == pytest.approx(num_tokens, rel=0.01)


def test_the_documents_70b_on_one_card_is_refused_and_what_would_fit_is_named():
    made = planned(LLAMA_70B, "80GB")
    assert made.chosen is None
    text = "\n".join(shown.format_plan(made))
    assert "it does not fit: the weights alone are 141 GB" in text
    assert "4 × 80 GB in bfloat16" in text and "2 × 80 GB in fp8" in text
    assert "1 × 80 GB in int4" in text and "vllm_model" not in text


def test_weights_that_fit_and_leave_no_room_are_told_apart():
    text = "\n".join(shown.format_plan(planned(LLAMA_70B, "2x80GB")))
    assert "one sequence may have 8,192" in text and "max_model_len of at most 256" in text
    small = "\n".join(shown.format_plan(planned(TINY, "2GB")))
    assert "leave nothing for the KV cache" in small


def test_the_yaml_can_be_pasted(tmp_path):
    made = planned(LLAMA_8B, "2xH100", kv_cache_dtype="fp8", quantization="fp8")
    told = shown.format_plan(made)
    (tmp_path / "vllm.yaml").write_text("\n".join(told[told.index("vllm_model:") :]))
    assert yaml.safe_load((tmp_path / "vllm.yaml").read_text()) == shown.build_settings(made)
    config = load(["+config_paths=[vllm.yaml]"], InspectConfig, cwd=tmp_path)
    settings = config.instances["vllm_model"].settings
    assert settings["quantization"] == settings["kv_cache_dtype"] == "fp8"
    assert settings["num_replicas"] == 2


@pytest.mark.parametrize(
    ("given", "number", "memory"),
    [
        ("4xH100", 4, 81_559 << 20),
        ("h200", 1, 143_771 << 20),
        ("2x80GB", 2, 80 * 10**9),
        ("2 x 24 GiB", 2, 24 << 30),
        ("80", 1, None),
    ],
)
def test_gpus_are_read(given, number, memory):
    if memory is None:  # a number alone counts this machine's
        if shutil.which("nvidia-smi"):
            pytest.skip("this machine has some")
        with pytest.raises(ConfigError, match="this machine has none"):
            gpus.read(given)
        return
    found = gpus.read(given)
    assert (found.number, found.memory) == (number, memory)


@pytest.mark.parametrize("given", ["0xH100", "4xABC", "many", "x80", "4x"])
def test_what_is_no_gpu_is_refused(given):
    with pytest.raises(ConfigError, match="gpus: "):
        gpus.read(given)


def test_an_unknown_model_says_what_to_download():
    with pytest.raises(ConfigError) as caught:
        checkpoint.find("meta-llama/Llama-3.1-7B-Instruct")
    text = str(caught.value)
    assert "did you mean 'meta-llama/Llama-3.1-70B-Instruct'" in text or "8B" in text
    assert "hf download" in text and "config.json" in text


def write(folder, config, tensors=None, index=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if tensors is not None:
        text = json.dumps(tensors).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder


SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}


def test_a_quantized_checkpoint_takes_what_its_files_take(tmp_path):
    config = {**SMALL, "quantization_config": {"quant_method": "awq"}}
    tensors = {"a": {"dtype": "I32", "shape": [100, 10], "data_offsets": [0, 4000]}}
    made = planned(write(tmp_path / "m", config, tensors), "80GB")
    assert made.weight_bytes == 4000


def test_an_index_alone_tells_the_size(tmp_path):
    config = {**SMALL, "quantization_config": {"quant_method": "gptq"}}
    folder = write(tmp_path / "m", config, index={"metadata": {"total_size": 12_345}})
    assert planned(folder, "80GB").weight_bytes == 12_345


def test_layers_that_keep_a_window_take_no_more_than_that():
    arch = architecture.read(
        {"text_config": {**SMALL, "sliding_window": 512, "sliding_window_pattern": 6}}
    )
    assert (arch.num_layers, arch.num_window_layers) == (1, 5)
    assert capacity.compute_sequence_bytes(arch, 4096, 1) == 4096 + 5 * 528
    assert capacity.compute_sequence_bytes(arch, 100, 1) == 6 * 112


@pytest.mark.parametrize(
    ("keys", "kinds"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False}, (6, 0, 0)),
        ({"sliding_window": 4096}, (0, 6, 0)),
        ({"layer_types": ["linear_attention", "full_attention"] * 3}, (3, 0, 3)),
        ({"layer_types": ["sliding_attention", "full_attention"] * 3}, (3, 3, 0)),
    ],
)
def test_kinds_of_layers(keys, kinds):
    arch = architecture.read({**SMALL, **keys})
    assert (arch.num_layers, arch.num_window_layers, arch.num_state_layers) == kinds


def test_heads_decide_how_a_model_may_be_split():
    arch = architecture.read(checkpoint.find("Qwen/Qwen2.5-7B").config)  # 28 heads, 4 for keys
    assert capacity.list_tensor_parallel_sizes(arch, 8) == [1, 2, 4]
    assert planned("Qwen/Qwen2.5-7B", "3xH100").chosen.num_replicas == 3


@pytest.mark.parametrize(
    ("text", "why"), [("{", "not JSON"), ("{}", "'hidden_size': not a supported language model")]
)
def test_a_bad_config_json_is_named(tmp_path, text, why):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=why):
        planned(tmp_path, "80GB")


def test_weights_that_were_cut_off_are_named(tmp_path):
    folder = write(tmp_path / "m", SMALL, {})
    (folder / "model.safetensors").write_bytes(b"\xff" * 9)
    with pytest.raises(ConfigError, match="was cut off"):
        planned(folder, "80GB")


def test_the_document_shows_what_the_command_prints():
    command = "ng_plan_vllm +model_name=meta-llama/Llama-3.1-70B-Instruct +gpus=8xH100"
    assert command in (ROOT / "docs/planning-vllm.md").read_text()
    told = "\n".join(shown.format_plan(planned(LLAMA_70B, "8xH100")))
    assert_prints("docs/planning-vllm.md", "GPUs each", told)


def command(*words):
    return subprocess.run(
        [Path(sys.executable).parent / "ng_plan_vllm", *words], capture_output=True, text=True
    )


def test_the_command_tells_by_its_exit_status_whether_it_fits():
    good = command(f"+model_name={LLAMA_8B}", "+gpus=2xH100", "+json=true")
    assert good.returncode == 0
    told = json.loads(good.stdout)
    assert told["fits"] and told["settings"]["vllm_model"]["num_replicas"] == 2
    assert command(f"+model_name={LLAMA_70B}", "+gpus=80GB").returncode == 1
    wrong = command("+model_nam=x")
    assert wrong.returncode == 1 and "model_name" in wrong.stderr
