"""The definition of a benchmark: a YAML file, which becomes the lowest layer of a configuration.

`+benchmark=gsm8k` adds a verifier, an agent, the sampling and the rows. Whatever the files of
`config_paths` and the command line say wins over it. Fetching the rows belongs in
`collecting/data/benchmarks`.
"""

import hashlib
import re
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..._version import __version__
from ...errors import ConfigError, suggest
from ...reading import cache_folder
from ...serving import registry
from ...serving.harbor.task_folder import sign
from ...types import JsonObject
from ..commands import known_keys
from ..fields import problems, show_value
from ..instances import AGENTS, MODELS, RESOURCES
from .subset import split_subset, take_subset

FOLDERS = {"benchmark": "configs/benchmarks", "dataset": "configs/datasets"}
"""Kind of a definition → where those with a name are."""

TRAINING = "dataset:"
"""Before the name of rows to train on: `+dataset=NAME` is `+benchmark=dataset:NAME`."""

OWN = "own:"
"""Before a name that a checkout of NeMo Gym has, too."""

HARBOR = "harbor"
"""The type of a source that is a collection of Harbor's folders; its rows are tasks as they are."""

AGENT = "_agent"

POLICY = "policy_model"

WITH_TEXTS = {"mapping", "verifier", "agent"}
"""Keys in which `{file: …}` stands for the text of a file."""


class Range(BaseModel):
    """Texts from one, and before another. Dates are written as 2025-01-31."""

    model_config = ConfigDict(extra="forbid")

    start: str = Field(alias="from")
    end: str = Field(alias="before")


class FigureRule(BaseModel):
    """A score besides the mean reward, from the fields of all rollouts. Exactly one of the keys,
    besides `clip`."""

    model_config = ConfigDict(extra="forbid")

    mean: str | None = Field(None, description="Mean of a field.")
    ratio: list[list[str | float]] = Field(
        [], max_length=2, description="The sum of the first means, over that of the second."
    )
    mean_by: str | None = Field(None, description="The mean reward for each value of a field.")
    calibration_error: str | None = Field(
        None, description="Of the confidence from 0 to 1 that this field has."
    )
    win_rate: list[str] | None = Field(
        None, description="Against a baseline. Fields with the style that it is controlled for."
    )
    clip: bool = Field(False, description="Below 0 is 0, and above 1 is 1.")

    @model_validator(mode="after")
    def _is_one(self) -> "FigureRule":
        given = self.model_dump(exclude_defaults=True).keys() - {"clip"}
        if len(given) != 1 or (self.ratio and len(self.ratio) != 2):
            raise ValueError("needs one of mean, ratio, mean_by, calibration_error, win_rate")
        return self


class Examples(BaseModel):
    """Worked examples in the prompt. They make the field `_examples`."""

    model_config = ConfigDict(extra="forbid")

    number: int = Field(ge=0)
    text: str = Field(description="One example, with columns and fields in braces.")
    source: JsonObject = Field({}, description="What is another one than in the rows' source.")
    by: str | None = Field(None, description="Column that an example shares with its row.")
    seed: int | None = Field(None, description="Draws the examples. Default: the first ones.")
    between: str = Field("", description="What stands between two examples.")


