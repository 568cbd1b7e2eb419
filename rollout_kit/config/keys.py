"""Defines the keys of each command: name, type, default and one sentence.

The command line, the YAML, `--help` and the reference use these definitions. First the keys that
several commands share, then each command with its own.
"""

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import CoreSchema, core_schema

from ..types import JsonObject
from .shard import Shard


class CommandKeys(BaseModel):
    """Base of all keys of commands."""

    # a process runs one command: pydantic builds the validators of that one only
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_path(cls, value: Any, info: ValidationInfo) -> Any:
        """ValueError for an empty path, which would be the working directory. A shell makes one of
        a variable that is not set."""
        if value == "" and info.field_name:
            annotation = cls.model_fields[info.field_name].annotation
            if annotation is Path or Path in get_args(annotation):
                raise ValueError("is empty; give a path")
        return value


class Command(CommandKeys):
    """Keys of every command."""

    asks_policy: ClassVar[bool] = True
    """Whether the command needs the policy model."""
    has_servers: ClassVar[bool] = True
    """Whether the configuration of servers is a part of the command's own."""

    config_paths: list[str] = Field(
        [], description="YAML files to merge. Later files take precedence."
    )
    json_output: bool = Field(False, alias="json", description="Print JSON instead of text.")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Rollouts in flight: `start` at first, then between `floor` and `ceiling`."""

    floor: int
    start: int
    ceiling: int

    @classmethod
    def parse(cls, value: Any) -> "Parallelism":
        """A number, `auto`, or `min-start-max`; ValueError for anything else."""
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 1:
                raise ValueError(f"must be at least 1, got {value}")
            return cls(value, value, value)
        if value == "auto":
            return AUTO
        try:
            floor, start, ceiling = map(int, str(value).split("-"))
        except ValueError:
            raise ValueError(
                f"give a number, auto, or min-start-max as in 4-64-1024, not {value!r}"
            ) from None
        if not 1 <= floor <= start <= ceiling:
            raise ValueError("of min-start-max, each must be at least the one before")
        return cls(floor, start, ceiling)

    @property
    def fixed(self) -> int | None:
        """The number of rollouts in flight if it never changes."""
        return self.start if self.floor == self.ceiling else None

    def spell(self) -> int | str:
        """The value as `parse` takes it."""
        if self == AUTO:
            return "auto"
        return self.fixed or f"{self.floor}-{self.start}-{self.ceiling}"

    def __repr__(self) -> str:
        return str(self.spell())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.spell),
        )


AUTO = Parallelism(1, 8, 4096)
"""It begins with few until it is known what the model holds."""


class HeadServerConfig(CommandKeys):
    """The server through which collectors find the servers of an `ng_run`."""

    host: str = Field(default="127.0.0.1", description="Address of the head server.")
    port: int = Field(default=11000, ge=0, le=65535, description="Port of the head server.")


class HttpClientConfig(CommandKeys):
    """Limits of the HTTP client (NeMo Gym calls them `GlobalAIOHTTPAsyncClientConfig`)."""

    global_aiohttp_connector_limit: int | None = Field(
        None,
        ge=0,
        description="Maximum number of connections. 0 = unlimited. Default: by parallelism.",
    )
    global_aiohttp_connector_limit_per_host: int | None = Field(
        None, ge=0, description="Maximum number of connections per host. 0 = unlimited."
    )
    global_aiohttp_client_timeout_s: float | None = Field(
        None, gt=0, description="Time limit of one HTTP request. Default: request_timeout_s."
    )
    max_reply_mb: float = Field(
        256.0,
        gt=0,
        description="Largest reply of another server in megabytes. Model servers have a key of the"
        " same name for replies of their endpoint.",
    )


class CheckoutConfig(CommandKeys):
    """NeMo Gym's code, for servers that this toolkit does not have."""

    nemo_gym: Path | None = Field(
        None,
        description="Checkout of NeMo Gym, for its YAML, servers and files. installed:<python>"
        " names an interpreter with an installed NeMo Gym. Default: the working"
        " directory, if it is a checkout.",
    )
    nemo_gym_code: list[str] | str = Field(
        [],
        description="Servers that run NeMo Gym's code although rollout_kit has its own: names of"
        " implementations or instances, or all.",
    )
    nemo_gym_python: str | None = Field(
        None,
        description="Python interpreter with the packages that the checkout's servers need."
        " Default: the interpreter of installed:<python>, or else an environment that"
        " is made once.",
    )
    python_version: str | None = Field(
        None,
        description="Python for the environments of the checkout's servers: a version, such as"
        " 3.13, or a path. Default: the version that NeMo Gym asks for.",
    )
    install: bool = Field(
        False, description="Create missing Python environments with uv, which downloads packages."
    )


class ServersConfig(CheckoutConfig):
    """How server processes run."""

    max_restarts: int = Field(
        5,
        ge=0,
        description="Give up on a server after this many failed starts in a row. If a server dies"
        " just after its start, this counts as a sixth of a failed start. 0 = after the"
        " first.",
    )
    ready_timeout_s: float = Field(600, gt=0, description="Time for all servers to become ready.")
    log_dir: Path | None = Field(
        Path("logs"), description="Folder with a log file of each server's output. null = no logs."
    )
    auth_token: str | None = Field(
        None,
        min_length=16,
        description="Secret token of the run, for servers that other machines can reach, and for"
        " ng_stop. Set it in env.yaml. Default: a new token, in a file that only you"
        " can read.",
    )
    ray_address: str | None = Field(
        None,
        description="Address of the Ray cluster for placement: ray and executor=ray, such as"
        " head:6379 or auto. null = start a cluster on this machine for the time of the"
        " run.",
    )
    record: Path | None = Field(
        None, description="Folder in which to record each call to a model or a tool."
    )
    replay: Path | None = Field(
        None,
        description="Folder of recorded calls to replay, without calling models. If you also set"
        " record, missing calls are sent and recorded.",
    )
    batch: bool = Field(
        False,
        description="Let all hosted models answer in batches, at a lower price. Rollouts may wait"
        " for hours. The key batch of a model server does the same for one model.",
    )
    cheapest: bool = Field(
        False,
        description="Send each request to a hosted model in the cheapest way: in a batch, with the"
        " service tier flex, or with cached prompts. The plan shows which way is used,"
        " and why.",
    )
    mcp: str | None = Field(
        None,
        min_length=1,
        description="MCP server whose tools every agent gets, as a URL, or as a command that is"
        " started for each rollout.",
    )
    openenv: bool = Field(
        False,
        description="Offer each resources server to clients of OpenEnv, at /openenv of its URL. The"
        " first dataset of its agent has the tasks.",
    )
    unsafe_code: bool = Field(
        False,
        description="Run code from a model even if the sandbox does not work. The code then has all"
        " rights of the server.",
    )

    @model_validator(mode="after")
    def _has_one_way(self) -> Self:
        if self.cheapest and self.batch:
            raise ValueError(
                "cheapest: it chooses what goes into batches, and batch sends all: leave one out"
            )
        if self.cheapest and self.replay:
            raise ValueError("cheapest: replayed calls cost nothing: leave it out")
        return self


NUM_SAMPLES = 100
"""Rollouts of a table."""


