"""The benchmark that a command names, and what it adds to the configuration."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ConfigError
from ...serving.nemo_gym.benchmarks import config_of
from ...serving.nemo_gym.checkout import locate
from ...types import JsonObject
from .. import overrides
from ..instances import AGENTS, MODELS, RESOURCES, Instance
from ..keys import AuditConfig, CollectConfig, Command, HarborConfig, ReverifyConfig, TasksConfig
from ..sources import CHECKOUT, Layer, Merged, read_layers
from .definition import (
    AGENT,
    HARBOR,
    OWN,
    POLICY,
    TRAINING,
    Definition,
    find_place,
    read_definition,
    rows_file,
    split_kind,
)
from .harbor import KEY as HARBOR_KEY
from .harbor import define_harbor
from .subset import split_subset

KEY, OUTPUT = "benchmark", "output_jsonl_fpath"

THEIRS = "nemo_gym:"
"""Before a name that a definition of ours has, too."""

NAMES = ("openai_model", "model", "model_name", "deployment", "base_model")
"""Keys of model servers that name the model."""

CommandT = TypeVar("CommandT", bound=Command)


def is_theirs(name: str, given: str | None, cwd: Path) -> bool:
    """Whether a name means a benchmark of a checkout of NeMo Gym, which `given` or env.yaml names;
    ConfigError if it could mean two things."""
    if name.startswith((OWN, THEIRS, TRAINING)):
        return name.startswith(THEIRS)
    checkout = find_checkout(given, cwd)
    is_own = split_subset(name)[0].endswith(".yaml") or find_place(name, cwd) is not None
    in_checkout = checkout is not None and (checkout / config_of(name, checkout)).is_file()
    if find_place(name, cwd) is not None and in_checkout:
        raise ConfigError(
            f"benchmark={name}: rollout_kit has one, and the checkout another: write"
            f" {OWN}{name} or {THEIRS}{name}"
        )
    return in_checkout or (checkout is not None and not is_own)


def find_checkout(given: str | None, cwd: Path) -> Path | None:
    """The checkout that a command or env.yaml names."""
    env = {} if given else next(iter(layer.tree for layer in read_layers([], cwd)[-1:]), {})
    return locate(given or env.get(CHECKOUT), cwd)


@dataclass(frozen=True, slots=True)
class Asked:
    """The benchmark that a command names, if it does: a definition of ours, or the YAML file of a
    checkout of NeMo Gym."""

    own: Definition | None = None
    theirs: str | None = None
    is_verified_only: bool = False
    """Whether the command asks no policy."""
    has_rollouts: bool = False
    """Whether it reads stored rollouts, and no rows."""

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
        folders = _read_folders(overrides.text_of(words, HARBOR_KEY) or values.get(HARBOR_KEY))
        if folders and issubclass(command, HarborConfig):
            if name:
                raise ConfigError(f"{KEY} and {HARBOR_KEY} were both given: leave one of them out")
            own = define_harbor(folders, {}, cwd, with_gold=not command.asks_policy)
            return cls(own, is_verified_only=not command.asks_policy)
        if not name or not issubclass(command, TasksConfig | AuditConfig | ReverifyConfig):
            return cls()
        if name.startswith("["):
            raise ConfigError(f"{KEY}={name}: only ng_collect_rollouts takes several: name one")
        if is_theirs(name, checkout, cwd):
            return cls(theirs=config_of(name.removeprefix(THEIRS), find_checkout(checkout, cwd)))
        own = read_definition(name, cwd)
        own = own if command.asks_policy else own.for_audit()
        reads = issubclass(command, ReverifyConfig)
        return cls(own, is_verified_only=not command.asks_policy, has_rollouts=reads)

    @property
    def config_paths(self) -> list[str]:
        return [self.theirs] if self.theirs else []

    @property
    def layers(self) -> list[Layer]:
        if self.own is None:
            return []
        if self.has_rollouts:
            return [Layer(str(self.own), self.own.to_servers())]
        make = self.own.to_verifier if self.is_verified_only else self.own.to_layer
        return [Layer(str(self.own), make(rows_file(self.own)))]

    def complete(self, merged: Merged) -> None:
        """Let its agent ask the only model server there is, if that has another name than the
        usual one; ConfigError if the files or the command line name other rows."""
        if self.own is None:
            return
        self._add_roots(self.own, merged)
        if self.is_verified_only:
            return
        for key in ("input_jsonl_fpath", "dataset"):
            if merged.tree.get(key) and merged.origin(key) != str(self.own):
                kind = self.own.kind
                raise ConfigError(f"{key} and {kind} were both given: a {kind} brings its rows")
        tree = merged.tree
        agents: JsonObject = tree.get(self.own.name + AGENT, {}).get(AGENTS, {})
        agent: Any = agents.get(next(iter(self.own.agent)), {})
        verifier: JsonObject = tree.get(self.own.instance, {}).get(RESOURCES, {})
        others = [
            (agent.get("user_simulator") or {}).get("model_server"),
            (verifier.get(self.own.server) or {}).get("judge_model_server"),
        ]
        taken = {each["name"] for each in others if isinstance(each, dict) and "name" in each}
        models = [
            name
            for name, one in tree.items()
            if isinstance(one, dict) and MODELS in one and name not in taken
        ]
        if POLICY not in models and len(models) == 1 and "model_server" in agent:
            agent["model_server"]["name"] = models[0]

    def _add_roots(self, own: Definition, merged: Merged) -> None:
        """Give the folders for images to the server that builds them."""
        servers: Any = merged.tree.get(own.instance, {}).get(RESOURCES, {})
        roots = merged.tree.get("roots")
        if own.folders and isinstance(roots, dict) and isinstance(servers.get(own.server), dict):
            given = servers[own.server]
            given["roots"] = {**(given.get("roots") or {}), **roots}


def _read_folders(given: Any) -> list[str]:
    """Folders that are given as a text or a list."""
    if not isinstance(given, str):
        return list(given or [])
    is_list = given.startswith("[")
    return [each.strip(" '\"") for each in given.strip("[]").split(",")] if is_list else [given]


def split_suite(words: Sequence[str]) -> list[list[str]] | None:
    """The words of a command for each benchmark of a list; None if it names no list. An output is
    then a folder."""
    text = overrides.text_of(words, KEY)
    if text is None or not text.startswith("["):
        return None
    names = [each.strip().strip("'\"") for each in text.strip("[]").split(",")]
    if not all(names) or not text.endswith("]"):
        raise ConfigError(f"{KEY}={text}: name benchmarks in a list: +{KEY}=[aime25,gpqa_diamond]")
    if alone := next((each for each in names if each.startswith(TRAINING)), None):
        raise ConfigError(f"{KEY}={alone}: a dataset has no score: collect on it alone")
    output = overrides.text_of(words, OUTPUT)
    if output is not None and output.endswith((".jsonl", ".gz", ".zst")):
        raise ConfigError(
            f"{OUTPUT}={output}: several benchmarks write a file each: name a folder, such as"
            f" +{OUTPUT}=results/first"
        )
    kept = [each for each in words if overrides.key_of(each) not in (KEY, OUTPUT)]
    return [
        [*kept, f"+{KEY}={name}"]
        + ([f"+{OUTPUT}={output.rstrip('/')}/{name_file(name)}.jsonl"] if output else [])
        for name in names
    ]


def name_file(name: str) -> str:
    """The name of a benchmark as that of a file, without its end."""
    _, bare = split_kind(name)
    if split_subset(bare)[0].endswith(".yaml"):
        return read_definition(name).name
    return re.sub(r"[^\w@.-]", "--", bare.removeprefix(THEIRS))


def with_output(command: CommandT, found: dict[str, Instance]) -> CommandT:
    """The command with the output that a benchmark has by default: results/<model>/<name>.jsonl."""
    if not isinstance(command, CollectConfig) or command.output_jsonl_fpath is not None:
        return command
    name = name_file(command.benchmark) if command.benchmark else ""
    name = HARBOR if command.harbor_tasks else name
    if not name:
        return command
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
