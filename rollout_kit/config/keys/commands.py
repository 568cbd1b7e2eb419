"""The keys of each command: name, type, default and one sentence. The command line, the YAML and
`--help` are all read from here."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...types import JsonObject
from .authoring import AuditConfig, EntrypointConfig, PrepareDataConfig
from .command import Command
from .parallelism import Parallelism


class HeadServerConfig(BaseModel):
    """Where `ng_run` tells collectors which servers it runs."""

    model_config = ConfigDict(extra="forbid")
    host: str = Field(default="127.0.0.1", description="Address of the head server.")
    port: int = Field(default=11000, ge=0, le=65535, description="Port of the head server.")


class HttpClientConfig(BaseModel):
    """Limits of the HTTP client (NeMo Gym calls them `GlobalAIOHTTPAsyncClientConfig`)."""

    global_aiohttp_connector_limit: int | None = Field(
        None,
        ge=0,
        description="Most connections in all; 0 = unlimited. Default: from the parallelism.",
    )
    global_aiohttp_connector_limit_per_host: int | None = Field(
        None, ge=0, description="Most connections to one host; 0 = unlimited."
    )
    global_aiohttp_client_timeout_s: float | None = Field(
        None, gt=0, description="Time limit of one HTTP request. Default: request_timeout_s."
    )


class ServersConfig(BaseModel):
    """How server processes are kept."""

    max_restarts: int = Field(
        5,
        ge=0,
        description="A server that dies so often in a row before it is ready (or six times as often"
        " just after) is given up; 0 = at its first death.",
    )
    log_dir: Path | None = Field(
        Path("logs"), description="Each server's output goes to a file in here; null = to none."
    )
    auth_token: str | None = Field(
        None,
        min_length=16,
        description="Secret of a run, for servers that listen beyond this machine and for ng_stop;"
        " give it in env.yaml. Default: a new one, in a file that only you can read.",
    )
    record: Path | None = Field(
        None, description="Folder in which each call to a model or a tool is written down."
    )
    replay: Path | None = Field(
        None,
        description="Folder whose recorded calls are played back: no model is asked. With record"
        " too, what is missing is sent, and recorded.",
    )
    unsafe_code: bool = Field(
        False,
        description="Run code that a model wrote even where the sandbox cannot hold it: with all"
        " rights of the server.",
    )


class RunConfig(Command, HttpClientConfig, ServersConfig):
    """ng_run: start every server of the configuration, and keep them until Ctrl-C."""

    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig, description="Where collectors ask."
    )
    default_host: str = Field("127.0.0.1", description="Address that servers listen on.")
    ready_timeout_s: float = Field(600, gt=0, description="Time for all servers to become ready.")
    request_timeout_s: float = Field(
        600, gt=0, description="Time limit of one request to a server."
    )
    dry_run: bool = Field(False, description="Check everything, start nothing.")


class RolloutsCommand(Command, HttpClientConfig, ServersConfig):
    """Keys of the commands that write rollouts."""

    output_jsonl_fpath: Path | None = Field(None, description="Rollouts are appended here.")
    limit: int | None = Field(
        None, ge=0, description="Only the first so many rows of the input; null or 0 = all."
    )
    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig,
        description="Where a running ng_run answers, when config_paths is not given.",
    )
    only: str | None = Field(None, description="Just this rollout: <task_id>:<rollout_index>.")
    dry_run: bool = Field(
        False, description="Print the plan and the first request, and send nothing."
    )
    max_attempts: int = Field(3, ge=1, description="Attempts at one rollout.")
    request_timeout_s: float = Field(
        600, gt=0, description="Time limit of one request to a server."
    )
    rollout_timeout_s: float = Field(
        3600, gt=0, description="Time limit of one rollout, attempts included."
    )
    verify_timeout_s: float = Field(120, gt=0, description="Time limit of one verification.")
    drain_timeout_s: float = Field(
        60, ge=0, description="Time for rollouts in flight after Ctrl-C, or after max_minutes."
    )
    max_cost_usd: float | None = Field(
        None, gt=0, description="US dollars that this run may spend; the same command goes on."
    )
    max_total_tokens: int | None = Field(
        None, gt=0, description="Tokens that this run may use, in and out."
    )
    max_minutes: float | None = Field(
        None, gt=0, description="Minutes from the first request on, in which rollouts are started."
    )
    max_failed_fraction: float = Field(
        0.0, ge=0, le=1, description="Share of rollouts without a result that still exits 0."
    )
    pass_threshold: float = Field(
        1.0, description="Reward from which a rollout counts as a success."
    )
    fsync: Literal["row", "second", "exit"] = Field(
        "second", description="When rows are forced to disk."
    )
    disable_aggregation: bool = Field(False, description="Write no metrics file.")
    throughput_log: Path | None = Field(
        None,
        description="CSV file that each run appends a line to: date, rollouts, seconds, rates, mean"
        " reward, bottleneck.",
    )


class CollectConfig(RolloutsCommand):
    """ng_collect_rollouts: run tasks through an agent, verify each, append rollouts to a JSONL
    file."""

    agent_name: str | None = Field(
        None,
        description="Agent to run; may be left out with a single agent, or where rows name theirs.",
    )
    input_jsonl_fpath: str | None = Field(
        None, description="Tasks, one JSON object a line; .gz and .zst too, - for standard input."
    )
    dataset: str | None = Field(
        None, description="Name of a dataset listed on the agent, instead of input_jsonl_fpath."
    )
    num_repeats: int | dict[str, int] = Field(
        1, description="Rollouts per task; or a mapping agent: int, with _default."
    )
    num_repeats_add_seed: bool = Field(
        False,
        description="Send the rollout's index as `seed`, so that repeats differ reproducibly.",
    )
    num_samples_in_parallel: Parallelism = Field(
        Parallelism.parse(64),
        description="Rollouts in flight: an int; `auto`, which adapts; or `min-start-max`.",
    )
    responses_create_params: JsonObject = Field(
        {}, description="Merged over each row's: temperature, max_output_tokens, model, …"
    )
    prompt_config: str | None = Field(
        None, description="YAML with `system` and `user` templates, filled from the row's fields."
    )
    resume: Literal["auto", "append", "fresh"] = Field(
        "auto",
        description="auto: continue; append: other settings, same file; fresh: old files aside.",
    )
    resume_from_cache: bool = Field(True, description="Accepted; the same as resume=auto.")
    strict_input: bool = Field(
        False, description="Stop at a malformed line, before the first request."
    )
    warmup: int = Field(0, ge=0, description="Dummy requests before the clock starts.")
    park_after_s: float = Field(1.0, ge=0, description="A verdict slower than this frees its slot.")
    skip_verification: bool = Field(
        False, description="Collect responses without verdicts: rows carry no reward."
    )
    audit_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the rollouts whose verdict is made again, to see whether it is the"
        " same; of verifiers that need nothing but the response.",
    )
    audit_seed: int = Field(0, description="Decides which rollouts these are.")
    confirm: bool = Field(
        False, description="Before a large run: collect a canary, tell what all will cost, and ask."
    )
    num_canary: int = Field(
        50, ge=5, description="Rollouts that an estimate goes by, drawn at random."
    )
    canary_seed: int = Field(0, description="Decides which rollouts are drawn.")
    upload_rollouts: bool = Field(
        False, description="Accepted for NeMo Gym's sake; nothing is uploaded."
    )


class EstimateConfig(CollectConfig):
    """ng_estimate: collect a few rollouts, drawn at random, and tell what all of them will take:
    money, tokens, time, failures."""


class ControlConfig(Command):
    """Keys of ng_status and ng_stop: which ng_run is meant."""

    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig, description="Where the ng_run answers."
    )
    auth_token: str | None = Field(
        None, description="The run's secret, where it is not in this user's token file."
    )


class ReverifyConfig(RolloutsCommand):
    """ng_reverify: verify stored responses again, or for the first time, without a policy model."""

    asks_policy: ClassVar[bool] = False

    input_jsonl_fpath: str | None = Field(
        None,
        description="Rollouts that were collected, or their _unverified or _failures file; .gz and"
        " .zst too, - for standard input.",
    )
    num_samples_in_parallel: int = Field(50, ge=1, description="Verifications in flight.")
    stale_only: bool = Field(
        False, description="Copy rollouts whose verdict is the present verifier's as they are."
    )
    resume: Literal["auto", "fresh"] = Field(
        "auto", description="auto: continue; fresh: old files aside, verify everything anew."
    )


class KillsConfig(BaseModel):
    """What ng_chaos kills, how often."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    collector: int = Field(default=5, ge=0, description="Times that the collector is killed.")
    servers: int = Field(
        default=3, ge=0, description="Times that one of the servers is killed, under an ng_run."
    )
    ng_run: int = Field(default=1, ge=0, description="Times that ng_run is killed.")
    seed: int = Field(default=0, description="Decides the moments and the victims.")