class WandbConfig(CommandKeys):
    """Weights & Biases. `project` switches it on; most keys are the parameters of `wandb.init`."""

    project: str | None = Field(default=None, description="Send figures, a table and files to W&B.")
    entity: str | None = Field(default=None, description="User or team of the project.")
    name: str | None = Field(default=None, description="Name of the run.")
    group: str | None = Field(default=None, description="Group of the run.")
    job_type: str | None = Field(default=None, description="Kind of the run.")
    tags: list[str] = Field(default=[], description="Tags of the run.")
    notes: str | None = Field(default=None, description="A note on the run.")
    mode: Literal["online", "offline"] | None = Field(
        default=None, description="offline: keep the run on disk. `wandb sync` sends it."
    )
    id: str | None = Field(default=None, description="Id of the run, to continue one with resume.")
    resume: Literal["allow", "must", "never"] | None = Field(
        default=None, description="Whether a run of this id is continued."
    )
    dir: str | None = Field(default=None, description="Folder of W&B's own files.")
    samples: int = Field(
        default=NUM_SAMPLES,
        ge=0,
        description="Number of rollouts in the table, drawn at random. 0 = none.",
    )
    files: bool = Field(default=True, description="Send the output's files at the end of the run.")


class MlflowConfig(CommandKeys):
    """MLflow. `experiment` switches it on."""

    experiment: str | None = Field(
        default=None, description="Send figures, a table and files to MLflow."
    )
    tracking_uri: str | None = Field(
        default=None, description="Address of the server. Default: MLFLOW_TRACKING_URI."
    )
    run_name: str | None = Field(default=None, description="Name of the run.")
    tags: dict[str, str] = Field(default={}, description="Tags of the run.")
    samples: int = Field(
        default=NUM_SAMPLES,
        ge=0,
        description="Number of rollouts in the table, drawn at random. 0 = none.",
    )
    files: bool = Field(default=True, description="Send the output's files at the end of the run.")


class OtelConfig(CommandKeys):
    """OpenTelemetry. `endpoint` switches it on."""

    endpoint: str | None = Field(
        default=None, description="Send a trace of each rollout to this OTLP receiver, over HTTP."
    )
    headers: dict[str, str] = Field(
        default={}, description="Headers for the receiver. They are secret."
    )
    content: bool = Field(default=False, description="Send prompts, answers and tool calls, too.")
    service: str = Field(default="rollout_kit", description="The `service.name` of the traces.")


class TrackersConfig(CommandKeys):
    """Keys of the commands whose runs can be followed."""

    wandb: WandbConfig = Field(default_factory=WandbConfig, description="Weights & Biases.")
    mlflow: MlflowConfig = Field(default_factory=MlflowConfig, description="MLflow.")
    otel: OtelConfig = Field(default_factory=OtelConfig, description="OpenTelemetry.")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Serve /metrics for Prometheus on this port of this machine. 0 = a free one.",
    )


class GroupsConfig(CommandKeys):
    """How the rollouts of a task are scored together, if their server has `verify_group`."""

    incomplete_groups: Literal["wait", "partial", "drop"] = Field(
        "wait",
        description="Groups with a failed rollout. wait: score them when a later run completes"
        " them. partial: score the others. drop: do not score them.",
    )
    min_members: int = Field(
        2, ge=1, description="With partial: score only groups with at least this many rollouts."
    )
    group_deadline_s: float | None = Field(
        None,
        gt=0,
        description="With partial and drop: seconds to wait for the rest of a group after its first"
        " rollout. null = until all of them have ended.",
    )
    verify_group_timeout_s: float = Field(
        600, gt=0, description="Time limit of the verification of one group."
    )
    num_groups_in_parallel: int = Field(
        16, ge=1, description="Verifications of groups at the same time."
    )

    @model_validator(mode="after")
    def _needs_a_policy(self) -> "GroupsConfig":
        if self.group_deadline_s is not None and self.incomplete_groups == "wait":
            raise ValueError(
                "group_deadline_s: after it a group is scored or dropped as it is: add"
                " +incomplete_groups=partial or drop"
            )
        return self


class ProducingConfig(CommandKeys):
    """How often the tasks are gone through, and where their groups go."""

    epochs: int | None = Field(
        1, ge=1, description="How many times to go through the tasks. null = without end."
    )
    longest_first: bool = Field(
        False,
        description="Begin with the tasks whose answers were longest in earlier epochs.",
    )
    task_policy: str | JsonObject = Field(
        "uniform",
        description="How the tasks of an epoch are chosen by their rewards: uniform, later, band,"
        " thompson, ucb or curriculum, or an object with the name and its numbers.",
    )
    mix: Path | None = Field(
        None,
        description="For a training: YAML with several inputs, each with its weight, agent and"
        " parameters. Use it instead of input_jsonl_fpath. It needs a buffer.",
    )
    eval: Path | None = Field(
        None,
        description="For a training: YAML with sets of held-out tasks, which are evaluated every"
        " eval_every versions of the weights.",
    )
    eval_every: int = Field(20, ge=1, description="Number of versions between two evaluations.")
    teacher: str | None = Field(
        None,
        description="Model server whose log-probs of the sampled tokens are stored with each"
        " rollout, for distillation.",
    )
    buffer: str | None = Field(
        None,
        description="URL of the buffer from which a trainer takes groups: memory, redis://…/NAME,"
        " ray://…/NAME or http://…, with its policy: ?batch=32&staleness=1.",
    )
    buffer_port: int = Field(
        0, ge=0, le=65535, description="Port of a buffer in memory. 0 = a free port."
    )

    @model_validator(mode="after")
    def _has_a_buffer_for_the_port(self) -> "ProducingConfig":
        if self.buffer_port and not (self.buffer or "").startswith("memory"):
            raise ValueError("buffer_port: only a buffer in memory has one: add +buffer=memory")
        return self

    @model_validator(mode="after")
    def _chooses_without_end(self) -> "ProducingConfig":
        if self.task_policy != "uniform" and self.epochs is not None and self.mix is None:
            raise ValueError("task_policy: an epoch would lack tasks in the end: add +epochs=null")
        return self

    @model_validator(mode="after")
    def _mixes_for_a_buffer(self) -> "ProducingConfig":
        if self.mix is not None and self.buffer is None:
            raise ValueError("mix: the shares count a trainer's groups: add +buffer=…")
        if self.eval is None and "eval_every" in self.model_fields_set:
            raise ValueError("eval_every: there is nothing to evaluate: add +eval=eval.yaml")
        if self.eval is not None and self.buffer is None:
            raise ValueError("eval: it follows a trainer's versions: add +buffer=…")
        if self.mix is not None and self.longest_first:
            raise ValueError("mix: longest_first has no effect with it: leave it out")
        return self


class SimulateTrainerConfig(Command):
    """ng_simulate_trainer: take batches from a buffer at a given pace, and train nothing."""

    has_servers: ClassVar[bool] = False

    buffer: str = Field(description="Buffer to take groups from: redis://…, ray://… or http://….")
    batch: int | None = Field(
        None, ge=1, description="Number of groups of a step. Default: the buffer's."
    )
    steps: int | None = Field(
        None, ge=1, description="Number of steps. null = until the buffer is finished."
    )
    step_s: float = Field(1.0, ge=0, description="Time of a step, in seconds.")
    sync_s: float = Field(
        0.0, ge=0, description="Time after a step until the servers have its weights."
    )
    max_staleness: int | None = Field(
        None,
        ge=0,
        description="Drop groups that are more than this many steps old. Default: the buffer's.",
    )
    max_wait_s: float | None = Field(
        None, gt=0, description="End if a batch takes longer than this. null = wait."
    )
    finish: bool = Field(True, description="At the end, let the collection end too.")
    auth_token: str | None = Field(
        None, description="Secret token of the run, needed from another machine."
    )


