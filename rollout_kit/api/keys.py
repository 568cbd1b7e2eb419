"""The keyword arguments of `collect`, `reverify` and `servers`, for type checkers and editors.

`config.keys` defines each key: its default, its bounds, and one sentence. A test compares the two.
They are repeated here because type checkers read no keyword arguments from a pydantic model.
"""

from pathlib import Path
from typing import Any, Literal, TypedDict

from ..config.keys import (
    GoalConfig,
    HeadServerConfig,
    MlflowConfig,
    OtelConfig,
    Parallelism,
    WandbConfig,
)
from ..config.shard import Shard
from ..types import JsonObject


class ServersKeys(TypedDict, total=False):
    """Keys of servers, of requests between them, and of workers that run rollouts."""

    global_aiohttp_connector_limit: int | None
    global_aiohttp_connector_limit_per_host: int | None
    global_aiohttp_client_timeout_s: float | None
    max_reply_mb: float
    request_timeout_s: float
    nemo_gym: str | Path | None
    nemo_gym_code: list[str] | str
    nemo_gym_python: str | None
    python_version: str | None
    install: bool
    max_restarts: int
    ready_timeout_s: float
    log_dir: str | Path | None
    auth_token: str | None
    ray_address: str | None
    record: str | Path | None
    replay: str | Path | None
    batch: bool
    cheapest: bool
    mcp: str | None
    openenv: bool
    unsafe_code: bool


class WorkersKeys(TypedDict, total=False):
    """Where the attempts of a collection run."""

    executor: Literal["local", "processes", "ray"]
    num_workers: int | None
    worker_lease_s: float


class StartKeys(ServersKeys, WorkersKeys, total=False):
    """Keys of `servers`."""

    rollout_timeout_s: float
    verify_timeout_s: float
    verify_group_timeout_s: float


class RunKeys(ServersKeys, total=False):
    """Keys that `collect` and `reverify` share."""

    config_paths: list[str]
    json_output: bool
    incomplete_groups: Literal["wait", "partial", "drop"]
    min_members: int
    group_deadline_s: float | None
    verify_group_timeout_s: float
    num_groups_in_parallel: int
    wandb: WandbConfig | JsonObject
    mlflow: MlflowConfig | JsonObject
    otel: OtelConfig | JsonObject
    metrics_port: int | None
    output_jsonl_fpath: str | Path | None
    input_jsonl_fpath: str | None
    limit: int | None
    head_server: HeadServerConfig | JsonObject
    only: str | None
    dry_run: bool
    max_attempts: int
    rollout_timeout_s: float
    verify_timeout_s: float
    drain_timeout_s: float
    max_cost_usd: float | None
    max_total_tokens: int | None
    max_minutes: float | None
    stop_early: bool
    max_failed_fraction: float
    pass_threshold: float
    fsync: Literal["row", "second", "exit"]
    disable_aggregation: bool
    dashboard: bool
    dashboard_port: int
    throughput_log: str | Path | None


class CollectKeys(RunKeys, WorkersKeys, total=False):
    """Keys of `collect`: those of `ng_collect_rollouts`."""

    shard: str | Shard | None
    epochs: int | None
    longest_first: bool
    task_policy: str | JsonObject
    mix: Path | None
    eval: str | Path | None
    eval_every: int
    teacher: str | None
    buffer: str | None
    buffer_port: int
    agent_name: str | None
    agent_map: dict[str, str]
    fan_out: dict[str, list[str]]
    dataset: str | None
    benchmark: str | None
    harbor_tasks: str | list[str] | None
    roots: dict[str, str]
    num_repeats: int | dict[str, int]
    num_repeats_add_seed: bool
    goal: GoalConfig | JsonObject | None
    num_samples_in_parallel: int | str | Parallelism
    model_share: float
    model_priority: int
    responses_create_params: JsonObject
    prompt_config: str | None
    prompt: str | None
    map: str | JsonObject
    arms: str | list[Any] | JsonObject | None
    arms_seed: int
    resume: Literal["auto", "append", "fresh"]
    resume_from_cache: bool
    strict_input: bool
    task_data_validation: Literal["error", "warn", "off"]
    warmup: int
    park_after_s: float
    save_turns: Literal["auto"] | bool
    skip_verification: bool
    retry_invalid_judge_responses: bool
    audit_fraction: float
    confirm: bool
    num_canary: int
    upload_rollouts: bool


class ReverifyKeys(RunKeys, total=False):
    """Keys of `reverify`: those of `ng_reverify`."""

    benchmark: str | None
    dataset: str | None
    num_samples_in_parallel: int
    stale_only: bool
    retry_invalid_judge_responses: bool
    resume: Literal["auto", "fresh"]
