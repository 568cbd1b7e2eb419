"""The settings' fingerprint knows a model's weights by content: other weights at the same path are
another policy, and copies elsewhere are the same."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import Echo

from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.collecting.agents import know_agent
from rollout_kit.config.keys import CollectConfig, InspectConfig
from rollout_kit.config.load import load
from rollout_kit.launch.placement import HttpLimits, placed
from rollout_kit.serving import registry, weights
from rollout_kit.serving.weights import digest_of, find_in_hub
from rollout_kit.store.manifest import fingerprint_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def save(path: Path, tensors: dict[str, bytes]) -> Path:
    """A checkpoint folder with one safetensors file."""
    path.mkdir(exist_ok=True)
    header, end = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [end, end + len(data)]}
        end += len(data)
    raw = json.dumps(header).encode()
    content = len(raw).to_bytes(8, "little") + raw + b"".join(tensors.values())
    (path / "model.safetensors").write_bytes(content)
    (path / "config.json").write_text("{}")
    return path


TENSORS = {"big": bytes(10 << 20), "small": bytes(range(256)), "scalar": b"\x01", "empty": b""}


def test_copies_agree_wherever_they_are(tmp_path: Path) -> None:
    model = save(tmp_path / "a", TENSORS)
    shutil.copytree(model, tmp_path / "b")
    (tmp_path / "b/README.md").write_text("a copy")
    assert digest_of([model]) == digest_of([tmp_path / "b"]) != ""


@pytest.mark.parametrize("name", ["big", "small", "scalar"])
def test_a_tensor_that_was_trained_changes_the_digest(tmp_path: Path, name: str) -> None:
    before = digest_of([save(tmp_path / "a", TENSORS)])
    trained = {**TENSORS, name: bytes(255 - byte for byte in TENSORS[name])}
    assert digest_of([save(tmp_path / "a", trained)]) != before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_what_is_beside_the_weights_counts_too(tmp_path: Path, name: str) -> None:
    before = digest_of([save(tmp_path / "a", TENSORS)])
    (tmp_path / "a" / name).write_text('{"other": 1}')
    assert digest_of([tmp_path / "a"]) != before


@pytest.mark.parametrize("size", [0, 100, 20 << 20])
def test_files_of_other_formats_are_sampled(tmp_path: Path, size: int) -> None:
    for name, byte in (("a", b"\0"), ("b", b"\1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.bin").write_bytes(byte * size)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/model.safetensors").write_bytes(b"\xff" * 64)  # damaged
    assert (digest_of([tmp_path / "a"]) == digest_of([tmp_path / "b"])) == (size == 0)
    assert digest_of([tmp_path / "c"])


def test_without_weights_there_is_no_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert digest_of([tmp_path]) == ""


def test_unchanged_files_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    sample = weights._sample
    monkeypatch.setattr(
        weights, "_sample", lambda path, size: read.append(path.name) or sample(path, size)
    )
    model = save(tmp_path / "a", TENSORS)
    first = digest_of([model])
    assert (digest_of([model]), len(read)) == (first, 2)
    os.utime(model / "model.safetensors", (1, 1))
    assert (digest_of([model]), read[2:]) == (first, ["model.safetensors"])


def test_a_cache_that_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert digest_of([save(tmp_path / "a", TENSORS)])


def test_a_snapshot_of_the_hub_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    own = tmp_path / "models--org--m"
    (own / "refs").mkdir(parents=True)
    (own / "refs/main").write_text("abc\n")
    assert find_in_hub("org/m") is None
    (own / "snapshots/abc").mkdir(parents=True)
    assert find_in_hub("org/m") == own / "snapshots/abc" == find_in_hub("org/m", "abc")
    assert find_in_hub("org/other") is None


def settings_of(model: Any) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        agent = registry.load("responses_api_agents", "simple_agent")
        wiring = {"resources_server": {"name": "echo"}, "model_server": {"name": "policy_model"}}
        servers = {"policy_model": model, "echo": making(Echo), "agent": making(agent, **wiring)}
        async with mount(servers) as peers:
            command = CollectConfig.model_validate({"input_jsonl_fpath": "x"})
            return (await know_agent(peers, "agent", {}, command)).settings[""]

    return asyncio.run(main())


def test_weights_that_are_replaced_at_the_same_path_are_other_settings(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    shipped = registry.find("responses_api_models", "local_model")
    assert shipped
    shutil.copytree(shipped / "checkpoint", tmp_path / "m")
    shutil.copytree(shipped / "checkpoint", tmp_path / "copy")
    local = registry.load("responses_api_models", "local_model")
    before = settings_of(making(local, model_path=str(tmp_path / "m")))
    copy = settings_of(making(local, model_path=str(tmp_path / "copy")))
    assert fingerprint_of(copy) == fingerprint_of(before)
    file = tmp_path / "m/model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(bytes(raw))
    after = settings_of(making(local, model_path=str(tmp_path / "m")))
    assert fingerprint_of(after) != fingerprint_of(before)
    assert {**after["model"], "weights": ""} == {**before["model"], "weights": ""}


@pytest.mark.parametrize("implementation", ["local_model", "vllm_model"])
def test_weights_are_known_without_starting_the_model(tmp_path: Path, implementation: str) -> None:
    """A dry run continues what the model has collected, and so does a replay."""
    pytest.importorskip("ctranslate2")
    model = save(tmp_path / "m", TENSORS)
    key = "model_path" if implementation == "local_model" else "model_name"
    (tmp_path / "model.yaml").write_text(
        f"m: {{responses_api_models: {{{implementation}: {{{key}: {model}}}}}}}"
    )

    async def weights_of() -> str:
        config = load([f"+config_paths=[{tmp_path}/model.yaml]"], InspectConfig)
        async with placed(config, default="local", limits=HttpLimits(), start=False) as idle:
            return (await idle.peers.describe("m"))["settings"]["weights"]

    before = asyncio.run(weights_of())
    assert before == digest_of([model])
    save(model, {"big": b"1"})
    assert asyncio.run(weights_of()) != before
    shutil.rmtree(model)
    with pytest.raises(KeyError):
        asyncio.run(weights_of())


def test_a_running_vllm_is_known_by_the_weights_that_are_here_too(tmp_path: Path) -> None:
    vllm = registry.load("responses_api_models", "vllm_model")
    model = save(tmp_path / "m", TENSORS)
    adapter = save(tmp_path / "adapter", {"lora": b"1"})
    urls = {"base_url": "http://127.0.0.1:1/v1", "model_name": str(model)}
    before = settings_of(making(vllm, **urls))
    assert "name" not in before["model"] and str(model) not in str(before)
    tuned = settings_of(making(vllm, **urls, lora_modules=[f"a={adapter}"]))
    save(adapter, {"lora": b"2"})
    again = settings_of(making(vllm, **urls, lora_modules=[f"a={adapter}"]))
    digests = [each["model"]["weights"] for each in (before, tuned, again)]
    assert len(set(digests)) == 3
    elsewhere = settings_of(making(vllm, **{**urls, "model_name": "org/m"}))
    assert elsewhere["model"]["name"] == "org/m" and "weights" not in elsewhere["model"]


def test_a_hosted_model_is_known_by_its_name() -> None:
    found = settings_of(lambda peers, name: ScriptedModel(str, peers, name))
    assert found["model"]["name"] and "weights" not in found["model"]
