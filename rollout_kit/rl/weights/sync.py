"""The keys of `weight_sync` on a model server, and the places where steps are."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...errors import ConfigError
from ...types import JsonObject
from ..bucket import read_place
from .folder import StepFolder
from .step_bucket import StepBucket

Steps = StepFolder | StepBucket

Mode = Literal["checkpoint_dir", "lora_dir", "external"]


class WeightSync(BaseModel):
    """Where a model server's weights come from while it runs."""

    model_config = ConfigDict(extra="forbid")

    mode: Mode = Field(
        "checkpoint_dir",
        description="checkpoint_dir: checkpoints in step_N/ of `path`; lora_dir: LoRA adapters"
        " there; external: the trainer updates the engine, whose version is only observed.",
    )
    path: str | None = Field(
        None, description="Folder in which the trainer writes step_N/, or s3://bucket/path."
    )
    cache_dir: str | None = Field(
        None, description="With s3://: folder of this machine for copies of the steps."
    )
    poll_s: float = Field(1.0, gt=0, description="Pause between looks for a new version.")
    max_tries: int = Field(10, ge=1, description="Tries to load one step before it is refused.")

    @model_validator(mode="after")
    def _has_a_path(self) -> Self:
        if (self.path is None) != (self.mode == "external"):
            needs = "no path" if self.path else "the path of the folder with step_N/"
            raise ValueError(f"weight_sync with mode {self.mode} needs {needs}")
        try:
            is_remote = read_place(self.path or "", "weight_sync.path") is not None
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self.cache_dir and not is_remote:
            raise ValueError("weight_sync.cache_dir belongs to a path with s3://")
        return self

    def open(self) -> Steps:
        return open_steps(self.path or "", "weight_sync.path", self.cache_dir)

    def source(self) -> JsonObject:
        """What the settings' fingerprint holds of the weights: where they come from."""
        return {"mode": self.mode, "path": self.path}


def open_steps(place: str | Path, where: str, cache_dir: str | None = None) -> Steps:
    """The steps of a folder, or of `s3://bucket/path`. `where` names the setting in errors."""
    if url := read_place(place, where):
        return StepBucket(url, cache_dir)
    return StepFolder(Path(place).expanduser().absolute())