class SimulateTrainingConfig(Command):
    """ng_simulate_training: predict a training run from recorded rollouts."""

    has_servers: ClassVar[bool] = False

    input_jsonl_fpath: Path = Field(description="Recorded rollouts: 200 or more, with their turns.")
    limit: int = Field(10_000, ge=1, description="Number of rollouts to read from the file.")
    num_replicas: int = Field(1, ge=1, description="Number of replicas of the model server.")
    places: int | None = Field(
        None,
        ge=1,
        description="Number of calls that a replica computes at a time, such as num_threads of"
        " local_model. null = all calls at once, each slower the more there are, as"
        " with vLLM.",
    )
    recorded_replicas: int = Field(
        1, ge=1, description="Number of replicas when the file was recorded."
    )
    recorded_places: int | None = Field(
        None,
        ge=1,
        description="Value of places when the file was recorded. Default: the same as places.",
    )
    token_s: float | None = Field(
        None, gt=0, description="Seconds per token of a sequence. Default: as recorded."
    )
    batch: int = Field(32, ge=1, description="Number of groups of a step.")
    num_repeats: int | None = Field(
        None, ge=1, description="Number of rollouts of a group. Default: as recorded."
    )
    staleness: int = Field(1, ge=0, description="How many steps old the weights of a group may be.")
    filters: list[str] = Field([], description="Groups that the buffer drops: zero_variance.")
    num_samples_in_parallel: int = Field(
        64, ge=1, description="Maximum number of rollouts in flight."
    )
    step_s: float = Field(60.0, ge=0, description="Time of a step of the trainer, in seconds.")
    sync_s: float = Field(
        0.0, ge=0, description="Time after a step until the servers have its weights."
    )
    steps: int = Field(20, ge=1, description="Number of steps to predict.")
    replica_usd: float = Field(0.0, ge=0, description="Price of a replica per hour, in US dollars.")
    trainer_usd: float = Field(
        0.0, ge=0, description="Price of the trainer per hour, in US dollars."
    )
    seed: int = Field(0, description="Seed for drawing groups.")


class ClusterConfig(CommandKeys):
    """Where the attempts of a collection run."""

    executor: Literal["local", "processes", "ray"] = Field(
        "local",
        description="Where rollouts run. local: in this process. processes: in worker processes on"
        " this machine. ray: in workers on the nodes of a Ray cluster.",
    )
    num_workers: int | None = Field(
        None, ge=1, description="Workers of the executor. null = one for each CPU core."
    )

    worker_lease_s: float = Field(
        15.0,
        gt=0,
        description="If a worker gives no sign of life for this many seconds, it is treated as"
        " dead.",
    )

    shard: Shard | None = Field(
        None,
        description="Collect only this part of the tasks, into a separate file, for example"
        " 3/10. Use auto in a Slurm array, and auto/10 in an indexed job of Kubernetes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_output(cls, given: Any) -> Any:
        """Each part has its own output: give all of them the same command."""
        if not isinstance(given, dict) or not given.get("shard"):
            return given
        with suppress(ValueError):  # the field says what is wrong
            shard, output = given["shard"], given.get("output_jsonl_fpath")
            if not isinstance(shard, Shard) and output:
                shard = Shard.parse(shard)
                path = shard.path_of(Path(str(output)))
                return {**given, "shard": shard, "output_jsonl_fpath": path}
        return given

    @model_validator(mode="after")
    def _has_workers(self) -> "ClusterConfig":
        if self.num_workers is not None and self.executor == "local":
            raise ValueError("num_workers: add +executor=processes, there are no workers otherwise")
        return self


class CtlConfig(Command):
    """ng_ctl: list running collections, or steer one. Keys need no + in front, and `pause`,
    `resume` and `stop` are words."""

    has_servers: ClassVar[bool] = False
    output_jsonl_fpath: Path | None = Field(
        None, description="Output of the collection to control, if several run."
    )
    run_id: str | None = Field(
        None, description="Id of the collection in the list, or the beginning of the id."
    )
    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig,
        description="Given: the collections on the machine of this ng_run, not on this one.",
    )
    auth_token: str | None = Field(
        None, description="Secret token of that ng_run, if it is not in this user's token file."
    )
    parallelism: Parallelism | None = Field(
        None, description="Rollouts in flight: an int, `auto`, or `min-start-max`."
    )
    paused: bool | None = Field(
        None,
        description="true (or pause): start no more rollouts. false (or resume): continue.",
    )
    max_cost_usd: float | None = Field(
        None, description="Cost limit of the run, in US dollars. null = none."
    )
    max_total_tokens: int | None = Field(
        None, description="Limit on the tokens of the run. null = none."
    )
    max_minutes: float | None = Field(
        None,
        description="Start no more rollouts this many minutes after the start. null = no limit.",
    )
    cancel: str | list[str] | None = Field(
        None,
        description="Cancel rollouts in flight, given as <task_id>:<rollout_index>. They are"
        " collected again later.",
    )
    drop: bool = Field(
        False,
        description="Record cancelled rollouts as failed, so that they are not collected again.",
    )
    requeue: str | list[str] | None = Field(
        None, description="Start rollouts again that are in flight or were cancelled."
    )
    stop: bool = Field(
        False, description="true (or the word stop): end the run. Rollouts in flight may finish."
    )
    now: bool = Field(False, description="With stop: cancel rollouts in flight.")
    wait: bool = Field(False, description="With pause: return when nothing is in flight.")
    dry_run: bool = Field(False, description="Print what would change, without changing it.")


NO_KNOBS = frozenset(
    {
        *Command.model_fields,
        *("output_jsonl_fpath", "run_id", "head_server", "auth_token"),
        *("stop", "now", "wait", "dry_run"),
    }
)
"""The keys that are not sent to the run as they are."""


class ReadingCommand(Command):
    """Keys of the commands that read files of rollouts. Words without a `=` are files."""

    has_servers: ClassVar[bool] = False
    inputs: list[str] = Field(
        [],
        description="Files of rollouts, or folders with such files. You can also give them without"
        " inputs=.",
    )


class OfInputCommand(ReadingCommand):
    """Keys of the commands that can leave out the rollouts of other inputs."""

    input_jsonl_fpath: Path | None = Field(
        None, description="Use only rollouts of the tasks in this file."
    )


PAPER = Field(
    None,
    description="Folder for tables (markdown, LaTeX, CSV) and figures (SVG, PDF) of the results.",
)

LABELS = Field(
    [],
    description="For paper: names of the runs, in the order of the files. Files with the same name"
    " are one run.",
)