class ChaosConfig(CollectConfig):
    """ng_chaos: collect while killing what collects, then check that nothing is lost or made up."""

    kills: KillsConfig = Field(
        default_factory=KillsConfig, description="What is killed, how often."
    )
    check_only: bool = Field(
        False, description="Kill nothing and collect nothing: check the files that are there."
    )
    num_reverified: int = Field(
        20, ge=0, description="Rollouts whose verdict is made again and compared; 0 = none."
    )
    run_timeout_s: float = Field(
        600, gt=0, description="Time in which each run of a command must end."
    )


class PlanVllmConfig(Command):
    """ng_plan_vllm: will a model fit on these GPUs, and how many sequences with it."""

    model_name: str = Field(
        description="A folder with config.json, a model in the Hugging Face cache, or a known name."
    )
    gpus: str | None = Field(
        None, description="4xH100, 2x80GB, or a number of this machine's. Default: all of these."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Of the weights; auto = the checkpoint's."
    )
    quantization: Literal["fp8", "int4"] | None = Field(
        None, description="Of weights that the checkpoint has not quantized itself."
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field("auto", description="Of the KV cache.")
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence. Default: the model's own, 8192 at most."
    )
    sequence_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens of an average sequence, with its prompt. Default: half the longest.",
    )
    gpu_memory_utilization: float = Field(
        0.92, gt=0, le=1, description="Share of each GPU that vLLM may take."
    )


