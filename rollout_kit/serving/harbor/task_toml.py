"""The content of a `task.toml`, up to schema 1.4. Names and defaults are those of Harbor."""

import re
import tomllib
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from ...errors import validation_summary
from ..sandbox.roots.dockerfile import BuildProblem

NEWEST = (1, 4)

NAME = "task.toml"

TEMPLATE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")

SIZES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}

Network = Literal["no-network", "public", "allowlist"]


class PhaseNetwork(BaseModel):
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> "PhaseNetwork":
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts is only valid with network_mode = 'allowlist'")
        return self


class TaskAgent(PhaseNetwork):
    timeout_sec: float | None = None
    user: str | int | None = None


class Healthcheck(BaseModel):
    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class TaskEnvironment(PhaseNetwork):
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    tpu: Any = None
    mcp_servers: list[Any] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_old_keys(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        given = dict(given)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = given.pop(old, None)
            if isinstance(size, str):
                given.setdefault(new, _read_size(size))
        internet = given.pop("allow_internet", None)
        if internet is not None and given.get("allowed_hosts") is None:
            given.setdefault("network_mode", "public" if internet else "no-network")
        return given

    @field_validator("os", mode="before")
    @classmethod
    def _in_small_letters(cls, given: Any) -> Any:
        return given.lower() if isinstance(given, str) else given


def _read_size(text: str) -> int:
    unit = text.strip().upper()[-1:]
    if unit not in SIZES:
        raise ValueError(f"not a size: {text!r}")
    return int(float(text.strip()[:-1]) * SIZES[unit])


class CollectHook(BaseModel):
    """A command that runs before artifacts are taken."""

    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: str | int | None = None


class TaskVerifier(PhaseNetwork):
    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: TaskEnvironment | None = None
    collect: list[CollectHook] = []

    @model_validator(mode="after")
    def _has_one_mode(self) -> "TaskVerifier":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' takes no [verifier.environment]")
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """None if it is not named here."""
        return self.environment_mode or ("separate" if self.environment else None)


class Artifact(BaseModel):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @field_validator("source")
    @classmethod
    def _stays_inside(cls, given: str) -> str:
        if ".." in given.split("/"):
            raise ValueError(f"an artifact has no '..' in its source: {given!r}")
        return given


class TaskStep(BaseModel):
    name: str = Field(min_length=1, max_length=255, pattern=r"^[^/\\\x00-\x1f]+$")
    agent: TaskAgent = TaskAgent()
    verifier: TaskVerifier = TaskVerifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = []


class TaskSolution(BaseModel):
    env: dict[str, str] = {}


class PackageInfo(BaseModel):
    name: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    version: str | None = None
    description: str = ""
    keywords: list[str] = []


class TaskToml(BaseModel):
    """All of it."""

    schema_version: str = "1.4"
    task: PackageInfo | None = None
    metadata: dict[str, Any] = {}
    verifier: TaskVerifier = TaskVerifier()
    agent: TaskAgent = TaskAgent()
    environment: TaskEnvironment = TaskEnvironment()
    solution: TaskSolution = TaskSolution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[TaskStep] = []
    artifacts: list[str | Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _take_old_version(cls, given: Any) -> Any:
        if isinstance(given, dict) and "version" in given:
            given = {"schema_version": given["version"], **given}
        return given

    @field_validator("steps", mode="before")
    @classmethod
    def _may_be_none(cls, given: Any) -> Any:
        return [] if given is None else given

    @model_validator(mode="after")
    def _names_are_unique(self) -> "TaskToml":
        names = [step.name.casefold() for step in self.steps]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two steps are called {twice[0]!r}")
        return self


def read_toml(text: str) -> tuple[TaskToml | None, list[BuildProblem]]:
    """What a task.toml says, or why it cannot be read."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        return None, [BuildProblem(NAME, int(found[1]) if found else 1, f"not TOML: {error}")]
    try:
        read = TaskToml.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]["loc"]
        keys = [str(each) for each in first]
        return None, [BuildProblem(NAME, find_line(text, *keys), validation_summary(error))]
    version = re.fullmatch(r"(\d+)(?:\.(\d+))?", read.schema_version)
    if version is None or (int(version[1]), int(version[2] or 0)) > NEWEST:
        newest = ".".join(map(str, NEWEST))
        why = f"schema {read.schema_version} is newer than {newest}"
        line = max(find_line(text, "schema_version"), find_line(text, "version"))
        return read, [BuildProblem(NAME, line, why)]
    return read, []


def find_line(text: str, *keys: str) -> int:
    """The line of a key, which stands in the table that the keys before it name; 1 if it is not
    there."""
    names = [each for each in keys if not each.isdigit()]
    place, found = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            place = header[1].replace('"', "")
            if place == ".".join(names):
                return number
        key = line.partition("=")[0].strip().strip('"')
        full = f"{place}.{key}" if place else key
        if key and full == ".".join(names):
            return number
        if key and names and full == ".".join(names[: len(full.split("."))]):
            found = number
    return found


def fill_values(given: dict[str, str]) -> dict[str, str]:
    """The values of environment variables, where `${NAME:-text}` is the text. ValueError for a
    variable of this machine, which no task gets."""

    def value(found: re.Match[str]) -> str:
        if found[2] is None:
            raise ValueError(f"{found[0]} is a variable of this machine, which no task gets")
        return found[2]

    return {name: TEMPLATE.sub(value, text) for name, text in given.items()}