class CompareConfig(OfInputCommand):
    """ng_compare: compare files of rollouts task by task."""

    where: str | None = Field(
        None, description="Compare only rollouts that match this filter: finish_reason == 'stop'."
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")
    paper: Path | None = PAPER
    labels: list[str] = LABELS


class CheckRolloutsConfig(ReadingCommand):
    """ng_check_rollouts: find rollouts whose reward cannot be trusted."""

    ignore: list[str] = Field([], description="Names of checks to leave out.")
    verdicts_fpath: Path | None = Field(
        None, description="JSONL file to write, with one line per rollout and all its findings."
    )
    num_examples: int = Field(3, ge=0, description="Number of examples shown for each finding.")
    max_unhealthy_fraction: float | None = Field(
        None, ge=0, le=1, description="Exit 1 if more than this share of the rollouts is unhealthy."
    )


class JudgeAgreementConfig(OfInputCommand):
    """ng_judge_agreement: how far judges agree with each other, and with people's labels."""

    where: str | None = Field(
        None, description="Count only rollouts that match this filter: agent == 'essay_agent'."
    )
    labels: dict[str, str] = Field(
        {},
        description="What your labels mean for a criterion: +labels.good=correct=yes. Labels such"
        " as correct=yes or clear=4 need no entry.",
    )
    weights: Literal["linear", "quadratic"] = Field(
        "quadratic", description="How kappa weights a difference on a scale."
    )


class CheckOverlapConfig(ReadingCommand):
    """ng_check_overlap: find rows of benchmarks in rows to train on."""

    inputs: list[str] = Field(
        [],
        description="JSONL files with training data, in any format. You can also give them without"
        " inputs=.",
    )
    dataset: str | list[str] = Field(
        [], description="Names of training datasets: [dapo_math_17k,gsm8k_train]."
    )
    benchmark: str | list[str] = Field(
        [], description="Benchmarks, by name or by the path of a definition: [gsm8k,math_500]."
    )
    against: str | list[str] = Field(
        [],
        description="Files of tasks that must not be in the training data, such as your test set.",
    )
    min_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="A row counts as found if at least this share of its sequences of 13 words is"
        " found.",
    )
    max_overlap: float | None = Field(
        None, ge=0, le=1, description="Exit 1 if more than this share of a benchmark was found."
    )
    clean_fpath: Path | None = Field(
        None,
        description="JSONL file to write, with the training rows that contain no text of a"
        " benchmark.",
    )
    num_examples: int = Field(3, ge=0, description="Number of examples shown for each benchmark.")


class BranchConfig(ReadingCommand):
    """ng_branch: make tasks that begin in the middle of stored rollouts."""

    turn: int = Field(
        ge=1, description="The first turn that the model is asked again. Turns are counted from 1."
    )
    where: str | None = Field(None, description="Use only rollouts that match this filter.")
    output_jsonl_fpath: Path = Field(description="File for the tasks.")


class ScanConfig(ReadingCommand):
    """ng_scan: look for what went wrong inside rollouts: loops, edited tests, refusals, yours."""

    scanner: str | list[str] = Field(
        [],
        description="Names of built-in scanners. If you name no scanner at all, all of them are"
        " used.",
    )
    regex: dict[str, str] = Field(
        {}, description="Your scanners by regular expression: +regex.reset='[Cc]onnection reset'."
    )
    rule: dict[str, str] = Field(
        {},
        description='Your scanners by a filter over turns: +rule.late="any(error and seconds >'
        ' 60)".',
    )
    function: dict[str, str] = Field(
        {},
        description="Your scanners by a function that gets a rollout:"
        " +function.mine=checks.py:find.",
    )
    question: dict[str, str] = Field(
        {},
        description="Your scanners by a question to a model: +question.cheats='Does the agent edit"
        " a test?'.",
    )
    question_model: str | None = Field(
        None,
        description="For question: a provider's model (openai/gpt-5-mini), the URL of an endpoint,"
        " or a YAML file with a model server.",
    )
    num_samples_in_parallel: int = Field(
        16, ge=1, description="For question: maximum number of requests in flight."
    )
    max_cost_usd: float | None = Field(
        None, gt=0, description="For question: cost limit in US dollars."
    )
    stop_early: bool = Field(
        True, description="For question: stop if the first requests all fail with the same error."
    )
    where: str | None = Field(None, description="Scan only rollouts that match this filter.")
    labels: dict[str, str] = Field(
        {},
        description="What your labels mean for a scanner: +labels.bad=loop=yes. Labels such as"
        " loop=yes or loop=no need no entry.",
    )
    num_examples: int = Field(3, ge=0, description="Number of examples shown for each scanner.")
    time_limit_s: float = Field(
        10.0, gt=0, description="CPU time after which a scanner is stopped, for one rollout."
    )
    dry_run: bool = Field(
        False, description="Print what would be scanned and asked, without scanning."
    )


