"""Datasets that agents list in YAML: NeMo Gym's keys, plus a mapping for other formats."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ...config.fields import problems, show_value
from ...config.instances import AGENTS, RESOURCES, Instance
from ...config.load import Config
from ...config.verification import verifier_of
from ...errors import ConfigError
from ...serving.nemo_gym.environment_servers import find_sources
from .mapping import Mapping, get_shape


class HuggingFace(BaseModel):
    """A dataset on Hugging Face, or one file of it."""

    model_config = ConfigDict(extra="forbid")
    repo_id: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    artifact_fpath: str | None = Field(None, description="A file of the repository.")
    parts: list[str] = Field(
        [], description="What {part} in the other keys is. Rows get it as their field part."
    )
    type: Literal["huggingface"] = "huggingface"


class Entry(BaseModel):
    """One dataset of an agent."""

    model_config = ConfigDict(extra="forbid")
    name: str
    type: Literal["example", "train", "validation", "benchmark"] = "example"
    jsonl_fpath: str | None = None
    num_repeats: int = Field(1, ge=1)
    license: str | None = None
    huggingface_identifier: HuggingFace | None = None
    gitlab_identifier: dict[str, Any] | None = None
    source: HuggingFace | dict[str, Any] | None = None
    mapping: Mapping | None = None
    prompt_config: str | None = None
    prepare_script: str | None = None
    prepare_dependencies: list[str] = Field([], description="What the script needs besides.")
    agent: str | None = Field(None, description="The agent that runs the rows.")
    taskset: str | None = Field(None, description="A name that environment_server_routes knows.")

    @field_validator("mapping", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return get_shape(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _comes_from_somewhere(self) -> "Entry":
        if not (self.jsonl_fpath or self.hub):
            raise ValueError("needs a jsonl_fpath, or a source: {type: huggingface, repo_id: …}")
        return self

    @property
    def hub(self) -> HuggingFace | None:
        found = self.source or self.huggingface_identifier
        return found if isinstance(found, HuggingFace) else None


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """An entry, the agent that lists it, and that agent's verifier."""

    entry: Entry
    agent: str
    verifier: Instance | None

    def __str__(self) -> str:
        return f"{self.agent}, dataset '{self.entry.name}'"


def list_datasets(config: Config) -> list[ListedDataset]:
    """Return all entries of all agents; raise ConfigError with one line per problem."""
    found: list[ListedDataset] = []
    wrong: list[str] = []
    for name, verifier, datasets in _servers_with_datasets(config):
        for given in datasets:
            try:
                found.append(ListedDataset(Entry.model_validate(given), name, verifier))
            except ValidationError as error:
                wrong += _describe_problems(f"{name}: datasets", given, error)
    if wrong:
        raise ConfigError("\n".join(wrong))
    return found


def _servers_with_datasets(
    config: Config,
) -> Iterator[tuple[str, Instance | None, list[dict[str, Any]]]]:
    """The agent that runs the rows, its verifier, and the datasets of each server."""
    for agent in config.of_type(AGENTS):
        yield agent.name, config.instances.get(verifier_of(agent) or ""), agent.datasets
    sources = find_sources(config.values)
    for server in config.of_type(RESOURCES):
        yield sources.get(server.name, [server.name])[0], server, server.datasets


def _describe_problems(where: str, given: dict[str, Any], error: ValidationError) -> Iterator[str]:
    for problem in problems(error, Entry):
        place = ".".join(problem.path)
        got = "" if problem.value is None or problem.is_unknown else f" (got {show_value(problem)})"
        named = f"{where}.{given.get('name', '?')}{'.' + place if place else ''}"
        yield f"{named}: {problem.reason}{got}"
