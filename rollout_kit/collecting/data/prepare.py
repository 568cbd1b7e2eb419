"""Write one file of checked tasks per dataset type, and a summary."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from ...config.instances import AGENTS
from ...config.keys import PrepareDataConfig
from ...config.load import Config
from ...errors import ConfigError, OutputError
from ...launch.fleet import Upkeep
from ...launch.placement import equip
from ...serving import registry
from ...serving.nemo_gym.benchmarks import run_script
from ...serving.nemo_gym.checkout import find_interpreter
from ...store.arms.template import Prompt
from ...store.files import write_atomically, write_json
from ...types import JsonObject
from .check import Check
from .entries import ListedDataset, list_datasets
from .row_texts import RowTexts
from .rows import Row, open_rows
from .summary import Summary, count_shared_prompts

TYPES = {
    "train_preparation": ("train", "validation"),
    "example_validation": ("example",),
    None: ("train", "validation", "example", "benchmark"),
}
"""Mode → dataset types."""


def prepare(config: Config[PrepareDataConfig], tell: Callable[[str], None]) -> JsonObject:
    """Write `<output_dirpath>/<type>.jsonl` and `summary.json`; return the summary."""
    command = config.command
    wanted = TYPES[command.mode]
    equipped = equip(config, Upkeep(tell=tell), makes=command.install)
    config = replace(config, instances={each.name: each for each in equipped})
    found = [each for each in list_datasets(config) if each.entry.type in wanted]
    if not found:
        raise ConfigError(
            f"no agent lists a dataset of type {' or '.join(wanted)}: add one under its"
            " 'datasets', as {name: train, type: train, jsonl_fpath: …}"
        )
    if (folder := command.output_dirpath) is None:
        raise ConfigError("output_dirpath is missing: add +output_dirpath=data")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"output_dirpath={folder}: cannot create the folder: {error.strerror}"
        ) from None
    summaries: dict[str, Summary] = {}
    for kind in wanted:
        group = [each for each in found if each.entry.type == kind]
        if group:
            path = folder / f"{kind}.jsonl"
            tell(f"{path}: {', '.join(map(str, group))}")
            with closing(RowTexts()) as texts:
                file = TaskFile(command, summaries.setdefault(kind, Summary()), texts)
                write_atomically(path, file.write_lines(group))
    if "train" in summaries and "validation" in summaries:
        summary = summaries["validation"]
        if shared := count_shared_prompts(summary, summaries["train"]):
            summary.notes.append(f"{shared:,} of its prompts are also in train.jsonl")
    files = {str(folder / f"{kind}.jsonl"): each.to_json() for kind, each in summaries.items()}
    write_json(folder / "summary.json", files)
    return files


def prepare_benchmark(config: Config[PrepareDataConfig], say: Callable[[str], None]) -> None:
    """Run the scripts of the datasets of type benchmark."""
    command = config.command
    found = [each.entry for each in list_datasets(config) if each.entry.type == "benchmark"]
    scripts = {each.prepare_script: each.prepare_dependencies for each in found}
    scripts.pop(None, None)
    if not scripts:
        raise ConfigError(f"benchmark: {command.benchmark} lists no dataset with a prepare_script")
    for script, needs in scripts.items():
        path = registry.resolve_path(str(script))
        if path is None:
            raise ConfigError(f"benchmark: there is no {script}")
        run_script(
            path,
            config.values,
            given=command.nemo_gym_python or find_interpreter(command.nemo_gym),
            install=command.install,
            python=command.python_version,
            say=say,
            needs=needs,
        )


@dataclass(frozen=True, slots=True)
class TaskFile:
    """Produces the lines of one file and updates its summary."""

    command: PrepareDataConfig
    summary: Summary
    texts: RowTexts

    def write_lines(self, group: list[ListedDataset]) -> Iterator[bytes]:
        for each in group:
            with ExitStack() as stack:
                check = stack.enter_context(Check(each.verifier))
                yield from self._write_dataset(each, check)

    def _write_dataset(self, each: ListedDataset, check: Check) -> Iterator[bytes]:
        entry, summary = each.entry, self.summary
        where, found = open_rows(each, should_download=self.command.should_download)
        if entry.type in ("train", "validation") and entry.license is None:
            summary.notes.append(f"{each} has no license")
        if entry.prepare_script is not None:
            summary.notes.append(f"{each}: its prepare_script is not executed; run it first")
        if check.note:
            summary.notes.append(f"{each}: {check.note}")
        prompt = _load_prompt(each)
        for taken, row in enumerate(found):
            if self.command.limit and taken >= self.command.limit:
                return
            place = f"{where}:{row.number}"
            try:
                task = _build_task(each, row, prompt, self.texts)
                if problem := check.find_problem(task):
                    raise ValueError(problem)
                is_new = summary.is_new(task, place)
            except (TypeError, ValueError) as error:
                summary.leave_out(place, str(error))
                continue
            if not is_new and self.command.drop_duplicates:
                continue
            line = orjson.dumps({**task, "agent_ref": {"type": AGENTS, "name": each.agent}}) + b"\n"
            summary.add(task)
            yield line * entry.num_repeats


def _load_prompt(each: ListedDataset) -> Prompt | None:
    path = each.entry.prompt_config
    return None if path is None else Prompt.load(registry.resolve_path(path) or Path(path))


def _build_task(
    each: ListedDataset, row: Row, prompt: Prompt | None, texts: RowTexts
) -> JsonObject:
    """Build the task of a row; raise ValueError if that is impossible."""
    if row.content is None:
        raise ValueError(row.problem)
    mapping = each.entry.mapping
    task = mapping.build_task(row.content, texts) if mapping else row.content
    params = task.get("responses_create_params", {} if prompt else None)
    if not isinstance(params, dict):
        raise ValueError("no responses_create_params object (add a 'mapping' to build one)")
    if prompt is not None:
        params = prompt.apply(params, task)
    if not isinstance(params.get("input"), str | list):
        raise ValueError("responses_create_params has no input (a string or a list of items)")
    return {**task, "responses_create_params": params}
