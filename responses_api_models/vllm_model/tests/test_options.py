"""The block, its options as arguments, GPUs, and what vLLM says while it loads."""

import argparse
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from rollout_kit.config.keys import InspectConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry
from rollout_kit.serving.transport.peers import Peers

HERE = Path(__file__).parent.parent
VllmModel = registry.load("responses_api_models", "vllm_model")
PARTS = VllmModel.__module__.rpartition(".")[0]


def part(name):
    import importlib

    return importlib.import_module(f"{PARTS}.{name}")


def given(tmp_path: Path, text: str):
    (tmp_path / "vllm.yaml").write_text(text)
    return load(["+config_paths=[vllm.yaml]"], InspectConfig, cwd=tmp_path)


def words_of(**block):
    """The arguments that vLLM would be started with, `serve` and the model left out."""
    replicas = part("replicas")
    config = VllmModel.Config(model_name="org/m", vllm_executable="/bin/true", **block)
    [engine] = replicas.replicas(config, "policy_model", None)
    engine._port.close()
    assert engine.command[:3] == ["/bin/true", "serve", "org/m"]
    return [word for word in engine.command[3:] if word != "--disable-uvicorn-access-log"]


def test_the_documents_block_is_accepted():
    config = load([f"+config_paths=[{HERE / 'configs/my_vllm.yaml'}]"], InspectConfig)
    settings = config.instances["vllm_model"].settings
    assert settings["model_name"] == "meta-llama/Llama-3.1-70B-Instruct"
    assert settings["gpu_memory_utilization"] == 0.95


def test_a_misspelt_option_is_refused_with_the_right_one(tmp_path):
    with pytest.raises(ConfigError, match=r"'max_model_length' \(did you mean 'max_model_len'\?\)"):
        given(tmp_path, "vllm_model: {model_name: m, max_model_length: 8192}")