class Definition(BaseModel):
    """A benchmark, or a dataset to train on: where its rows are from, what is asked, and how
    answers are verified."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: Literal["benchmark", "dataset"] = Field(
        "benchmark", description="A dataset is to train on: it has no metric."
    )
    about: str = Field(description="What it measures, in a few words.")
    source: JsonObject = Field(description="Where the rows are from.")
    reader: str | None = Field(None, description="What reads rows that need more than a mapping.")
    rows: int = Field(ge=1, description="How many rows it has.")
    mapping: str | JsonObject = Field(description="How a row becomes a task, or a known format.")
    verifier: dict[str, JsonObject] = Field(
        min_length=1, max_length=1, description="The resources server, with its keys."
    )
    agent: dict[str, JsonObject] = Field(
        {"simple_agent": {}},
        min_length=1,
        max_length=1,
        description="The agent, with its keys.",
    )
    sampling: JsonObject = Field({}, description="As responses_create_params.")
    repeats: int = Field(1, ge=1)
    metric: str = Field(
        "",
        description="The published one: avg@k, pass@k, maj@k, pass^k, sections, or one of figures."
        " A benchmark needs it.",
    )
    figures: dict[str, FigureRule] = Field(
        {}, description="Name → a score from fields of verdicts."
    )
    sections: dict[str, list[str]] = Field(
        {},
        description="Section → the parts whose mean is its score: sections before it, or fields"
        " `accuracy/<part>` of verdicts.",
    )
    license: str = Field(description="Of the rows.")
    citation: str
    follows: str = Field(description="Whose definition, in which version.")
    differs: list[str] = Field([], description="Points in which it is another one, and why.")
    gated: str | None = Field(None, description="The page where its terms are accepted.")
    publish: bool = Field(
        True, description="Whether reports and exports may show its prompts and answers."
    )
    where: dict[str, list[Any] | Range] = Field(
        {}, description="Column → the values, or the range of texts, that a row must have."
    )
    drop_repeats: bool = Field(
        False, description="Leave out a row whose prompt an earlier row has too."
    )
    examples: Examples | None = Field(None, description="Worked examples in the prompt.")
    needs: list[Literal["judge", "sandbox", "user"]] = []
    path: Path = Field(exclude=True)
    digest: str = Field(exclude=True)
    """A checksum of its file, as it was read."""

    @model_validator(mode="before")
    @classmethod
    def _complete_harbor(cls, given: Any) -> Any:
        source = given.get("source") if isinstance(given, dict) else None
        if isinstance(source, dict) and source.get("type") == HARBOR:
            return {"mapping": HARBOR, "verifier": {"shell": {}}, **given}
        return given

    @property
    def folders(self) -> list[Path]:
        """The folders of a source that is a collection of Harbor's folders."""
        if self.source.get("type") != HARBOR:
            return []
        given = self.source.get("folder") or []
        named = [given] if isinstance(given, str) else list(given)
        return [self.path.parent / Path(str(each)).expanduser() for each in named]

    def for_audit(self) -> "Definition":
        """The same, whose rows have the solutions of the folders."""
        if not self.folders:
            return self
        return self.model_copy(update={"source": {**self.source, "with_gold": True}})

    @property
    def server(self) -> str:
        """The resources server that verifies its answers."""
        return next(iter(self.verifier))

    @property
    def instance(self) -> str:
        """The name of its verifier, which is its own unless commands have a key of that name."""
        return f"{self.name}_verifier" if self.name in known_keys() else self.name

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"

    def to_layer(self, rows: Path) -> JsonObject:
        """What it says, as the content of a YAML file."""
        return {**self.to_servers(), **self.to_keys(rows)}

    def to_verifier(self, rows: Path) -> JsonObject:
        """Its verifier and its rows alone."""
        name = {"resources_server_name": self.instance, "input_jsonl_fpath": str(rows)}
        return {self.instance: self.to_servers()[self.instance], **name}

    def to_keys(self, rows: Path) -> JsonObject:
        """The keys of a run that it sets."""
        return {
            "agent_name": self.name + AGENT,
            "num_repeats": self.repeats,
            "input_jsonl_fpath": str(rows),
        }

    def to_servers(self) -> JsonObject:
        """Its servers, with the sampling, as the content of a YAML file."""
        ref = {"type": RESOURCES, "name": self.instance}
        policy = {"type": MODELS, "name": POLICY}
        own = {"entrypoint": "app.py", **self.verifier[self.server]}
        if self.folders:
            own["task_folders"] = [str(each.resolve()) for each in self.folders]
        [(agent, keys)] = self.agent.items()
        asks = {"entrypoint": "app.py", "resources_server": ref, "model_server": policy, **keys}
        params = {"responses_create_params": self.sampling} if self.sampling else {}
        return {
            self.instance: {RESOURCES: {self.server: own}},
            self.name + AGENT: {AGENTS: {agent: asks}},
            **params,
        }


def list_definitions(cwd: Path | None = None, kind: str = "benchmark") -> list[str]:
    """The names of all definitions of a kind that a name finds."""
    folders = [root / FOLDERS[kind] for root in registry.roots(cwd)]
    found = [path.stem for folder in folders for path in folder.glob("*.yaml")]
    return sorted(dict.fromkeys(found))


