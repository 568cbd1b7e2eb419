"""Benchmarks by name: a definition is a YAML file, and becomes the lowest layer of a configuration.

`+benchmark=gsm8k` adds a verifier, an agent, the sampling and the rows. Whatever the files of
`config_paths` and the command line say wins over it. Fetching the rows belongs in
`collecting/data/benchmarks`.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError, suggest
from ..serving import registry
from ..serving.nemo_gym.benchmarks import config_of
from ..serving.nemo_gym.checkout import locate
from ..types import JsonObject
from . import overrides
from .fields import problems, show_value
from .instances import AGENTS, MODELS, RESOURCES, Instance
from .keys import CollectConfig, Command, TasksConfig
from .sources import CHECKOUT, Layer, Merged, read_layers

KEY = "benchmark"

FOLDER = "configs/benchmarks"

OWN, THEIRS = "own:", "nemo_gym:"
"""Before a name that both a definition and a checkout of NeMo Gym have."""

AGENT = "_agent"

POLICY = "policy_model"

NAMES = ("openai_model", "model", "model_name", "deployment", "base_model")
"""Keys of model servers that name the model."""

CommandT = TypeVar("CommandT", bound=Command)


class Definition(BaseModel):
    """A benchmark: where its rows are from, what is asked, and how answers are verified."""

    model_config = ConfigDict(extra="forbid")

    name: str
    about: str = Field(description="What it measures, in a few words.")
    source: JsonObject = Field(description="Where the rows are from.")
    rows: int = Field(ge=1, description="How many rows it has.")
    mapping: str | JsonObject = Field(description="How a row becomes a task, or a known format.")
    verifier: dict[str, JsonObject] = Field(
        min_length=1, max_length=1, description="The resources server, with its keys."
    )
    sampling: JsonObject = Field({}, description="As responses_create_params.")
    repeats: int = Field(1, ge=1)
    metric: str = Field(description="The published one: avg@k, pass@k, maj@k.")
    categories: str | None = Field(None, description="Field of a task that groups the rows.")
    license: str = Field(description="Of the rows.")
    citation: str
    follows: str = Field(description="Whose definition, in which version.")
    differs: list[str] = Field([], description="Points in which it is another one, and why.")
    publish: bool = Field(True, description="Whether prompts and answers may be shown.")
    gated: str | None = Field(None, description="The page where its terms are accepted.")
    needs: list[Literal["judge", "sandbox", "user"]] = []
    path: Path = Field(exclude=True)

    @property
    def server(self) -> str:
        """The resources server that verifies its answers."""
        return next(iter(self.verifier))

    def __str__(self) -> str:
        return f"the benchmark {self.name}"

    def to_layer(self, rows: Path) -> JsonObject:
        """What it says, as the content of a YAML file."""
        ref = {"type": RESOURCES, "name": self.name}
        policy = {"type": MODELS, "name": POLICY}
        own = {"entrypoint": "app.py", **self.verifier[self.server]}
        agent = {"entrypoint": "app.py", "resources_server": ref, "model_server": policy}
        params = {"responses_create_params": self.sampling} if self.sampling else {}
        return {
            self.name: {RESOURCES: {self.server: own}},
            self.name + AGENT: {AGENTS: {"simple_agent": agent}},
            "agent_name": self.name + AGENT,
            "num_repeats": self.repeats,
            "input_jsonl_fpath": str(rows),
            **params,
        }


def list_definitions(cwd: Path | None = None) -> list[str]:
    """The names of all definitions that a name finds."""
    found = [path.stem for root in registry.roots(cwd) for path in (root / FOLDER).glob("*.yaml")]
    return sorted(dict.fromkeys(found))


def is_theirs(name: str, given: str | None, cwd: Path) -> bool:
    """Whether a name means a benchmark of a checkout of NeMo Gym, which `given` or env.yaml names;
    ConfigError if it could mean two things."""
    if name.startswith((OWN, THEIRS)):
        return name.startswith(THEIRS)
    env = {} if given else next(iter(layer.tree for layer in read_layers([], cwd)[-1:]), {})
    checkout = locate(given or env.get(CHECKOUT), cwd)
    is_own = name.endswith(".yaml") or _place(name, cwd) is not None
    in_checkout = checkout is not None and (checkout / config_of(name)).is_file()
    if _place(name, cwd) is not None and in_checkout:
        raise ConfigError(
            f"benchmark={name}: rollout_kit has one, and the checkout another: write"
            f" {OWN}{name} or {THEIRS}{name}"
        )
    return in_checkout or (checkout is not None and not is_own)


def read_definition(name: str, cwd: Path | None = None) -> Definition:
    """The definition of a name, or of a YAML file; ConfigError if there is none, or it is wrong."""
    name = name.removeprefix(OWN)
    path = registry.resolve_path(name, cwd) if name.endswith(".yaml") else _place(name, cwd)
    if path is None or not path.is_file():
        if name.endswith(".yaml"):
            raise ConfigError(f"benchmark={name}: there is no such file")
        hint = suggest(name, list_definitions(cwd))
        raise ConfigError(
            f"benchmark={name}: no benchmark has this name{hint}; ng_list +kind=benchmark shows"
            " all, and the path of a YAML file names your own"
        )
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a definition of a benchmark is a mapping: about, source, …")
    own = re.sub(r"[^\w]+", "_", path.stem)
    try:
        return Definition.model_validate({"name": own, **content, "path": path})
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(each.path)}: {each.reason}"
            + ("" if each.value is None or each.is_unknown else f" (got {show_value(each)})")
            for each in problems(error, Definition)
        ]
        raise ConfigError("\n".join(lines)) from None


def _place(name: str, cwd: Path | None) -> Path | None:
    """The file of a definition that is called by its name."""
    bare = name.removeprefix(OWN)
    is_name = re.fullmatch(r"[\w@.-]+", bare) is not None
    return registry.resolve_path(f"{FOLDER}/{bare}.yaml", cwd) if is_name else None


def rows_file(definition: Definition) -> Path:
    """Where its rows are, or will be. Another source or mapping has another file."""
    import hashlib  # not needed without a benchmark

    import orjson

    from .._version import __version__

    about = [definition.source, definition.mapping, __version__]
    digest = hashlib.sha256(orjson.dumps(about, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return cache_folder() / f"{definition.name}-{digest[:12]}.jsonl"


def cache_folder() -> Path:
    """Where the rows of benchmarks are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rollout_kit" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Asked:
    """The benchmark that a command names, if it does: a definition of ours, or the YAML file of a
    checkout of NeMo Gym."""

    own: Definition | None = None
    theirs: str | None = None

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        values: JsonObject,
        command: type[Command],
        checkout: str | None,
        cwd: Path,
    ) -> "Asked":
        """What the words of a command, or a program, ask for."""
        name = overrides.text_of(words, KEY) or values.get(KEY)
        if not name or not issubclass(command, TasksConfig):
            return cls()
        if name.startswith("["):
            raise ConfigError(f"{KEY}={name}: name one benchmark; run one command for each")
        if is_theirs(name, checkout, cwd):
            return cls(theirs=config_of(name.removeprefix(THEIRS)))
        return cls(read_definition(name, cwd))

    @property
    def config_paths(self) -> list[str]:
        return [self.theirs] if self.theirs else []

    @property
    def layers(self) -> list[Layer]:
        return [Layer(str(self.own), self.own.to_layer(rows_file(self.own)))] if self.own else []

    def complete(self, merged: Merged) -> None:
        """Let its agent ask the only model server there is, if that has another name than the
        usual one; ConfigError if the files or the command line name other rows."""
        if self.own is None:
            return
        for key in ("input_jsonl_fpath", "dataset"):
            if merged.tree.get(key) and merged.origin(key) != str(self.own):
                raise ConfigError(f"{key} and {KEY} were both given: a benchmark brings its rows")
        tree = merged.tree
        models = [name for name, one in tree.items() if isinstance(one, dict) and MODELS in one]
        agent: Any = tree.get(self.own.name + AGENT, {}).get(AGENTS, {}).get("simple_agent", {})
        if POLICY not in models and len(models) == 1 and "model_server" in agent:
            agent["model_server"]["name"] = models[0]


def with_output(command: CommandT, found: dict[str, Instance]) -> CommandT:
    """The command with the output that a benchmark has by default: results/<model>/<name>.jsonl."""
    if not isinstance(command, CollectConfig) or not command.benchmark:
        return command
    if command.output_jsonl_fpath is not None:
        return command
    name = re.sub(r"[^\w@.-]", "--", command.benchmark.removeprefix(OWN).removeprefix(THEIRS))
    if command.benchmark.endswith(".yaml"):
        name = read_definition(command.benchmark).name
    path = Path("results") / name_model(found) / f"{name}.jsonl"
    return command.model_copy(update={"output_jsonl_fpath": path})


def name_model(found: dict[str, Instance]) -> str:
    """The name of the model that is asked, as the name of a folder."""
    models = [one for one in found.values() if one.type == MODELS]
    chosen = next((one for one in models if one.name == POLICY), models[0] if models else None)
    if chosen is None:
        return "model"
    named = next((chosen.settings[key] for key in NAMES if chosen.settings.get(key)), None)
    text = str(named or chosen.implementation).strip("/")
    return re.sub(r"[^\w.+-]", "_", text.replace("/", "--")).lstrip(".") or "model"
