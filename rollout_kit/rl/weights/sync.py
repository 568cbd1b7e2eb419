"""The keys of `weight_sync` on a model server."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...types import JsonObject

Mode = Literal["checkpoint_dir", "lora_dir", "external"]


class WeightSync(BaseModel):
    """Where a model server's weights come from while it runs."""

    model_config = ConfigDict(extra="forbid")

    mode: Mode = Field(
        "checkpoint_dir",
        description="checkpoint_dir: checkpoints in step_N/ of `path`; lora_dir: LoRA adapters"
        " there; external: the trainer updates the engine, whose version is only observed.",
    )
    path: str | None = Field(None, description="Folder in which the trainer writes step_N/.")
    poll_s: float = Field(1.0, gt=0, description="Pause between looks for a new version.")
    max_tries: int = Field(10, ge=1, description="Tries to load one step before it is refused.")

    @model_validator(mode="after")
    def _has_a_path(self) -> Self:
        if (self.path is None) != (self.mode == "external"):
            needs = "no path" if self.path else "the path of the folder with step_N/"
            raise ValueError(f"weight_sync with mode {self.mode} needs {needs}")
        return self

    @property
    def folder(self) -> Path:
        return Path(self.path or "").expanduser().absolute()

    def source(self) -> JsonObject:
        """What the settings' fingerprint holds of the weights: where they come from."""
        return {"mode": self.mode, "path": self.path}
