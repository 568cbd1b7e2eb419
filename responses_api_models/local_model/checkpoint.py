"""The files of a Hugging Face checkpoint folder, other than its weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_kit.errors import ConfigError
from rollout_kit.types import JsonObject


def find_folder(path: str, key: str) -> Path:
    """The folder that a key of the configuration names; ConfigError if there is none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{key} {path}: no such folder")
    return folder


def required(checkpoint: Path, name: str) -> Path:
    path = checkpoint / name
    if not path.is_file():
        what = "an adapter's" if name.startswith("adapter") else "a Qwen3 checkpoint"
        raise ConfigError(f"{checkpoint} has no {name}: it is not {what} folder")
    return path


def read_config(checkpoint: Path) -> JsonObject:
    return json.loads(required(checkpoint, "config.json").read_text("utf-8"))


def end_ids(checkpoint: Path, config: Mapping[str, Any]) -> list[int]:
    """The tokens that end a turn. generation_config.json lists all, config.json often only one."""
    ends = _optional(checkpoint, "generation_config.json").get(
        "eos_token_id", config["eos_token_id"]
    )
    return ends if isinstance(ends, list) else [ends]


def template_source(checkpoint: Path) -> str:
    """The chat template: a file of its own since transformers 4.50, before in the tokenizer's."""
    path = checkpoint / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    source = _optional(checkpoint, "tokenizer_config.json").get("chat_template")
    if not isinstance(source, str):
        raise ConfigError(f"model_path {checkpoint} has no chat template")
    return source


def _optional(checkpoint: Path, name: str) -> JsonObject:
    path = checkpoint / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}
