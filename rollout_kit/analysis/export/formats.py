"""The formats by name: what each makes a row of, how it is written, and what goes beside it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from ...errors import ConfigError, suggest
from ...store.files import write_atomically, write_json
from ...types import JsonObject, Rollout
from . import llamafactory, preferences, trainers
from .conversation import Conversation
from .eval_log import EvalLog
from .preferences import Pair
from .row_files import RowFile
from .trainers import Context

Companion = Callable[[Mapping[Path, Sequence[str]]], Path]
"""Writes the file that a trainer needs beside the data; given the columns of each file of rows."""

PARQUET, EVAL, FOLDER = ".parquet", ".eval", ""

OF_AXOLOTL = re.compile(
    rb"(rl|(test_)?datasets|  - path|    (ds_type|split|type|field_\w+|roles_to_train)):"
)
"""The start of a line that `write_axolotl_yaml` writes."""


@dataclass(frozen=True, slots=True)
class Format:
    """One of the functions `of_…` is set: it says what a row is made of."""

    about: str
    of_rollout: Callable[[Conversation, Context], JsonObject] | None = None
    of_task: Callable[[Conversation, Context], JsonObject] | None = None
    """One row per task: the prompt, not the rollouts."""
    of_line: Callable[[Rollout, Context], Iterator[JsonObject]] | None = None
    """Any number of rows of one rollout, from more than its messages."""
    of_pair: Callable[[Pair], JsonObject] | None = None
    of_group: bool = False
    suffix: str = ".jsonl"
    """Ending of the name of its output, empty for a folder."""
    is_bare: bool = False
    """Without the columns that identify the rollout."""
    companion: Companion | None = None
    label: str | None = None
    """Column that says whether a rollout is right."""
    takes_tools: bool = True
    """Whether its rows have a place for the tools that the model was offered."""
    takes_text: bool = False
    """Whether prompts and completions may be plain texts, which get no chat template."""
    takes_images: bool = False
    """Whether a message may have images, in its `parts`."""

    @property
    def is_parquet(self) -> bool:
        return self.suffix == PARQUET

    @property
    def is_folder(self) -> bool:
        return self.suffix == FOLDER

    def open_file(self, path: Path) -> RowFile:
        return EvalLog(path) if self.suffix == EVAL else RowFile(path, is_parquet=self.is_parquet)


def write_dataset_info(files: Mapping[Path, Sequence[str]]) -> Path:
    """LLaMA-Factory's list of datasets; entries of other files stay."""
    beside = next(iter(files)).with_name("dataset_info.json")
    try:
        known = orjson.loads(beside.read_bytes())
    except FileNotFoundError:
        known = {}
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{beside}: not JSON: {error}; move it away") from None
    if not isinstance(known, dict):
        raise ConfigError(f"{beside}: not a JSON object; move it away")
    for file, columns in files.items():
        known[file.stem] = llamafactory.dataset_entry(file.name, columns)
    write_json(beside, known)
    return beside


def write_axolotl_yaml(files: Mapping[Path, Sequence[str]]) -> Path:
    """The part of Axolotl's configuration that names the data."""
    path, columns = next(iter(files.items()))
    beside, is_ranked = path.with_suffix(".yaml"), "chosen" in columns
    entry = ["    ds_type: json", "    split: train"]
    if is_ranked:
        fields = ("messages", "chosen", "rejected")
        entry += ["    type: chat_template.default"]
        entry += [f"    field_{name}: {name}" for name in fields]
    else:
        entry += ["    type: chat_template", "    field_messages: messages"]
        entry += ["    field_tools: tools", "    roles_to_train: [assistant]"]
    lines = ["rl: dpo"] if is_ranked else []
    for name, file in zip(("datasets", "test_datasets"), files, strict=False):
        lines += [f"{name}:", f"  - path: {orjson.dumps(str(file)).decode()}", *entry]
    if beside.exists() and not all(map(OF_AXOLOTL.match, beside.read_bytes().splitlines())):
        raise ConfigError(
            f"{beside} has more than the settings that would replace it: move it away, or choose"
            " another output_fpath"
        )
    write_atomically(beside, "".join(f"{line}\n" for line in lines).encode())
    return beside