class MergeConfig(ReadingCommand):
    """ng_merge: merge outputs into one: the shards of a collection, or any files of rollouts."""

    output_jsonl_fpath: Path = Field(description="The file to write. It must not exist.")
    input_jsonl_fpath: Path | None = Field(
        None,
        description="Tasks. The rollouts are written in their order, and tasks without rollouts are"
        " reported.",
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")


class ImportConfig(ReadingCommand):
    """ng_import: make rollouts of the runs of other tools: inspect, Harbor, verifiers and more."""

    input_path: Path | None = Field(
        None,
        alias="input",
        description="The file or the folder to read. You can also give it without input=.",
    )
    output_jsonl_fpath: Path = Field(description="The file to write. It must not exist.")
    format: str | None = Field(
        None,
        description="Read only files of this format. Default: the format is recognized by the"
        " content.",
    )
    reward_key: str | None = Field(
        None, description="Score that becomes the reward. Default: the first score."
    )
    agent_name: str | None = Field(
        None,
        description="Agent of the rollouts, whose resources server can verify them again. Default:"
        " the agent's name in the other tool.",
    )


class ViewConfig(ReadingCommand):
    """ng_view: look at rollouts in a browser. A folder is searched for files of rollouts."""

    port: int = Field(6300, ge=0, le=65535, description="Port on this machine. 0 = a free port.")
    open_browser: bool = Field(False, alias="open", description="Open the page in a browser.")
    static_fpath: Path | None = Field(
        None, alias="static", description="Write one HTML file to share, instead of serving a page."
    )
    where: str = Field("", description="Filter at the start: reward < 0.5.")
    search: str = Field("", description="Text, or /regular expression/, to find in the lines.")
    sort: str = Field(
        "", description="Column to sort by. With a leading -, the largest values come first."
    )


class ReweightConfig(ReadingCommand):
    """ng_reweight: compute rewards again from stored components, without verifiers."""

    factors: dict[str, float] = Field(
        {},
        description="Factor of each component: {coherence: 2}. Components of groups without a"
        " factor keep their weight. A rollout's individual reward becomes the sum over"
        " the named scores.",
    )
    output_jsonl_fpath: Path = Field(description="The file to write. It must not exist.")
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")


class ReportConfig(OfInputCommand):
    """ng_report: write a page with figures and plots of rollouts."""

    output_fpath: Path = Field(Path("report.html"), description="The page to write.")
    title: str = Field("Rollouts", description="Title of the page.")
    where: str | None = Field(
        None, description="Report only on rollouts that match this filter: reward < 0.5."
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")
    paper: Path | None = PAPER
    labels: list[str] = LABELS


class SelectionConfig(OfInputCommand):
    """Keys of the commands that write stored rollouts in another form."""

    output_fpath: Path | None = Field(
        None, description="File to write. A report is written next to it."
    )
    where: str | None = Field(
        None,
        description="Keep only rollouts that match this filter: reward > 0.5 and num_turns < 8.",
    )
    min_reward: float | None = Field(None, description="Keep rollouts with at least this reward.")
    max_reward: float | None = Field(None, description="Keep rollouts with at most this reward.")
    top_k_per_group: int | None = Field(
        None, ge=1, description="Keep this many of each task's rollouts, the highest rewards first."
    )
    dedupe: bool = Field(
        False, description="Keep only one of a task's rollouts with the same text."
    )
    drop_truncated: bool = Field(False, description="Leave out responses that were cut off.")
    drop_zero_variance: bool = Field(
        False, description="Leave out tasks whose rollouts all have the same reward."
    )
    test_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the tasks to write to <stem>_test. They are chosen by a hash.",
    )
    split_seed: int = Field(0, description="Seed for choosing the tasks of the test file.")
    reward_key: str | None = Field(
        None,
        description="Field of the line to use as reward, with dots for nested fields: scores.style."
        " Default: the group-level reward if the group was scored, else reward.",
    )
    label_key: str | None = Field(
        None, description="Field of the row with the right answer. Default: expected_answer, …"
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")
    arguments: Literal["text", "object"] = Field(
        "text", description="How a tool call's arguments are written: as JSON text, or parsed."
    )


class ExportConfig(SelectionConfig):
    """ng_export: write rollouts in the format of a trainer."""

    format: str | None = Field(
        None, description="Name of the format. Without it, all formats are listed."
    )
    advantage: Literal["grpo", "dr_grpo", "rloo"] | None = Field(
        None,
        description="Add a column `advantage`, computed over all verified rollouts of a task."
        " trl_rollout always has this column, by default with grpo.",
    )
    otel: OtelConfig = Field(
        default_factory=OtelConfig, description="OpenTelemetry, for format=otlp."
    )


class PairRule(CommandKeys):
    """One way to choose pairs among the rollouts of a task."""

    type: Literal["correctness", "coherence", "best_worst", "top_bottom", "length_matched"]
    k: int = Field(default=1, ge=1, description="top_bottom: how many of each end.")
    min_margin: float | None = Field(
        default=None, ge=0, description="The difference of the rewards must be larger than this."
    )
    max_length_ratio: float = Field(
        default=1.25, ge=1, description="length_matched: longer text over shorter, in words."
    )
    max_per_task: int | None = Field(
        default=None, ge=1, description="Pairs of one task by this rule."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value


class PairsConfig(SelectionConfig):
    """ng_pairs: write preference pairs of stored rollouts."""

    format: str = Field("trl_dpo", description="Name of the preference format.")
    rules: list[PairRule] = Field(
        [],
        description="Rules for pairs: correctness, best_worst, top_bottom, length_matched,"
        " coherence. You can also give objects with type, k, min_margin,"
        " max_length_ratio, max_per_task. Default: best_worst.",
    )
    rules_fpath: Path | None = Field(None, description="YAML file with the list `rules`.")
    max_per_task: int | None = Field(
        None, ge=1, description="Maximum number of pairs of one task, over all rules."
    )
    max_pairs: int | None = Field(
        None, ge=1, description="Maximum number of pairs in total, spread evenly over the tasks."
    )
    dedupe_pairs: bool = Field(
        True, description="Keep only one of a task's pairs with the same texts."
    )
    drop_truncated: bool = Field(True, description="Leave out responses that were cut off.")
    drop_empty: bool = Field(True, description="Leave out empty responses.")
    drop_identical: bool = Field(True, description="Leave out pairs of two equal responses.")
    prompt: str = Field(
        "chosen",
        description="Prompt of a pair. chosen: the chosen rollout's prompt. arm:<id>: the prompt of"
        " that arm. Or a YAML file with `system` and `user` templates, which are filled"
        " from the row.",
    )
    allow_empty: bool = Field(False, description="Exit with 0 even if no pair was found.")


FOLDER = "Folder of the server: resources_servers/<name>, in the working folder."


class EntrypointConfig(Command):
    """Keys of ng_test."""

    entrypoint: str = Field(description=FOLDER)


class InitConfig(EntrypointConfig):
    """Keys of ng_init_resources_server."""

    kind: Literal["answer", "tools", "judge", "game", "shell"] | None = Field(
        None,
        description="Kind of environment: an answer that a rule checks, tools with a state, an"
        " answer that a judge grades, a game, or work in a shell. In a terminal, you"
        " are asked if you do not give it. In a script, the default is answer.",
    )


class PackageConfig(Command):
    """ng_package_environment: write an environment as a package for verifiers and prime-rl."""

    environment: str = Field(description="Name of a resources server of rollout_kit.")
    output_dir: str | None = Field(
        None, description="Folder of the package. The package and its module get the folder's name."
    )
    input_jsonl_fpath: str | None = Field(
        None, description="Rows of the package. Default: the example rows of the environment."
    )
    model_name: str = Field("gpt-4.1-mini", description="Model in eval.toml.")
    base_url: str = Field(
        "https://api.openai.com/v1", description="Endpoint in eval.toml, with its version."
    )
    api_key_var: str = Field(
        "OPENAI_API_KEY", description="Environment variable with the key of that endpoint."
    )
    num_repeats: int = Field(1, ge=1, description="Rollouts of each task.")


ROOTS = Field(
    {},
    description="Root file systems for the images in Dockerfiles, as a mapping of image names"
    " to folders. `machine` means the programs of this machine.",
)


class HarborConfig(CommandKeys):
    """Tasks in Harbor's folders."""

    harbor_tasks: str | list[str] | None = Field(
        None,
        description="Tasks in Harbor's format: the folder of a task, a folder with many tasks, or a"
        " list of folders.",
    )
    roots: dict[str, str] = ROOTS


class CheckHarborConfig(ReadingCommand):
    """ng_check_harbor_tasks: show which tasks run here, and which line prevents it."""

    inputs: list[str] = Field(
        [],
        description="Folders of tasks, or folders with many tasks. You can also give them without"
        " inputs=.",
    )
    roots: dict[str, str] = ROOTS
    allowed_hosts: list[str] = Field([], description="Hosts that tasks may be allowed to reach.")
    run: bool = Field(
        False, description="Run each task with its solution, and with an agent that does nothing."
    )


class MakeTasksConfig(ReadingCommand):
    """ng_make_tasks: plant faults in packages that have tests, and write tasks to repair them."""

    inputs: list[str] = Field(
        [],
        description="Packages: pypi:<name>, pypi:<name>==<version>, or a folder with a project and"
        " its tests. You can also give them without inputs=.",
    )
    output_dir: Path = Field(Path("tasks"), description="Folder for the tasks and rows.jsonl.")
    num_tasks: int = Field(20, ge=1, description="Maximum number of tasks of one package.")
    max_minutes: float = Field(10, gt=0, description="Time limit for trying faults in one package.")
    kinds: list[Literal["mutation", "removed_function", "earlier_release"]] = Field(
        ["mutation", "removed_function", "earlier_release"],
        description="Kinds of faults: changed code, functions without a body, lines of the previous"
        " release.",
    )
    python: str = Field(
        f"{sys.version_info[0]}.{sys.version_info[1]}",
        json_schema_extra={"shown_default": "that of rollout_kit"},
        description="Python version of the tasks.",
    )
    suite_timeout_s: float = Field(60, gt=0, description="Time limit of one run of the tests.")
    seed: int = Field(0, description="Seed for drawing faults.")


class BuildRootConfig(ReadingCommand):
    """ng_build_root: build root file systems, and keep them in the cache."""

    inputs: list[str] = Field(
        [],
        description="Dockerfiles, or folders with a Dockerfile. You can also give them without"
        " inputs=.",
    )
    base: str | None = Field(
        None, description="An image to build without a Dockerfile, such as debian:bookworm."
    )
    roots: dict[str, str] = ROOTS
    packages: list[str] = Field(
        ["pytest"], description="Installed Python packages that sessions can import."
    )


class AuditConfig(Command, HarborConfig):
    """ng_audit_verifier: check that a verifier's verdicts can be trusted."""

    asks_policy: ClassVar[bool] = False

    entrypoint: str = Field("", description=FOLDER)
    resources_server_name: str | None = Field(
        None, description="Verifier to audit. Optional if there is only one."
    )
    input_jsonl_fpath: str | None = Field(
        None,
        description="Rows with gold_output or gold_items. Default: data/*.jsonl in the server's"
        " folder.",
    )
    benchmark: str | None = Field(
        None,
        description="Name of a benchmark, to audit its verifier with its rows. The rows need"
        " gold_output.",
    )
    dataset: str | None = Field(
        None, description="Name of a training dataset, to audit its verifier with its rows."
    )
    output_fpath: Path | None = Field(None, description="JSON file for all findings.")
    num_rows: int = Field(20, ge=1, description="Number of rows to draw at random.")
    seed: int = Field(0, description="Seed for drawing the rows.")
    verify_timeout_s: float = Field(
        30,
        gt=0,
        description="Time limit of one verification. A slower verification counts as having no"
        " verdict.",
    )
    slow_s: float = Field(5, gt=0, description="Flag verdicts that take longer than this.")


class ListConfig(Command, CheckoutConfig):
    """ng_list: show the servers, agents, benchmarks and datasets that can be used."""

    has_servers: ClassVar[bool] = False

    kind: Literal["environment", "benchmark", "dataset", "agent", "model"] | None = Field(
        None, description="List only this kind."
    )
    benchmarks: bool = Field(False, description="The same as kind=benchmark.")
    check: bool = Field(
        False, description="Check every YAML file of the checkout of NeMo Gym instead."
    )

    @model_validator(mode="after")
    def _has_one_kind(self) -> Self:
        if self.benchmarks and self.kind not in (None, "benchmark"):
            raise ValueError(f"kind={self.kind} and benchmarks=true: leave one of them out")
        return self


class PrepareDataConfig(Command, CheckoutConfig):
    """ng_prepare_data: write the agents' datasets as files of tasks that their verifiers accept."""

    asks_policy: ClassVar[bool] = False

    output_dirpath: Path | None = Field(
        None,
        description="Folder for train.jsonl, validation.jsonl, example.jsonl and summary.json."
        " Optional with benchmark and dataset.",
    )
    benchmark: str | None = Field(
        None,
        description="Name of a benchmark whose rows are downloaded. For a benchmark of a NeMo Gym"
        " checkout, its script is run.",
    )
    dataset: str | None = Field(
        None, description="Name of a training dataset whose rows are downloaded."
    )
    mode: Literal["train_preparation", "example_validation"] | None = Field(
        None, description="Write only train and validation, or only example. Default: all."
    )
    should_download: bool = Field(
        True,
        description="Download datasets that are missing at their jsonl_fpath from Hugging Face.",
    )
    limit: int | None = Field(
        None, ge=0, description="Use only this many rows of each dataset. null or 0 = all."
    )
    drop_duplicates: bool = Field(False, description="Drop repeated rows.")


class MergeLoraConfig(Command):
    """ng_merge_lora: write a model with a LoRA adapter merged in."""

    base: str = Field(
        description="Folder of the model that the adapter was trained on, or its name in the"
        " Hugging Face cache."
    )
    adapter: Path = Field(description="Folder of the adapter, as saved by PEFT.")
    output: Path = Field(description="Folder to write.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of the merged weights. auto = the base's."
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="Largest allowed difference of log-probs between the merged model and the base"
        " with the adapter. Default: 0.001 in float32, else 0.1.",
    )
    any_base: bool = Field(
        False, description="Merge even if the adapter was trained on another base."
    )


class PlanVllmConfig(Command):
    """ng_plan_vllm: show whether a model fits on GPUs, and with how many sequences."""

    model_name: str = Field(
        description="Folder with config.json, a model in the Hugging Face cache, or a known name."
    )
    gpus: str | None = Field(
        None,
        description="4xH100, 2x80GB, or a number of this machine's GPUs. Default: all of them.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Type of the weights. auto = the checkpoint's."
    )
    quantization: Literal["fp8", "int4"] | None = Field(
        None, description="Quantization of weights that are not quantized in the checkpoint."
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field("auto", description="Type of the KV cache.")
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="Maximum length of a sequence in tokens. Default: the model's, at most 8192.",
    )
    sequence_tokens: int | None = Field(
        None,
        ge=1,
        description="Average length of a sequence with its prompt, in tokens. Default: half of"
        " max_model_len.",
    )
    gpu_memory_utilization: float = Field(
        0.92, gt=0, le=1, description="Share of each GPU's memory that vLLM may use."
    )


class PlanTrainingConfig(Command):
    """ng_plan_training: show the memory that a training takes on each GPU."""

    model_name: str = Field(
        description="Folder with config.json, a model in the Hugging Face cache, or a known name."
    )
    algorithm: Literal["sft", "dpo", "grpo", "ppo"] = Field(
        "grpo", description="Training algorithm."
    )
    has_reference: bool = Field(
        True, description="Whether there is a reference model, for a KL term."
    )
    reward_model_name: str | None = Field(
        None, description="Reward model of PPO. Default: as large as the policy."
    )
    critic_model_name: str | None = Field(
        None, description="Critic of PPO. Default: as large as the policy."
    )
    lora_rank: int | None = Field(
        None, ge=1, description="Train adapters of this rank. Default: all weights."
    )
    zero: int = Field(0, ge=0, le=3, description="ZeRO stage. 3 also stands for FSDP.")
    num_gpus: int = Field(1, ge=1, description="Number of GPUs for the training.")
    gpu_gb: float = Field(80, gt=0, description="Memory of a GPU in GB.")
    optimizer: Literal["adamw", "adamw_8bit", "sgd"] = Field("adamw", description="Optimizer.")
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="What is kept in CPU memory."
    )
    micro_batch: int = Field(1, ge=1, description="Number of sequences per GPU at a time.")
    tokens: int = Field(2048, ge=1, description="Length of a sequence with its prompt, in tokens.")
    recompute: bool = Field(True, description="Recompute activations (gradient checkpointing).")
    placement: Literal["colocated", "apart"] = Field(
        "colocated",
        description="colocated: the policy generates on the GPUs that train. apart: on other GPUs.",
    )


Arms = str | list[Any] | JsonObject | None

ARMS = Field(
    None,
    description="Several ways of asking each task: prompts, sampling parameters, seeds. Give a"
    " list, or a YAML file with a list.",
)


class RunConfig(Command, HttpClientConfig, ServersConfig, HarborConfig):
    """ng_run: start every server of the configuration, and run them until Ctrl-C."""

    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig, description="Address of the head server."
    )
    default_host: str = Field("127.0.0.1", description="Default address that servers listen on.")
    request_timeout_s: float = Field(
        600, gt=0, description="Time limit of one request to a server, in seconds."
    )
    dry_run: bool = Field(False, description="Check everything and start nothing.")
    reload: bool = Field(False, description="Restart a server when a file of its code changes.")


class TimeLimitsConfig(CommandKeys):
    """How long one step of a rollout may take."""

    request_timeout_s: float = Field(
        600, gt=0, description="Time limit of one request to a server, in seconds."
    )
    rollout_timeout_s: float = Field(
        3600, gt=0, description="Time limit of one rollout, including all attempts."
    )
    verify_timeout_s: float = Field(120, gt=0, description="Time limit of one verification.")


class ReachConfig(Command, TimeLimitsConfig, HttpClientConfig, ServersConfig):
    """Keys of the commands that start servers, or use the servers of a running ng_run."""

    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig,
        description="Address of a running ng_run, if config_paths is not given.",
    )

    @property
    def most_in_flight(self) -> int | None:
        """The largest number of rollouts in flight; None if it has no bound."""
        raise NotImplementedError

    @property
    def longest_verification_s(self) -> float:
        """Time limit of the longest request to a resources server."""
        return self.verify_timeout_s

    @property
    def starts_servers(self) -> bool:
        """Whether servers are started, and not only described."""
        return True


