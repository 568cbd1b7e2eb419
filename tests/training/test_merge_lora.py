"""ng_merge_lora refuses what cannot be merged, in one line, before torch is imported; with torch,
in the environment of `make trainers`, what it writes is base plus adapter.
"""

import json
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adapters import MODULE, TINY, shapes_of, write_adapter
from command import as_function

merge_lora = as_function("ng_merge_lora")

NEEDS_TORCH = pytest.mark.trainers


class Place:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self.adapter, self.output = (folder / each for each in ("base", "lora", "out"))
        self._capsys = capsys
        shutil.copytree(TINY, self.base)
        write_adapter(self.adapter)

    def merge(self, *words: str) -> tuple[int, str]:
        keys = [f"+{name}={getattr(self, name)}" for name in ("base", "adapter", "output")]
        with pytest.raises(SystemExit) as ended:
            merge_lora([*keys, *words])
        told = self._capsys.readouterr()
        return int(ended.value.code or 0), told.err + told.out

    def edit(self, name: str, **settings: Any) -> None:
        path = self.base / name if (self.base / name).exists() else self.adapter / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def shard(place: Place) -> None:
    index = {"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}
    (place.base / "model.safetensors").rename(place.base / "model-00001.safetensors")
    (place.base / "model.safetensors.index.json").write_text(json.dumps(index))


def two_ranks(place: Place) -> None:
    odd = {f"{MODULE.format(layer=0)}.lora_A.weight": (3, 128)}
    write_adapter(place.adapter, shapes=shapes_of() | odd)


def without_up(place: Place) -> None:
    found = shapes_of()
    del found[f"{MODULE.format(layer=3)}.lora_B.weight"]
    write_adapter(place.adapter, shapes=found)


def other_model(place: Place) -> None:
    """The same architecture with other weights, and an adapter that was trained on it."""
    other = place.base.with_name("other")
    shutil.copytree(place.base, other)
    weights = other / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-64:] = os.urandom(64)
    weights.write_bytes(content)
    place.edit("adapter_config.json", base_model_name_or_path=str(other))


def only_bin(place: Place) -> None:
    (place.base / "model.safetensors").rename(place.base / "pytorch_model.bin")


def long_tokenizer(place: Place) -> None:
    path = place.base / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append({"id": 900, "content": "<new>"})
    (place.adapter / "tokenizer.json").write_text(json.dumps(content))


BREAK: dict[str, tuple[Callable[[Place], Any], str]] = {
    "no base": (lambda p: shutil.rmtree(p.base), "no such folder"),
    "base without settings": (
        lambda p: (p.base / "config.json").unlink(),
        "base has no config.json: it is not whole",
    ),
    "base without weights": (
        lambda p: (p.base / "model.safetensors").unlink(),
        "base has no model.safetensors: it is not whole",
    ),
    "base cut off": (
        lambda p: cut(p.base / "model.safetensors"),
        "base/model.safetensors is not a safetensors file, or was cut off",
    ),
    "a shard is missing": (shard, "names model-00002.safetensors"),
    "only .bin": (only_bin, "as .bin files only"),
    "quantized": (
        lambda p: p.edit("config.json", quantization_config={"bits": 4}),
        "is quantized",
    ),
    "no adapter": (lambda p: shutil.rmtree(p.adapter), "lora: no such folder"),
    "adapter without settings": (
        lambda p: (p.adapter / "adapter_config.json").unlink(),
        "lora has no adapter_config.json: it is not whole",
    ),
    "adapter without weights": (
        lambda p: (p.adapter / "adapter_model.safetensors").unlink(),
        "lora has no adapter_model.safetensors: it is not whole",
    ),
    "adapter cut off": (
        lambda p: cut(p.adapter / "adapter_model.safetensors"),
        "lora/adapter_model.safetensors is not a safetensors file, or was cut off",
    ),
    "settings of the adapter are no JSON": (
        lambda p: (p.adapter / "adapter_config.json").write_text("{"),
        "adapter_config.json: not JSON",
    ),
    "no LoRA": (lambda p: p.edit("adapter_config.json", peft_type="IA3"), "peft_type is IA3"),
    "half a pair": (without_up, "has .lora_A without .lora_B"),
    "two ranks": (two_ranks, "the two matrices of model.layers.0.self_attn.q_proj do not fit"),
    "a larger model's adapter": (
        lambda p: write_adapter(p.adapter, shapes=shapes_of(size=256)),
        "q_proj.weight of shape 256×256, and the base's is 128×128",
    ),
    "a deeper model's adapter": (
        lambda p: write_adapter(p.adapter, shapes=shapes_of(layers=5)),
        "changes model.layers.4.self_attn.q_proj.weight, which the base does not have",
    ),
    "another base": (other_model, "was trained on"),
    "more tokens than embeddings": (long_tokenizer, "has 901 tokens"),
    "no tokenizer": (lambda p: (p.base / "tokenizer.json").unlink(), "no tokenizer.json in"),
    "the output is something else": (lambda p: p.output.mkdir(), "exists and is not this merge"),
}