def read_definition(name: str, cwd: Path | None = None) -> Definition:
    """The definition of a name, or of a YAML file; ConfigError if there is none, or it is wrong."""
    full, (kind, bare) = name, split_kind(name)
    name, subset = split_subset(bare)
    is_file = name.endswith(".yaml")
    path = registry.resolve_path(name, cwd) if is_file else find_place(full, cwd)
    if path is None or not path.is_file():
        if is_file:
            raise ConfigError(f"{kind}={name}: there is no such file")
        hint = suggest(name, list_definitions(cwd, kind))
        raise ConfigError(
            f"{kind}={name}: no {kind} has this name{hint}; ng_list +kind={kind} shows all, and the"
            " path of a YAML file names your own"
        )
    content = _read_content(path, cwd, [])
    own = re.sub(r"[^\w]+", "_", path.stem)
    if subset:
        content = take_subset(f"{kind}={name}", content, subset)
        own = re.sub(r"[^\w]+", "_", "_".join([own, *subset]))
    try:
        digest = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
        read = {"path": path, "digest": digest[:12]}
        found = Definition.model_validate({"name": own, **content, **read})
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(each.path)}: {each.reason}"
            + ("" if each.value is None or each.is_unknown else f" (got {show_value(each)})")
            for each in problems(error, Definition)
        ]
        raise ConfigError("\n".join(lines)) from None
    if bool(found.metric) != (found.kind == "benchmark"):
        what = "a benchmark needs one" if found.kind == "benchmark" else "a dataset has none"
        raise ConfigError(f"{path}: metric: {what}; `kind: dataset` is for rows to train on")
    return found


def split_kind(name: str) -> tuple[str, str]:
    """Whether a name is that of a benchmark or a dataset, and the name without what says so."""
    if name.startswith(TRAINING):
        return "dataset", name.removeprefix(TRAINING)
    return "benchmark", name.removeprefix(OWN)


def _read_content(path: Path, cwd: Path | None, above: list[Path]) -> JsonObject:
    """What a file says, on top of the definition that it is `like`, with the texts it names."""
    if path in above:
        raise ConfigError(f"{path}: like: it is like itself")
    content = _read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a definition of a benchmark is a mapping: about, source, …")
    for key in WITH_TEXTS & content.keys():
        content[key] = _insert_texts(content[key], path)
    if (like := content.pop("like", None)) is None:
        return content
    found = find_place(str(like), cwd)
    if found is None or not found.is_file():
        hint = suggest(str(like), list_definitions(cwd))
        raise ConfigError(f"{path}: like: no benchmark is called {like}{hint}")
    return {**_read_content(found, cwd, [*above, path]), **content}


def _insert_texts(value: Any, path: Path) -> Any:
    """A value in which `{file: …}` is the content of that file, which is next to the definition."""
    if isinstance(value, list):
        return [_insert_texts(each, path) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"file"}:
        named = path.parent / str(value["file"])
        return _read_yaml(named) if named.suffix == ".yaml" else _read_text(named)
    return {name: _insert_texts(each, path) for name, each in value.items()}


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(_read_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def find_place(name: str, cwd: Path | None) -> Path | None:
    """The file of a definition that is called by its name."""
    kind, bare = split_kind(name)
    bare, _ = split_subset(bare)
    is_name = re.fullmatch(r"[\w@.-]+", bare) is not None
    return registry.resolve_path(f"{FOLDERS[kind]}/{bare}.yaml", cwd) if is_name else None


def rows_file(definition: Definition) -> Path:
    """Where its rows are, or will be. Another source or mapping has another file, and so have
    rows that may not be published."""
    where = sorted(definition.where.items())
    signed = [sign(folder) for folder in definition.folders if folder.is_dir()]
    kept = {name: each if isinstance(each, list) else each.model_dump() for name, each in where}
    shown = [definition.examples.model_dump()] if definition.examples else []
    about = [definition.source, definition.reader, definition.mapping, kept, __version__, *signed]
    about += [*shown, *([] if definition.publish else [{"publish": False}])]
    about += [{"drop_repeats": True}] if definition.drop_repeats else []
    digest = hashlib.sha256(orjson.dumps(about, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return keep_folder() / f"{definition.name}-{digest[:12]}.jsonl"


def keep_folder() -> Path:
    """Where the rows of benchmarks are kept; ConfigError without a home folder."""
    if (folder := cache_folder()) is None:
        raise ConfigError("benchmark: there is no home folder: set XDG_CACHE_HOME to a folder")
    return folder / "benchmarks"