class InspectConfig(Command):
    """Keys of ng_validate and ng_dump_config."""


COMMANDS: dict[str, tuple[type[Command], str]] = {
    "ng_run": (RunConfig, "start every server that the YAML names"),
    "ng_collect_rollouts": (
        CollectConfig,
        "run tasks through an agent, verify and append rollouts",
    ),
    "ng_estimate": (
        EstimateConfig,
        "collect a few rollouts at random, and tell what all will cost",
    ),
    "ng_reverify": (ReverifyConfig, "verify stored responses again, without a policy model"),
    "ng_chaos": (ChaosConfig, "kill a collection again and again, and check that nothing is lost"),
    "ng_plan_vllm": (PlanVllmConfig, "show whether a model fits on GPUs, and how much with it"),
    "ng_status": (ControlConfig, "show the health and the load of what ng_run has started"),
    "ng_stop": (ControlConfig, "stop a running ng_run and its servers"),
    "ng_init_resources_server": (EntrypointConfig, "write a folder for an environment of your own"),
    "ng_test": (
        EntrypointConfig,
        "check a server's rows, verdicts and configuration; run its tests",
    ),
    "ng_audit_verifier": (
        AuditConfig,
        "check that a verifier's verdicts can be trusted, and how long they take",
    ),
    "ng_prepare_data": (
        PrepareDataConfig,
        "make files of checked tasks from the datasets that agents list",
    ),
    "ng_validate": (InspectConfig, "check everything without starting anything"),
    "ng_dump_config": (
        InspectConfig,
        "print the merged configuration with the origin of each value",
    ),
    "ng_help": (InspectConfig, "list the commands"),
    "ng_version": (InspectConfig, "print versions for a bug report"),
}


def known_keys() -> set[str]:
    """Keys of any command: YAML may carry them all, whichever command reads it."""
    return {
        field.alias or name
        for model, _ in COMMANDS.values()
        for name, field in model.model_fields.items()
    }
