"""The keys that all commands have in common."""

from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class CommandKeys(BaseModel):
    """Base of all keys of commands."""

    # a process runs one command: pydantic builds the validators of that one only
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_path(cls, value: Any, info: ValidationInfo) -> Any:
        """ValueError for an empty path, which would be the working directory. A shell makes one of
        a variable that is not set."""
        if value == "" and info.field_name:
            annotation = cls.model_fields[info.field_name].annotation
            if annotation is Path or Path in get_args(annotation):
                raise ValueError("is empty; give a path")
        return value


class Command(CommandKeys):
    """Keys of every command."""

    asks_policy: ClassVar[bool] = True
    """Whether the command needs the policy model."""
    has_servers: ClassVar[bool] = True
    """Whether the configuration of servers is a part of the command's own."""

    config_paths: list[str] = Field([], description="YAML files to merge, lowest first.")
    json_output: bool = Field(False, alias="json", description="Print JSON instead of text.")