class PartConfig(CommandKeys):
    """Which part of the input to take."""

    limit: int | None = Field(
        None, ge=0, description="Use only this many rows of the input. null or 0 = all."
    )
    only: str | None = Field(
        None,
        description="Collect only this rollout: <task_id>:<rollout_index>, or"
        " <task_id>:<arm>:<rollout_index>.",
    )


class OutputConfig(CommandKeys):
    """Where rollouts are written, and how."""

    output_jsonl_fpath: Path | None = Field(None, description="File to append rollouts to.")
    fsync: Literal["row", "second", "exit"] = Field(
        "second", description="When to force rows to disk: after each, every second, or at exit."
    )
    disable_aggregation: bool = Field(False, description="Do not write a metrics file.")
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")
    throughput_log: Path | None = Field(
        None,
        description="CSV file to which each run appends a line: date, rollouts, seconds, rates,"
        " mean reward, bottleneck.",
    )


class LimitsConfig(CommandKeys):
    """When a run ends, and how often it tries."""

    max_attempts: int = Field(3, ge=1, description="Maximum number of attempts at a rollout.")
    max_cost_usd: float | None = Field(
        None,
        gt=0,
        description="Cost limit of this run, in US dollars. To continue, run the command again.",
    )
    max_total_tokens: int | None = Field(
        None, gt=0, description="Limit on the input and output tokens of this run."
    )
    max_minutes: float | None = Field(
        None, gt=0, description="Start no rollouts this many minutes after the first request."
    )
    stop_early: bool = Field(
        True, description="Stop if the first rollouts all fail with the same error."
    )
    max_failed_fraction: float = Field(
        0.0, ge=0, le=1, description="Exit 0 up to this share of rollouts without a result."
    )
    drain_timeout_s: float = Field(
        60, ge=0, description="Time for rollouts in flight to end after Ctrl-C or max_minutes."
    )
    dry_run: bool = Field(False, description="Print the plan and the first request, send nothing.")


