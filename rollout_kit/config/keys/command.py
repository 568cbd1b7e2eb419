"""What the keys of all commands have in common."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Command(BaseModel):
    """Keys that every command takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    asks_policy: ClassVar[bool] = True
    """Whether it can do nothing without the policy model."""

    config_paths: list[str] = Field([], description="YAML files to merge, lowest first.")
    json_output: bool = Field(False, alias="json", description="Print JSON instead of text.")