@pytest.fixture
def other_vllm(tmp_path, monkeypatch):
    """A vLLM of another release, whose Python tells other options."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = {"model": "value", "max_model_len": "value", "brand_new": "switch", "newer": "flag"}
    told = {"options": {name: {"type": "", "takes": takes} for name, takes in found.items()}}
    (tmp_path / "python3").write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho '{json.dumps(told)}'\n"
    )
    (tmp_path / "vllm").write_text(f"#!{tmp_path}/python3\n# -*- coding: utf-8 -*-\n")
    for name in ("python3", "vllm"):
        (tmp_path / name).chmod(0o755)
    return tmp_path / "vllm"


def started_with(executable, **block):
    config = VllmModel.Config(model_name="org/m", vllm_executable=str(executable), **block)
    [engine] = part("replicas").replicas(config, "policy_model", None)
    engine._port.close()
    return engine.command[3:]


def test_options_of_the_installed_vllm_are_taken_and_asked_for_once(other_vllm, tmp_path):
    assert started_with(other_vllm, brand_new=False) == ["--no-brand-new"]
    words = started_with(other_vllm, max_model_len=8, newer=True, extra_args=["--x"])
    assert words == ["--max-model-len", "8", "--x", "--newer"]
    assert (tmp_path / "asked").read_text() == "asked\n"
    with pytest.raises(ValidationError, match="brand_nw"):
        started_with(other_vllm, brand_nw=True)


def test_options_that_the_installed_vllm_has_not_are_refused_or_left_out(other_vllm):
    assert started_with(other_vllm, return_token_ids=True) == []  # no --enable-scale-out there
    assert started_with(other_vllm, rl=True) == []  # no --enable-sleep-mode either
    with pytest.raises(ConfigError, match="has no option 'max_num_seqs'"):
        started_with(other_vllm, max_num_seqs=4)


def test_a_vllm_that_is_no_python_script_is_taken_for_the_listed_one():
    assert part("installed").options("/bin/true") is None


def test_extra_args_are_not_checked(tmp_path):
    config = given(tmp_path, "vllm_model: {model: m, extra_args: [--plugin-flag, '3']}")
    assert config.instances["vllm_model"].settings["extra_args"] == ["--plugin-flag", "3"]


def test_a_model_is_required(tmp_path):
    with pytest.raises(ConfigError, match="model_name: is required"):
        given(tmp_path, "vllm_model: {dtype: auto}")


@pytest.mark.parametrize("value", ["localhost:8000", "[]", "[http://a/v1, b]"])
def test_what_is_no_url_is_refused(tmp_path, value):
    with pytest.raises(ConfigError, match="base_url"):
        given(tmp_path, f"vllm_model: {{model: m, base_url: {value}}}")


def test_settings_of_the_machine_are_no_generation_settings():
    config = VllmModel.Config(
        model_name="m",
        gpu_memory_utilization=0.9,
        dtype="auto",
        api_key="k",
        base_url="http://a/v1",
        chat_template_kwargs={"enable_thinking": False},
    )
    assert VllmModel(config, None, "policy_model").generation_settings() == {
        "model": "m",
        "dtype": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_the_documents_options_become_arguments_untouched():
    settings = load([f"+config_paths=[{HERE / 'configs/my_vllm.yaml'}]"], InspectConfig)
    block = settings.instances["vllm_model"].settings
    words = words_of(**{name: value for name, value in block.items() if name != "model_name"})
    assert set(zip(words[::2], words[1::2], strict=True)) == {
        ("--tensor-parallel-size", "1"),
        ("--gpu-memory-utilization", "0.95"),
        ("--max-model-len", "8192"),
        ("--max-num-batched-tokens", "8192"),
        ("--dtype", "auto"),
    }


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enforce_eager": False}, ["--no-enforce-eager"]),
        ({"enable_chunked_prefill": None}, []),
        ({"headless": False}, []),  # vLLM has no --no-headless
        ({"max_model_len": "8k"}, ["--max-model-len", "8k"]),
        ({"served_model_name": ["a", "b"]}, ["--served-model-name", "a", "b"]),
        ({"middleware": ["a.b", "c.d"]}, ["--middleware", "a.b", "--middleware", "c.d"]),
        ({"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ({"hf_overrides": {"x": 1}}, ["--hf-overrides", '{"x": 1}']),
        (
            {"lora_modules": {"sums": "/a", "b": {"path": "/b", "base_model_name": "m"}}},
            [
                "--enable-lora",
                "--lora-modules",
                "sums=/a",
                '{"name": "b", "path": "/b", "base_model_name": "m"}',
            ],
        ),
        (
            {"return_token_ids": True},
            ["--logprobs-mode", "processed_logprobs", "--enable-scale-out"],
        ),
        (
            {"return_token_ids": True, "logprobs_mode": "raw_logprobs", "enable_scale_out": False},
            ["--logprobs-mode", "raw_logprobs", "--no-enable-scale-out"],
        ),
        (
            {"rl": True, "return_token_ids": False},
            ["--enable-sleep-mode"],
        ),
        (
            {"rl": True, "return_token_ids": False, "enable_sleep_mode": False},
            ["--no-enable-sleep-mode"],
        ),
        ({"extra_args": ["--plugin-flag", "3"]}, ["--plugin-flag", "3"]),
        (
            {"extra_args": {"plugin_flag": True, "--a-b": [1, 2]}},
            ["--plugin-flag", "--a-b", "1", "2"],
        ),
        ({"api_key": "secret-key", "num_replicas": 1, "ready_timeout_s": 5}, []),
    ],
)
def test_values_become_words(block, words):
    assert words_of(**block) == words


GUIDE = HERE.parents[1] / "docs/from-rollouts-to-dpo.md"


@pytest.mark.parametrize(("num_replicas", "num_each"), [(8, 1), (4, 2), (1, 8)])
def test_the_block_of_the_guide_starts_copies_on_gpus_of_their_own(
    tmp_path, monkeypatch, num_replicas, num_each
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(8))))
    text = GUIDE.read_text().partition("```yaml eight_gpus.yaml\n")[2].partition("```")[0]
    text = text.replace("num_replicas: 8", f"num_replicas: {num_replicas}")
    text = text.replace("parallel_size: 1", f"parallel_size: {num_each}")
    (tmp_path / "eight_gpus.yaml").write_text(text)
    words = ["+config_paths=[eight_gpus.yaml]", "+policy_model_path=checkpoints/merged"]
    settings = load(words, InspectConfig, cwd=tmp_path).instances["policy_model"].settings
    config = VllmModel.Config.model_validate({**settings, "vllm_executable": "/bin/true"})
    engines = part("replicas").replicas(config, "policy_model", None)
    for engine in engines:
        engine._port.close()
        assert engine.command[:3] == ["/bin/true", "serve", "checkpoints/merged"]
        place = engine.command.index("--tensor-parallel-size")
        assert engine.command[place + 1] == str(num_each)
    gpus = [engine.env.get("CUDA_VISIBLE_DEVICES") for engine in engines]
    assert len(gpus) == num_replicas
    assert sorted(",".join(filter(None, gpus)).split(",")) == list("01234567")


def test_the_key_is_in_the_environment_and_in_no_argument():
    config = VllmModel.Config(model_name="m", vllm_executable="/bin/true", api_key="secret-key")
    [engine] = part("replicas").replicas(config, "policy_model", None)
    engine._port.close()
    assert engine.env["VLLM_API_KEY"] == "secret-key"
    assert "secret-key" not in " ".join(engine.command)


def test_vllm_does_not_see_this_toolkit_on_its_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent.parent}:/elsewhere")
    assert part("engine").environment({})["PYTHONPATH"] == "/elsewhere"


def test_a_missing_vllm_says_how_to_get_one():
    config = VllmModel.Config(model_name="m", vllm_executable="no-such-vllm")
    with pytest.raises(ConfigError, match="pip install vllm") as caught:
        part("replicas").replicas(config, "vllm_model", None)
    assert "+vllm_model.vllm_executable=" in str(caught.value)


@pytest.mark.parametrize(
    ("num_replicas", "num_each", "found", "shares"),
    [
        (1, 2, ["0", "1", "2", "3"], [None]),
        (2, 1, [], [None, None]),
        (2, 2, ["0", "1", "2", "3"], ["0,1", "2,3"]),
        (2, 1, ["5", "7", "9"], ["5", "7"]),
        (2, 1, ["GPU-a", "MIG-b"], ["GPU-a", "MIG-b"]),
    ],
)
def test_gpus_are_shared_out(num_replicas, num_each, found, shares):
    told = part("gpus").shares(num_replicas, num_each, found)
    assert [each.get("CUDA_VISIBLE_DEVICES") for each in told] == shares


def test_too_few_gpus_are_refused():
    with pytest.raises(ConfigError, match="need 4, and 2 are visible"):
        part("gpus").shares(2, 2, ["0", "1"])


def test_the_gpus_that_the_environment_names_are_those_that_count(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert part("gpus").visible() == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert part("gpus").visible() == []


def test_a_replica_s_gpus_are_the_product_of_its_parallel_sizes():
    config = VllmModel.Config(model_name="m", tensor_parallel_size=2, data_parallel_size=3)
    assert config.num_gpus == 6


OOM = """\
(EngineCore pid=29) ERROR 11-21 22:01:02 [core.py:1001] EngineCore failed to start.
(EngineCore pid=29) ERROR 11-21 22:01:02 [core.py:1001] Traceback (most recent call last):
(EngineCore pid=29) ERROR 11-21 22:01:02 [core.py:1001]   File "x.py", line 1, in f
(EngineCore pid=29) ERROR 11-21 22:01:02 [core.py:1001] torch.OutOfMemoryError: CUDA out of memory.
(APIServer pid=28) Traceback (most recent call last):
(APIServer pid=28)   File "y.py", line 2, in g
(APIServer pid=28) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}
"""


def test_the_root_cause_is_told_and_what_to_lower():
    words = part("words")
    lines = OOM.splitlines()
    assert words.reason(lines) == ["torch.OutOfMemoryError: CUDA out of memory."]
    advice = words.advice(lines)
    assert all(
        name in advice
        for name in ("gpu_memory_utilization", "max_model_len", "max_num_batched_tokens")
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("vllm serve: error: unrecognized arguments: --nope", True),
        ("api_server.py: error: argument --dtype: invalid choice: 'x'", True),
        ("OSError: org/m is not a local folder", True),
        ("(APIServer pid=1) INFO 11-21 21:48:50 [launcher.py:195] Route: /error: x", False),
    ],
)
def test_reasons_are_recognised(line, told):
    assert bool(part("words").reason([line])) is told


def test_what_pydantic_finds_wrong_is_told_with_its_next_line():
    lines = ["x.ValidationError: 1 validation error for ModelConfig", "  Value error, too long"]
    [told] = part("words").reason(lines)
    assert told.endswith("ModelConfig: Value error, too long")


def test_memory_is_not_blamed_for_other_failures():
    assert part("words").advice(["OSError: org/m is not a local folder"]) is None


def test_an_option_is_listed_without_the_names_of_its_opposite():
    class Paired(argparse.BooleanOptionalAction):
        """As vLLM 0.33 has it: --enable-x with --disable-x."""

        negative_option_strings = frozenset({"--no-enable-x", "--disable-x"})

    action = Paired(["--enable-x"], "enable_x")
    action.option_strings = [*action.option_strings, "--disable-x"]
    assert part("extract_options")._names(action) == ["--enable-x"]
    assert part("extract_options")._takes(action) == "switch"


def test_the_list_is_of_a_version_and_knows_what_has_a_no():
    listed = part("options").LISTED
    assert listed["vllm_version"] == "0.33.0"
    assert listed["options"]["enforce_eager"]["takes"] == "switch"
    assert listed["options"]["headless"]["takes"] == "flag"
    assert len(listed["options"]) > 300


@pytest.mark.parametrize(
    "given, names",
    [
        (None, []),
        ({"sums": "/a", "b": {"path": "/b"}}, ["sums", "b"]),
        (["sums=/a", {"name": "b", "path": "/b"}], ["sums", "b"]),
        ("sums=/a", ["sums"]),
    ],
)
def test_adapters_are_known_by_name_however_they_are_written(given, names):
    settings = {"model": "m", "lora_modules": given}
    server = VllmModel(VllmModel.Config.model_validate(settings), Peers({}), "policy_model")
    assert server.model_names() == ["m", *names]