class DashboardConfig(CommandKeys):
    """A page on which you can follow and steer the run."""

    dashboard: bool = Field(
        False, description="Serve a page on this machine that shows and controls the run."
    )
    dashboard_port: int = Field(
        0, ge=0, le=65535, description="Port of the dashboard. 0 = a free port."
    )

    @model_validator(mode="after")
    def _has_a_page_for_the_port(self) -> Self:
        if "dashboard_port" in self.model_fields_set and not self.dashboard:
            raise ValueError("dashboard_port: add +dashboard=true, there is no page otherwise")
        return self


class RolloutsCommand(
    PartConfig,
    OutputConfig,
    LimitsConfig,
    DashboardConfig,
    ReachConfig,
    GroupsConfig,
    TrackersConfig,
):
    """Keys of the commands that write rollouts."""

    @property
    def longest_verification_s(self) -> float:
        return max(self.verify_timeout_s, self.verify_group_timeout_s)

    @property
    def starts_servers(self) -> bool:
        return not self.dry_run


class TasksConfig(HarborConfig):
    """Which tasks an agent gets."""

    agent_name: str | None = Field(
        None,
        description="Agent to run. Optional if there is a single agent, or if the rows name their"
        " agents.",
    )
    agent_map: dict[str, str] = Field(
        {},
        description="Run rows with other agents than they name: {named: other}. The name of a row"
        " is its agent_ref or its task_source. _default is for all names without an"
        " entry.",
    )
    fan_out: dict[str, list[str]] = Field(
        {},
        description="Run rows with several agents: {named: [one, another]}. Each of these agents"
        " runs every row that names `named` in its agent_ref or its task_source.",
    )
    input_jsonl_fpath: str | None = Field(
        None,
        description="Your tasks, one JSON object per line, for example tasks.jsonl. The file may"
        " end in .gz or .zst. - is standard input.",
    )
    dataset: str | None = Field(
        None,
        description="Instead of input_jsonl_fpath: a dataset that is listed under the agent, or the"
        " name of a training dataset, with its rows, prompt, agent and verifier."
        " `ng_list +kind=dataset` lists the names. For your own dataset, give the path"
        " of its YAML file.",
    )
    benchmark: str | None = Field(
        None,
        description="Name of a benchmark, with its rows, prompt, agent, verifier, sampling and"
        " repeats. `ng_list +kind=benchmark` lists the names. For your own benchmark,"
        " give the path of its YAML file. ng_collect_rollouts also accepts a list:"
        " [aime25,gpqa_diamond].",
    )
    strict_input: bool = Field(
        False, description="Stop at a malformed line, before the first request."
    )
    task_data_validation: Literal["error", "warn", "off"] = Field(
        "error",
        description="What to do if rows break the schema of their server (its task_data.py): stop"
        " before the first request, print a warning, or do not check.",
    )


class GoalConfig(CommandKeys):
    """When a run has enough repeats of its tasks. Both keys may be given."""

    ci: float | None = Field(
        None,
        gt=0,
        description="End the run once the 95 % interval of the mean reward over these tasks has at"
        " most this half-width, such as 0.01.",
    )
    decided: bool = Field(
        False,
        description="A task whose first rewards are all equal gets no more rollouts.",
    )
    first: int | None = Field(
        None,
        ge=2,
        description="Rollouts that each task gets in any case. Default: half of num_repeats.",
    )

    @model_validator(mode="after")
    def _says_when(self) -> "GoalConfig":
        if self.ci is None and not self.decided:
            raise ValueError("goal: say when the run has enough: goal.ci=0.01, goal.decided=true")
        return self


Conversion = Literal["text", "letter", "options", "lettered", "last_boxed", "json"]


