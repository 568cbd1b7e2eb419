"""A LoRA adapter's folder, and whether it fits a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...serving.weights import digest_of, find_folder, find_in_hub
from ...types import JsonObject
from .lora_folder import ModelFolder, Shape, read_json, read_tensors

PREFIX = "base_model.model."
WEIGHTS = "adapter_model.safetensors"

DOWN, UP = ".lora_A", ".lora_B"
EMBEDDING_DOWN, EMBEDDING_UP = ".lora_embedding_A", ".lora_embedding_B"


@dataclass(frozen=True, slots=True)
class Adapter:
    path: Path
    config: JsonObject
    shapes: dict[str, Shape]

    @property
    def base_name(self) -> str:
        return str(self.config.get("base_model_name_or_path") or "")

    def check_fit(self, base: ModelFolder) -> None:
        """ConfigError naming the first tensor that does not fit the base."""
        for name, shape in self.shapes.items():
            if name.endswith((UP, EMBEDDING_UP)):
                continue
            changed, wanted = self._find_changed(name, shape)
            found = base.shapes.get(changed)
            if found is None and changed == "lm_head.weight":  # tied: only the embedding is stored
                found = base.shapes.get("model.embed_tokens.weight")
            if found is None:
                raise ConfigError(
                    f"{self.path} does not fit {base.path}: it changes {changed}, which the base"
                    " does not have"
                )
            if wanted and found != wanted:
                raise ConfigError(
                    f"{self.path} does not fit {base.path}: it changes {changed} of shape"
                    f" {_times(wanted)}, and the base's is {_times(found)}"
                )

    def _find_changed(self, name: str, shape: Shape) -> tuple[str, Shape | None]:
        """The base's tensor that a tensor of the adapter changes, and the shape that fits."""
        for down, up in ((DOWN, UP), (EMBEDDING_DOWN, EMBEDDING_UP)):
            if name.endswith(down):
                module = name.removesuffix(down)
                other = self.shapes.get(module + up)
                if other is None:
                    raise ConfigError(f"{self.path} is not whole: {module} has {down} without {up}")
                if len(shape) != 2 or len(other) != 2 or other[1] != shape[0]:
                    raise ConfigError(f"{self.path}: the two matrices of {module} do not fit")
                is_turned = bool(self.config.get("fan_in_fan_out")) != (down == EMBEDDING_DOWN)
                wanted = (shape[1], other[0]) if is_turned else (other[0], shape[1])
                return f"{module}.weight", wanted
        if name.endswith(".lora_magnitude_vector"):
            return name.replace(".lora_magnitude_vector", ".weight"), None
        return name, shape


def open_adapter(folder: Path) -> Adapter:
    """Read an adapter; ConfigError if it is no LoRA, or not whole."""
    if not folder.is_dir():
        raise ConfigError(f"adapter={folder}: no such folder")
    config = read_json(folder / "adapter_config.json")
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ConfigError(f"{folder}: peft_type is {kind}; only LORA can be merged")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ConfigError(f"{folder} has no {WEIGHTS}: it is not whole")
    shapes = {_plain(name): tensor.shape for name, tensor in read_tensors(weights).items()}
    if not shapes:
        raise ConfigError(f"{weights} holds no tensors")
    return Adapter(folder, config, shapes)


def check_base(adapter: Adapter, base: ModelFolder) -> str:
    """A warning if the adapter names another base that is not here; ConfigError if it is here."""
    name = adapter.base_name
    if not name:
        return ""
    recorded = find_folder(name) or find_in_hub(name, adapter.config.get("revision"))
    if recorded is not None:
        if digest_of([recorded]) not in ("", digest_of([base.path])):
            raise ConfigError(
                f"{adapter.path} was trained on {recorded}, whose weights are not those of"
                f" {base.path}: give +base={recorded}, or +any_base=true"
            )
        return ""
    if Path(name).name in base.path.as_posix():
        return ""
    return f"the adapter was trained on {name}, which is not here to compare with {base.path}"


def known_settings(config: JsonObject, known: set[str], peft_version: str) -> JsonObject:
    """The settings that this PEFT knows; ConfigError if another one is in use."""
    unknown = {key: value for key, value in config.items() if key not in known}
    if used := sorted(key for key, value in unknown.items() if value not in (None, False, [], {})):
        raise ConfigError(
            f"adapter_config.json has {', '.join(used)}, which PEFT {peft_version} does not know:"
            " it was written by a newer one; install that"
        )
    return {key: value for key, value in config.items() if key in known}


def _plain(name: str) -> str:
    """`model.layers.0.self_attn.q_proj.lora_A` of the name in the file."""
    name = name.removeprefix(PREFIX)
    is_lora = any(part in name for part in (DOWN, UP, ".lora_magnitude_vector"))
    return name.removesuffix(".weight") if is_lora else name


def _times(shape: Any) -> str:
    return "×".join(map(str, shape))
