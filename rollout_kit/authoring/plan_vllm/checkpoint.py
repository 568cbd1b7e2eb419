"""Find a model's settings and the size of its weights, in a folder, the local Hugging Face cache or
`known.json`. Downloads nothing."""

import json
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path

from ...errors import ConfigError
from ...serving.weights import Tensor, hub_folder, read_header
from ...types import JsonObject
from .architecture import count_params

KNOWN = Path(__file__).with_name("known.json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    config: JsonObject
    source: str
    """Origin of the figures, for messages."""
    num_params: int
    stored_bytes: int
    """Size of the stored weights."""
    is_exact: bool
    """Whether the size was read from the weights instead of computed from the settings."""


def find(name: str) -> Checkpoint:
    """Find a model by name; raise ConfigError, with the files to download, if it is unknown."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return _read_folder(name, folder)
    if cached := _find_in_cache(name):
        return _read_folder(name, cached)
    known = json.loads(KNOWN.read_text("utf-8"))
    if name in known:
        config, number = known[name], count_params(known[name])
        return Checkpoint(
            name, config, "the built-in list of architectures", number, 2 * number, False
        )
    near = get_close_matches(name, known, 1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    what = "has no config.json" if folder.is_dir() else "is neither a folder nor a listed model"
    raise ConfigError(
        f"model_name: '{name}' {what}{hint}. Only its settings are needed, not the weights:\n"
        f"    hf download {name} --include 'config.json' --local-dir model\n"
        "and then +model_name=model"
    )


def _read_folder(name: str, folder: Path) -> Checkpoint:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'}: not JSON: {error}") from None
    tensors = [
        tensor for path in sorted(folder.glob("*.safetensors")) for tensor in _read_tensors(path)
    ]
    if _is_whole(folder) and tensors:
        number = sum(prod(each.shape) for each in tensors)
        stored = sum(each.end - each.start for each in tensors)
        return Checkpoint(name, config, f"the weights in {folder}", number, stored, True)
    number = count_params(config)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        stored = json.loads(index.read_text("utf-8")).get("metadata", {}).get("total_size")
        if stored:
            return Checkpoint(name, config, str(index), number, stored, True)
    return Checkpoint(name, config, f"{folder / 'config.json'}", number, 2 * number, False)


def _is_whole(folder: Path) -> bool:
    """Whether the folder has all files of the weights."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    named = set(json.loads(index.read_text("utf-8")).get("weight_map", {}).values())
    return all((folder / each).is_file() for each in named)


def _read_tensors(path: Path) -> list[Tensor]:
    try:
        return [*read_header(path).tensors.values()]
    except ValueError:
        raise ConfigError(f"{path} is not a safetensors file, or was cut off") from None


def _find_in_cache(name: str) -> Path | None:
    """Return the newest downloaded snapshot of a model on the Hub."""
    found = hub_folder(name).glob("snapshots/*/config.json")
    return max((each.parent for each in found), key=lambda f: f.stat().st_mtime, default=None)