FORMATS: Mapping[str, Format] = {
    "trl_sft": Format(
        "TRL SFTTrainer: messages, tools", of_rollout=trainers.trl_sft, takes_text=True
    ),
    "trl_prompt_completion": Format(
        "TRL SFTTrainer: prompt, completion, tools",
        of_rollout=trainers.trl_prompt_completion,
        takes_text=True,
    ),
    "trl_kto": Format(
        "TRL KTOTrainer: prompt, completion, label",
        of_rollout=trainers.trl_kto,
        label="label",
        takes_tools=False,
        takes_text=True,
    ),
    "trl_grpo": Format(
        "TRL GRPOTrainer: prompt and the row's fields", of_task=trainers.trl_grpo, takes_text=True
    ),
    "trl_rollout": Format(
        "TRL async GRPO: token ids, mask, log-probs, advantage", of_line=trainers.trl_rollout
    ),
    "trl_dpo": Format(
        "TRL DPOTrainer: prompt, chosen, rejected", of_pair=preferences.trl_dpo, takes_text=True
    ),
    "trl_reward": Format(
        "TRL RewardTrainer: chosen, rejected", of_pair=preferences.trl_reward, takes_text=True
    ),
    "openrlhf_sft": Format(
        "OpenRLHF SFT: input, output",
        of_rollout=trainers.openrlhf_sft,
        takes_tools=False,
        takes_text=True,
    ),
    "openrlhf_dpo": Format(
        "OpenRLHF DPO and reward model: prompt, chosen, rejected",
        of_pair=preferences.openrlhf_dpo,
        takes_tools=False,
        takes_text=True,
    ),
    "openrlhf_prompts": Format(
        "OpenRLHF PPO: input, label, datasource",
        of_task=trainers.openrlhf_prompts,
        takes_tools=False,
        takes_text=True,
    ),
    "verl_rl": Format(
        "verl RL: data_source, prompt, reward_model, …", of_task=trainers.verl_rl, suffix=PARQUET
    ),
    "verl_sft": Format(
        "verl multi-turn SFT: messages, tools", of_rollout=trainers.verl_sft, suffix=PARQUET
    ),
    "skyrl_rl": Format(
        "SkyRL: data_source, prompt, env_class, reward_spec, …",
        of_task=trainers.skyrl_rl,
        suffix=PARQUET,
    ),
    "slime": Format(
        "slime: input, label, metadata, tools", of_task=trainers.slime, takes_text=True
    ),
    "llamafactory_sft": Format(
        "LLaMA-Factory SFT, ShareGPT form, with dataset_info.json",
        of_rollout=llamafactory.llamafactory_sft,
        companion=write_dataset_info,
    ),
    "llamafactory_kto": Format(
        "LLaMA-Factory KTO: the same with kto_tag",
        of_rollout=llamafactory.llamafactory_kto,
        label="kto_tag",
        companion=write_dataset_info,
    ),
    "llamafactory_dpo": Format(
        "LLaMA-Factory DPO: the same with chosen, rejected",
        of_pair=llamafactory.llamafactory_dpo,
        companion=write_dataset_info,
    ),
    "axolotl_sft": Format(
        "Axolotl SFT, chat_template, with its YAML",
        of_rollout=trainers.axolotl_sft,
        companion=write_axolotl_yaml,
    ),
    "axolotl_dpo": Format(
        "Axolotl DPO, chat_template.default, with its YAML",
        of_pair=preferences.axolotl_dpo,
        takes_tools=False,
        companion=write_axolotl_yaml,
    ),
    "nemo_rl_pref": Format(
        "NeMo-RL DPO: context, completions", of_pair=preferences.nemo_rl_pref, takes_tools=False
    ),
    "text_pairs": Format(
        "pairs of plain texts",
        of_pair=preferences.text_pair,
        takes_tools=False,
        takes_text=True,
    ),
    "parquet": Format(
        "one row per rollout, for DuckDB and pandas",
        of_rollout=trainers.parquet,
        suffix=PARQUET,
        is_bare=True,
        takes_text=True,
    ),
    "huggingface": Format(
        "a dataset folder of the Hugging Face Hub: rows, a card, sessions for its trace viewer",
        of_rollout=trainers.huggingface,
        suffix=FOLDER,
        is_bare=True,
        takes_images=True,
    ),
    "grouped": Format(
        "one line per question with all its answers", of_group=True, takes_tools=False
    ),
    "atif": Format("trajectories of ATIF 1.8, one in each line", of_line=trainers.atif),
    "inspect": Format(
        "a log of inspect, .eval, that `inspect view` opens",
        of_line=trainers.inspect,
        suffix=EVAL,
    ),
    "otlp": Format("OpenTelemetry traces: OTLP JSON, or +otel.endpoint=…", of_line=trainers.otlp),
    "rollouts": Format("stored rollouts, as other commands read them", of_line=trainers.ours),
}

SHORT = {
    "llamafactory": "llamafactory_sft",
    "axolotl": "axolotl_sft",
    "nemo_rl": "nemo_rl_pref",
    "skyrl": "skyrl_rl",
    "hf": "huggingface",
}
"""Other names of formats."""


def find_format(name: str | None) -> Format:
    """ConfigError without a name, or for an unknown one."""
    if name is None:
        names = "\n".join(f"  {each:<22} {form.about}" for each, form in FORMATS.items())
        raise ConfigError(f"choose a format, as in +format=trl_sft:\n{names}")
    found = FORMATS.get(SHORT.get(name, name))
    if found is None:
        raise ConfigError(f"format={name} is unknown{suggest(name, FORMATS)}: {', '.join(FORMATS)}")
    return found