class FieldSource(CommandKeys):
    """Source of a field of a task: the column `from` (`a.b` for nested ones, `a.*.b` for each of a
    list), reduced to a group of `regex` and converted with `as`; or a constant `value`."""

    path: str | None = Field(None, alias="from", description="Column that has the value.")
    regex: str | None = Field(
        None,
        description="Take what this expression finds: its group `answer`, or else its first group.",
    )
    taken_as: Conversion | None = Field(None, alias="as", description="Convert the value.")
    text: str | None = Field(None, description="A text with columns in braces: {question}.")
    value: Any = Field(None, description="A constant for all rows.")

    @field_validator("regex")
    @classmethod
    def _has_a_group(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                groups = re.compile(value).groups
            except re.error as error:
                raise ValueError(f"is not a regular expression: {error}") from None
            if groups < 1:
                raise ValueError("needs a group, as in  ####\\s*(.+)")
        return value

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        value = {"from": value} if isinstance(value, str) else value
        if isinstance(value, dict) and not value.keys() & {"from", "value", "text"}:
            raise ValueError("needs `from`, the name of a column, or a constant `value`")
        return value


class SamplingConfig(CommandKeys):
    """How often each task is asked, and how."""

    num_repeats: int | dict[str, int] = Field(
        1, description="Rollouts per task: an int, or a mapping from agents to ints, with _default."
    )
    num_repeats_add_seed: bool = Field(
        False,
        description="Send the rollout's index as `seed`, so that repeats differ reproducibly.",
    )
    goal: GoalConfig | None = Field(
        None,
        description="End the run early, when fewer repeats than num_repeats are enough. Keys: ci,"
        " decided and first.",
    )
    responses_create_params: JsonObject = Field(
        {}, description="Override each row's values: temperature, max_output_tokens, model, …"
    )
    prompt_config: str | None = Field(
        None, description="YAML with `system` and `user` templates to fill from the row's fields."
    )
    prompt: str | None = Field(
        None,
        min_length=1,
        description="The prompt, as a jinja template with the row's fields: Solve {{ question }}."
        " Or a file with a template, whose name ends in .jinja or .j2.",
    )
    map: str | dict[str, FieldSource] = Field(
        {},
        description="Mapping of task fields to the columns from which they are filled: {question:"
        " Frage}. Or the name of a known format, such as gsm8k.",
    )
    arms: Arms = ARMS
    arms_seed: int = Field(0, description="Seed of the run, for arms with `seed: derived`.")


class PaceConfig(CommandKeys):
    """How many rollouts run at the same time."""

    num_samples_in_parallel: Parallelism = Field(
        Parallelism.parse(64),
        description="Maximum number of rollouts in flight: an int, `auto` (adaptive), or"
        " `min-start-max`.",
    )
    model_share: float = Field(
        1.0,
        gt=0,
        description="Share of the model server's time, relative to other runs that use it.",
    )
    model_priority: int = Field(
        0,
        description="Priority at a model server that several runs share. Waiting requests with a"
        " higher priority are served first.",
    )
    warmup: int = Field(0, ge=0, description="Dummy requests to send before the clock starts.")
    park_after_s: float = Field(
        1.0, ge=0, description="After this many seconds, a pending verification frees its slot."
    )

    @property
    def most_in_flight(self) -> int | None:
        return self.num_samples_in_parallel.fixed


class ResumeConfig(CommandKeys):
    """How a run continues its output."""

    resume: Literal["auto", "append", "fresh"] = Field(
        "auto",
        description="auto: continue. append: collect with other settings into the same file. fresh:"
        " start over, and rename the old files.",
    )
    resume_from_cache: bool = Field(True, description="Accepted. The same as resume=auto.")
    save_turns: Literal["auto"] | bool = Field(
        "auto",
        description="Store each turn of long rollouts, so that a restarted run can continue them."
        " auto: only if a stored response can be verified again.",
    )
    upload_rollouts: bool = Field(False, description="Accepted for NeMo Gym. Nothing is uploaded.")

    @field_validator("resume_from_cache")
    @classmethod
    def _continues(cls, value: bool) -> bool:
        if not value:
            raise ValueError("a run continues its output; +resume=fresh moves old files aside")
        return value


class InvalidVerdictsConfig(CommandKeys):
    """What a verdict of NeMo Gym's verifiers with `invalid_judge_response` is."""

    retry_invalid_judge_responses: bool = Field(
        False,
        description="Leave a response without a verdict if its verifier sets"
        " invalid_judge_response, and verify it again. Off: its reward counts.",
    )


class VerdictsConfig(InvalidVerdictsConfig):
    """How rollouts are verified."""

    skip_verification: bool = Field(
        False, description="Collect responses without verdicts or rewards."
    )
    audit_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of rollouts to verify twice, to check that the verdicts agree. Only for"
        " verifiers that need only the response (stateless).",
    )


class CanaryConfig(CommandKeys):
    """An estimate from a few rollouts, before the others."""

    confirm: bool = Field(
        False,
        description="First collect a small random sample (canary), show the estimated cost, and ask"
        " before continuing.",
    )
    num_canary: int = Field(
        50,
        ge=5,
        description="Size of the canary: the number of randomly drawn rollouts for an estimate.",
    )


class CollectConfig(
    TasksConfig,
    SamplingConfig,
    PaceConfig,
    ResumeConfig,
    VerdictsConfig,
    CanaryConfig,
    RolloutsCommand,
    ClusterConfig,
    ProducingConfig,
):
    """ng_collect_rollouts: run tasks through an agent, verify each, append rollouts to a JSONL
    file."""


class EstimateConfig(CollectConfig):
    """ng_estimate: collect a few rollouts, drawn at random, and estimate what all will take: money,
    tokens, time, failures."""


class ControlConfig(Command):
    """Keys of ng_status and ng_stop, which address an ng_run."""

    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig, description="Address of the ng_run's head server."
    )
    auth_token: str | None = Field(
        None, description="Secret token of the run, if it is not in this user's token file."
    )


class StatusConfig(ControlConfig):
    """ng_status: show the health and the load of the servers of an ng_run."""

    web: bool = Field(
        False, description="Serve a page with the servers and the running collections."
    )
    port: int = Field(0, ge=0, le=65535, description="Port of the dashboard. 0 = a free port.")


class ReverifyConfig(InvalidVerdictsConfig, RolloutsCommand):
    """ng_reverify: verify stored responses again, or for the first time, without a policy model."""

    asks_policy: ClassVar[bool] = False

    benchmark: str | None = Field(
        None, description="Name of the rollouts' benchmark, whose verifier is used."
    )
    dataset: str | None = Field(None, description="Or the name of the rollouts' training dataset.")

    input_jsonl_fpath: str | None = Field(
        None,
        description="Collected rollouts, or their _unverified or _failures file. The file may end"
        " in .gz or .zst. - is standard input.",
    )
    num_samples_in_parallel: int = Field(
        50, ge=1, description="Maximum number of verifications in flight."
    )
    stale_only: bool = Field(
        False, description="Verify only rollouts with an outdated verdict. Copy the others."
    )
    resume: Literal["auto", "fresh"] = Field(
        "auto", description="auto: continue. fresh: rename the old files and verify everything."
    )

    @property
    def most_in_flight(self) -> int | None:
        return self.num_samples_in_parallel


class CheckTokensConfig(ReachConfig):
    """ng_check_tokens: score the tokens of stored rollouts again, by the policy that sampled them,
    and compare the log-probs."""

    input_jsonl_fpath: str | None = Field(None, description="Collected rollouts with token ids.")
    model_server: str = Field("policy_model", description="The model server that scores.")
    limit: int | None = Field(
        None, ge=0, description="Check only this many rollouts. null or 0 = all."
    )
    num_samples_in_parallel: int = Field(
        8, ge=1, description="Number of turns that are scored at the same time."
    )
    keep_as: str = Field(
        "",
        description="Only store the log-probs of this model server, under this name, for ng_view."
        " Nothing is compared. For example: reference.",
    )

    @property
    def most_in_flight(self) -> int | None:
        return self.num_samples_in_parallel


class KillsConfig(CommandKeys):
    """What ng_chaos kills, and how often."""

    collector: int = Field(default=5, ge=0, description="Number of kills of the collector.")
    servers: int = Field(default=3, ge=0, description="Number of kills of one server of an ng_run.")
    ng_run: int = Field(default=1, ge=0, description="Number of kills of ng_run.")
    seed: int = Field(default=0, description="Seed for drawing times and targets.")


class ChaosConfig(CollectConfig):
    """ng_chaos: kill a collection repeatedly, then check that no data is lost or invented."""

    kills: KillsConfig = Field(
        default_factory=KillsConfig, description="What to kill, and how often."
    )
    check_only: bool = Field(
        False, description="Check existing files only, without killing or collecting."
    )
    num_reverified: int = Field(
        20, ge=0, description="Number of rollouts to verify again and compare. 0 = none."
    )
    run_timeout_s: float = Field(600, gt=0, description="Time limit of each run of a command.")


class InspectConfig(Command, CheckoutConfig):
    """Keys of ng_dump_config."""


class ValidateConfig(InspectConfig):
    """ng_validate: check everything without starting anything."""

    arms: Arms = ARMS
