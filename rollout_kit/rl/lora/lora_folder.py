"""Reads checkpoint folders without torch: settings, and names and shapes of the tensors."""

import json
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ...errors import ConfigError
from ...serving.weights import Tensor, find_folder, find_in_hub, read_header
from ...types import JsonObject

TOKENIZER = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja", "chat_template.json"),
)
"""Files of a tokenizer; the first two say whether there is one."""

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A whole checkpoint: its settings, and the type and shape of each tensor."""

    path: Path
    config: JsonObject
    shapes: dict[str, Shape]
    dtype: str
    """As safetensors writes it: that of most tensors."""

    @property
    def num_values(self) -> int:
        return sum(map(prod, self.shapes.values()))


def open_model(name: str) -> ModelFolder:
    """The folder of a model, by path or by its name in the Hugging Face cache.

    ConfigError if there is none, or if a part of it is missing.
    """
    folder = find_folder(name) or find_in_hub(name)
    if folder is None:
        hint = f": hf download {name}" if name.count("/") == 1 and name[0] not in "./~" else ""
        raise ConfigError(f"base={name}: no such folder, and not in the Hugging Face cache{hint}")
    config = read_json(folder / "config.json")
    if config.get("quantization_config"):
        raise ConfigError(f"base={name} is quantized: merge into the model that it was made from")
    shapes: dict[str, Shape] = {}
    dtypes: list[str] = []
    for path in _list_weights(folder):
        for key, tensor in read_tensors(path).items():
            shapes[key] = tensor.shape
            dtypes.append(tensor.dtype)
    dtype = max(set(dtypes), key=dtypes.count, default="")
    if dtype not in BYTES:
        raise ConfigError(f"{folder}: weights of type {dtype or 'none'} cannot be merged into")
    return ModelFolder(folder, config, shapes, dtype)


def read_json(path: Path) -> JsonObject:
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError:
        raise ConfigError(f"{path.parent} has no {path.name}: it is not whole") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; ConfigError if it was cut off."""
    with suppress(ValueError):
        if (header := read_header(path)).is_whole:
            return header.tensors
    raise ConfigError(f"{path} is not a safetensors file, or was cut off")


def find_tokenizer(*folders: Path) -> Path:
    """The first of the folders that has a tokenizer."""
    for folder in folders:
        if any((folder / name).is_file() for name in TOKENIZER[:2]):
            return folder
    raise ConfigError(f"no tokenizer.json in {' or in '.join(map(str, folders))}")


def count_tokens(folder: Path) -> int | None:
    """One more than the largest token id; None where that is not in a tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    content = read_json(path)
    vocabulary = content.get("model", {}).get("vocab") or {}
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else range(len(vocabulary))
    return 1 + max([*ids, *(token["id"] for token in content.get("added_tokens") or [])])


def _list_weights(folder: Path) -> list[Path]:
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ConfigError(f"{folder} is not whole: {index.name} names {', '.join(missing)}")
        return [folder / name for name in names]
    if single.is_file():
        return [single]
    if list(folder.glob("*.bin")):
        raise ConfigError(
            f"{folder} has its weights as .bin files only, which may run code when they are read:"
            " load the model with transformers and save it again as safetensors"
        )
    raise ConfigError(f"{folder} has no model.safetensors: it is not whole")