@pytest.mark.parametrize("name", BREAK)
def test_what_cannot_be_merged_is_refused_in_one_line(name: str, place: Place) -> None:
    breaks, reason = BREAK[name]
    breaks(place)
    status, said = place.merge()
    assert status == 1 and reason in said, said
    assert said.count("\n") == 1 and said.startswith("error: "), said
    assert not list(place.base.parent.glob(".*")) and "torch" not in said


def test_a_full_disk_is_refused_before_anything_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 5, 5))
    status, said = place.merge()
    assert status == 1 and "needs 0.1 GB, and its disk has 0.0 GB left" in said
    assert not place.output.exists()


@pytest.mark.skipif("trainers" in sys.prefix, reason="torch is here")
def test_without_torch_it_says_what_to_install(place: Place) -> None:
    status, said = place.merge()
    assert status == 1 and "ng_merge_lora needs torch" in said and "rollout-kit[lora]" in said
    assert not place.output.exists()


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "largest"), [("float32", 1e-4), ("auto", 0.1)])
def test_what_is_written_is_base_plus_adapter(place: Place, dtype: str, largest: float) -> None:
    status, said = place.merge(f"+dtype={dtype}", "+json=true")
    assert status == 0, said
    manifest = json.loads(said.splitlines()[-1])
    difference = manifest["difference"]
    assert difference["merged"] < largest < difference["adapter"]
    stored = json.loads((place.output / "merge_manifest.json").read_text())
    assert {**stored, "output": str(place.output)} == manifest
    assert stored["versions"].keys() == {"rollout_kit", "torch", "transformers", "peft"}
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (place.output / name).read_bytes() == (place.base / name).read_bytes()
    shared = place.output.stat().st_mode & 0o666
    assert {path.stat().st_mode & 0o777 for path in place.output.iterdir()} == {shared}
    status, said = place.merge(f"+dtype={dtype}")
    assert status == 0 and "is this merge already" in said
    cut(place.output / "model.safetensors")
    status, said = place.merge(f"+dtype={dtype}")
    assert status == 1 and "is not this merge" in said


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore")
def test_a_head_dim_of_null_is_filled_and_keys_of_a_newer_peft_are_left_out(place: Place) -> None:
    place.edit("config.json", head_dim=None)
    place.edit("adapter_config.json", invented_key=None)
    status, said = place.merge("+dtype=float32")
    assert status == 0, said
    config = json.loads((place.output / "config.json").read_text())
    base = json.loads((place.base / "config.json").read_text())
    key = "dtype" if "dtype" in base else "torch_dtype"
    assert config == {**base, "head_dim": 32, key: "float32"}
    shutil.rmtree(place.output)
    place.edit("adapter_config.json", invented_key=3)
    status, said = place.merge()
    assert status == 1 and "invented_key, which PEFT" in said


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore")
def test_a_disk_that_fills_up_leaves_nothing_and_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")

    def fail(self: Any, folder: Path, **keys: Any) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", fail)
    status, said = place.merge()
    assert status == 1 and "No space left on device" in said.splitlines()[-1]
    assert sorted(path.name for path in place.base.parent.iterdir()) == ["base", "lora"]


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore")
def test_a_merge_that_went_wrong_is_not_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    monkeypatch.setattr(
        peft.PeftModel, "merge_and_unload", lambda self, **keys: self.unload(), raising=False
    )
    status, said = place.merge("+dtype=float32")
    assert status == 1 and "log-probs are off by" in said
    assert not place.output.exists()
