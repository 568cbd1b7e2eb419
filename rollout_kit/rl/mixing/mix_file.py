"""The file of a mix: sources of tasks with weights, and how their rows become one input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...collecting.data.rows import open_input
from ...config.fields import problems
from ...config.keys import CollectConfig
from ...errors import ConfigError
from ...store.arms.template import read_yaml
from ...store.files import OutputPaths, write_atomically
from ...store.input import number_lines
from ...store.tasks import parse_row
from ...types import JsonObject

SOURCE = "mix"
"""Field of a row: the name of its source."""


class MixSource(BaseModel):
    """One source of tasks."""

    model_config = ConfigDict(extra="forbid")

    input_jsonl_fpath: str
    weight: float = Field(1.0, gt=0)
    agent_name: str | None = None
    limit: int | None = Field(None, ge=1)
    responses_create_params: JsonObject = Field(default_factory=dict)
    reward_scale: float = 1.0


class Mix(BaseModel):
    """All sources by name. `when_down` says what becomes of the share of a source while its
    environment is down: the run waits for it, the others take it and it catches up later, or the
    others keep it."""

    model_config = ConfigDict(extra="forbid")

    sources: dict[str, MixSource] = Field(min_length=1)
    when_down: Literal["wait", "catch_up", "skip"] = "wait"

    def share_of(self, name: str) -> float:
        return self.sources[name].weight / sum(each.weight for each in self.sources.values())


def read_mix(path: Path) -> Mix:
    """The mix of a YAML file; ConfigError for one that cannot be used."""
    try:
        return Mix.model_validate(read_yaml(path, "mix"))
    except ValidationError as error:
        found = "; ".join(map(str, problems(error, Mix)))
        raise ConfigError(f"mix {path}: {found}") from None


def write_mix(command: CollectConfig, output: OutputPaths) -> str:
    """Write the rows of all sources into one file of the output, source after source, unless they
    are there; returns its path."""
    assert command.mix is not None
    if command.input_jsonl_fpath or command.dataset:
        raise ConfigError("mix: it names the inputs: leave out input_jsonl_fpath and dataset")
    mix, target = read_mix(command.mix), output.acks.with_name("mix.jsonl")
    raw = b"".join(orjson.dumps(row) + b"\n" for row in _read_rows(mix))
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != raw:
        write_atomically(target, raw)
    return str(target)


def _read_rows(mix: Mix) -> Iterator[JsonObject]:
    for name, source in mix.sources.items():
        with open_input(source.input_jsonl_fpath) as path:
            for at, (number, raw) in enumerate(number_lines(path)):
                if source.limit is not None and at >= source.limit:
                    break
                try:
                    yield _mark(name, source, parse_row(raw))
                except ValueError as error:
                    where = f"{source.input_jsonl_fpath}:{number}"
                    raise ConfigError(f"mix: {where}: {error}") from None


def _mark(name: str, source: MixSource, row: JsonObject) -> JsonObject:
    own = row.get("responses_create_params")
    if not isinstance(own, dict):
        raise ValueError("no responses_create_params object")
    found = {**row, "responses_create_params": {**source.responses_create_params, **own}}
    if source.agent_name is not None:
        found["agent_ref"] = {"type": "responses_api_agents", "name": source.agent_name}
    return {**found, SOURCE: name}
