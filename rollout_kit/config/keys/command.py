"""The keys that all commands have in common."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class CommandKeys(BaseModel):
    """Base of all keys of commands."""

    # a process runs one command: pydantic builds the validators of that one only
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)


class Command(CommandKeys):
    """Keys of every command."""

    asks_policy: ClassVar[bool] = True
    """Whether the command needs the policy model."""
    has_servers: ClassVar[bool] = True
    """Whether the configuration of servers is a part of the command's own."""

    config_paths: list[str] = Field([], description="YAML files to merge, lowest first.")
    json_output: bool = Field(False, alias="json", description="Print JSON instead of text.")
