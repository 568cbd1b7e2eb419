"""Which file a command reads, which agent runs its rows, and which rollout it is about."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import ConfigError, suggest
from ..serving import registry
from ..serving.nemo_gym.environment_servers import find_environment_servers, list_datasets
from ..types import JsonObject
from .keys import CollectConfig, Command, ReverifyConfig, TasksConfig

CommandT = TypeVar("CommandT", bound=Command)

HUB = "hf://"
"""Begins the name of a dataset on Hugging Face."""


def choose_agent(agents: Sequence[str], values: JsonObject, command: TasksConfig) -> str | None:
    """The agent that every row runs with; None if the rows name their agents."""
    asked = command.agent_name
    if asked is None:
        listing = _datasets(values, None).get(command.dataset or "", {})
        candidates = list(listing) or agents
        return candidates[0] if len(candidates) == 1 else None
    agents = list(dict.fromkeys([*agents, *find_environment_servers(values)]))
    if asked not in agents:
        known = ", ".join(agents) or "none"
        raise ConfigError(
            f"agent_name: no agent is called '{asked}'{suggest(asked, agents)}; there are: {known}"
            + how_to_get(asked)
        )
    return asked


def with_dataset(command: CommandT, values: JsonObject) -> CommandT:
    """The command with what the entry of its dataset says: the prompt, and for a benchmark the
    repeats. Without an input, the only benchmark is the dataset."""
    if not isinstance(command, CollectConfig) or command.input_jsonl_fpath:
        return command
    wanted = command.dataset
    entries = [
        entry
        for entry in _entries(values, command.agent_name)
        if (entry.get("name") == wanted if wanted else entry.get("type") == "benchmark")
    ]
    if len(entries) != 1:
        return command
    [entry] = entries
    known: JsonObject = {"dataset": entry.get("name"), "prompt_config": entry.get("prompt_config")}
    if entry.get("type") == "benchmark":
        known["num_repeats"] = entry.get("num_repeats")
    given = command.model_fields_set
    return command.model_copy(update={k: v for k, v in known.items() if v and k not in given})


def _entries(values: JsonObject, agent: str | None) -> list[JsonObject]:
    """The datasets of an agent, or of all."""
    return [entry for _, entry in list_datasets(values, agent)]


def how_to_get(agent: str | None) -> str:
    """The YAML that has the agent, as a clause with the word to add; empty if none has it."""
    block = re.compile(rf"^{re.escape(str(agent))}:", re.MULTILINE)
    for root in registry.roots() if agent else ():
        of_that_name = [path for path in [root / f"configs/{agent}.yaml"] if path.exists()]
        for path in [
            *of_that_name,
            *sorted(root.glob("configs/*.yaml")),
            *sorted(root.glob("*/*/configs/*.yaml")),
        ]:
            if path in of_that_name or block.search(path.read_text("utf-8")):
                place = path.relative_to(root)
                return f"; '{agent}' is in a file: add  '+config_paths=[{place}]'"
    return ""


def task_path(command: TasksConfig, values: JsonObject, agent: str | None) -> str:
    """The input file, given as a path or as a dataset's name; ConfigError if there is none."""
    if command.input_jsonl_fpath is not None and command.dataset is not None:
        raise ConfigError("input_jsonl_fpath and dataset were both given: leave one of them out")
    if command.input_jsonl_fpath:
        return _path(command.input_jsonl_fpath)
    if command.dataset is None:
        raise ConfigError("input_jsonl_fpath is missing: add +input_jsonl_fpath=tasks.jsonl")
    listed = _datasets(values, agent)
    if command.dataset in _datasets(values, agent, as_tasks=False):
        raise ConfigError(
            f"dataset: '{command.dataset}' is not in the form of tasks: run ng_prepare_data, and"
            " give its file as input_jsonl_fpath"
        )
    if command.dataset not in listed:
        known = ", ".join(sorted(listed)) or "none"
        hint = suggest(command.dataset, listed)
        raise ConfigError(f"dataset: no '{command.dataset}'{hint}; the agent lists: {known}")
    if len(listed[command.dataset]) > 1:
        agents = " and ".join(listed[command.dataset])
        raise ConfigError(f"dataset: {agents} each list a '{command.dataset}': add +agent_name=…")
    [path] = listed[command.dataset].values()
    if (found := registry.resolve_path(path)) is None:
        named = [each for each in _entries(values, agent) if each.get("name") == command.dataset]
        if script := next(
            (each["prepare_script"] for each in named if "prepare_script" in each), ""
        ):
            folder = Path(script).parent.name
            raise ConfigError(
                f"dataset: {path} is not there yet: ng_prepare_data +benchmark={folder} writes it"
            )
    return str(found or path)


def stored_path(command: ReverifyConfig) -> str:
    """The file of stored rollouts; ConfigError if none is given."""
    if not command.input_jsonl_fpath:
        raise ConfigError("input_jsonl_fpath is missing: add +input_jsonl_fpath=rollouts.jsonl")
    return _path(command.input_jsonl_fpath)


def _path(given: str) -> str:
    if given == "-" or given.startswith(HUB):
        return given
    expanded = str(Path(given).expanduser())
    return str(registry.resolve_path(expanded) or expanded)


def _datasets(
    values: JsonObject, agent: str | None, *, as_tasks: bool = True
) -> dict[str, dict[str, str]]:
    """Dataset → agent → path, for one agent or for all: those with a file of tasks, or those that
    ng_prepare_data must turn into tasks first."""
    listed: dict[str, dict[str, str]] = {}
    for runs, dataset in list_datasets(values, agent):
        path, is_raw = dataset.get("jsonl_fpath"), bool(dataset.get("mapping"))
        if bool(path) and not is_raw if as_tasks else is_raw or not path:
            listed.setdefault(str(dataset.get("name")), {})[runs] = str(path)
    return listed


def parse_only(asked: str | None) -> tuple[str, int] | None:
    """Name and rollout index of `only=<task_id>:<rollout_index>`; the name may have an arm behind
    the task id."""
    if asked is None:
        return None
    task_id, _, index = asked.rpartition(":")
    if not task_id or not (index.isascii() and index.isdecimal()):
        raise ConfigError(
            f"only={asked}: expected <task_id>:<rollout_index>, or <task_id>:<arm>:<rollout_index>"
        )
    return task_id, int(index)
