"""Defines the keys of each command: name, type, default and one sentence. The command line, the
YAML and `--help` use these definitions."""

from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from ...types import JsonObject
from .analysis import (
    CompareConfig,
    ExportConfig,
    MergeConfig,
    PairsConfig,
    ReportConfig,
    ViewConfig,
)
from .authoring import AuditConfig, EntrypointConfig, ListConfig, PrepareDataConfig
from .cluster import ClusterConfig
from .command import Command, CommandKeys
from .control import CtlConfig
from .groups import GroupsConfig, ProducingConfig, SimulateTrainerConfig
from .lora import MergeLoraConfig
from .parallelism import Parallelism
from .planning import PlanVllmConfig
from .servers import CheckoutConfig, HeadServerConfig, HttpClientConfig, ServersConfig
from .trackers import TrackersConfig

Arms = str | list[Any] | JsonObject | None

ARMS = Field(
    None,
    description="Several ways of asking each task: prompts, sampling parameters, seeds; a list, or"
    " a YAML file with one.",
)


class RunConfig(Command, HttpClientConfig, ServersConfig):
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


class RolloutsCommand(Command, HttpClientConfig, ServersConfig, GroupsConfig, TrackersConfig):
    """Keys of the commands that write rollouts."""

    output_jsonl_fpath: Path | None = Field(None, description="File to append rollouts to.")
    limit: int | None = Field(
        None, ge=0, description="Use only this many rows of the input; null or 0 = all."
    )
    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig,
        description="Address of a running ng_run, if config_paths is not given.",
    )
    only: str | None = Field(
        None,
        description="Only this rollout: <task_id>:<rollout_index>, or with :<arm>: in between.",
    )
    dry_run: bool = Field(False, description="Print the plan and the first request, send nothing.")
    max_attempts: int = Field(3, ge=1, description="Maximum number of attempts at a rollout.")
    request_timeout_s: float = Field(
        600, gt=0, description="Time limit of one request to a server, in seconds."
    )
    rollout_timeout_s: float = Field(
        3600, gt=0, description="Time limit of one rollout, including all attempts."
    )
    verify_timeout_s: float = Field(120, gt=0, description="Time limit of one verification.")
    drain_timeout_s: float = Field(
        60, ge=0, description="Time for rollouts in flight to end after Ctrl-C or max_minutes."
    )
    max_cost_usd: float | None = Field(
        None, gt=0, description="Cost limit of this run, in US dollars; rerun to continue."
    )
    max_total_tokens: int | None = Field(
        None, gt=0, description="Limit on the input and output tokens of this run."
    )
    max_minutes: float | None = Field(
        None, gt=0, description="Start no rollouts this many minutes after the first request."
    )
    stop_early: bool = Field(
        True, description="Stop if nothing succeeds and the first rollouts all fail alike."
    )
    max_failed_fraction: float = Field(
        0.0, ge=0, le=1, description="Exit 0 up to this share of rollouts without a result."
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")
    fsync: Literal["row", "second", "exit"] = Field(
        "second", description="When to force rows to disk: after each, every second, or at exit."
    )
    disable_aggregation: bool = Field(False, description="Write no metrics file.")
    dashboard: bool = Field(
        False, description="Serve a page on this machine that shows the run, and steers it."
    )
    dashboard_port: int = Field(
        0, ge=0, le=65535, description="Port of that page; 0 takes a free one."
    )
    throughput_log: Path | None = Field(
        None,
        description="CSV file to which each run appends a line: date, rollouts, seconds, rates,"
        " mean reward, bottleneck.",
    )

    @model_validator(mode="after")
    def _has_a_page_for_the_port(self) -> Self:
        if "dashboard_port" in self.model_fields_set and not self.dashboard:
            raise ValueError("dashboard_port: add +dashboard=true, there is no page otherwise")
        return self


class CollectConfig(RolloutsCommand, ClusterConfig, ProducingConfig):
    """ng_collect_rollouts: run tasks through an agent, verify each, append rollouts to a JSONL
    file."""

    agent_name: str | None = Field(
        None,
        description="Agent to run. Optional with a single agent, or if rows name theirs.",
    )
    input_jsonl_fpath: str | None = Field(
        None, description="Tasks, one JSON object per line; .gz, .zst, or - for standard input."
    )
    dataset: str | None = Field(
        None, description="Dataset listed under the agent, instead of input_jsonl_fpath."
    )
    num_repeats: int | dict[str, int] = Field(
        1, description="Rollouts per task: an int, or a mapping from agents to ints, with _default."
    )
    num_repeats_add_seed: bool = Field(
        False,
        description="Send the rollout's index as `seed`, so that repeats differ reproducibly.",
    )
    num_samples_in_parallel: Parallelism = Field(
        Parallelism.parse(64),
        description="Rollouts in flight: an int, `auto` (adaptive), or `min-start-max`.",
    )
    responses_create_params: JsonObject = Field(
        {}, description="Override each row's values: temperature, max_output_tokens, model, …"
    )
    prompt_config: str | None = Field(
        None, description="YAML with `system` and `user` templates to fill from the row's fields."
    )
    arms: Arms = ARMS
    arms_seed: int = Field(0, description="Seed of the run, for arms with `seed: derived`.")
    resume: Literal["auto", "append", "fresh"] = Field(
        "auto",
        description="auto: continue; append: other settings, same file; fresh: move old files"
        " aside.",
    )
    resume_from_cache: bool = Field(True, description="Accepted; the same as resume=auto.")
    strict_input: bool = Field(
        False, description="Stop at a malformed line, before the first request."
    )
    warmup: int = Field(0, ge=0, description="Dummy requests to send before the clock starts.")
    park_after_s: float = Field(1.0, ge=0, description="A slower verification frees its slot.")
    save_turns: Literal["auto"] | bool = Field(
        "auto",
        description="Store each turn of long rollouts, so that a restarted run continues them."
        " auto: where a stored response can be verified again.",
    )
    skip_verification: bool = Field(
        False, description="Collect responses without verdicts or rewards."
    )
    audit_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of rollouts to verify twice, to check that the verdicts agree; only for"
        " verifiers that need nothing but the response.",
    )
    audit_seed: int = Field(0, description="Seed for drawing the rollouts to verify twice.")
    confirm: bool = Field(
        False, description="Collect a canary first, show the estimated cost of the run, and ask."
    )
    num_canary: int = Field(
        50, ge=5, description="Size of the canary: rollouts drawn at random for an estimate."
    )
    canary_seed: int = Field(0, description="Seed for drawing the canary.")
    upload_rollouts: bool = Field(False, description="Accepted for NeMo Gym; nothing is uploaded.")

    @field_validator("resume_from_cache")
    @classmethod
    def _continues(cls, value: bool) -> bool:
        if not value:
            raise ValueError("a run continues its output; +resume=fresh moves old files aside")
        return value


class EstimateConfig(CollectConfig):
    """ng_estimate: collect a few rollouts, drawn at random, and estimate what all will take: money,
    tokens, time, failures."""


class ControlConfig(Command):
    """Keys of ng_status and ng_stop, which address an ng_run."""

    head_server: HeadServerConfig = Field(
        default_factory=HeadServerConfig, description="Address of the ng_run's head server."
    )
    auth_token: str | None = Field(
        None, description="Secret of the run, if it is not in this user's token file."
    )


class StatusConfig(ControlConfig):
    """ng_status: show the health and the load of the servers of an ng_run."""

    web: bool = Field(
        False, description="Serve a page with the servers, and the collections that run."
    )
    port: int = Field(0, ge=0, le=65535, description="Port of that page; 0 takes a free one.")


class ReverifyConfig(RolloutsCommand):
    "ng_reverify: verify stored responses again, or for the first time, without a"

    "policy model."

    asks_policy: ClassVar[bool] = False

    input_jsonl_fpath: str | None = Field(
        None,
        description="Collected rollouts, or their _unverified or _failures file; .gz, .zst, or -"
        " for standard input.",
    )
    num_samples_in_parallel: int = Field(50, ge=1, description="Verifications in flight.")
    stale_only: bool = Field(
        False, description="Copy rollouts that the current verifier has verified."
    )
    resume: Literal["auto", "fresh"] = Field(
        "auto", description="auto: continue; fresh: move old files aside and verify everything."
    )


class CheckTokensConfig(ReverifyConfig):
    """ng_check_tokens: score the tokens of stored rollouts again, by the policy that sampled them,
    and compare the log-probs."""

    asks_policy: ClassVar[bool] = True

    model_server: str = Field("policy_model", description="The model server that scores.")


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
        20, ge=0, description="Rollouts to verify again and compare; 0 = none."
    )
    run_timeout_s: float = Field(600, gt=0, description="Time limit of each run of a command.")


class InspectConfig(Command, CheckoutConfig):
    """Keys of ng_dump_config."""


class ValidateConfig(InspectConfig):
    """ng_validate: check everything without starting anything."""

    arms: Arms = ARMS


class CommandInfo(NamedTuple):
    """One command. Its code is the `main` of the module of its name in `commands/`."""

    keys: type[Command]
    summary: str
    examples: tuple[str, ...] = ()
    module: str = ""
    """The module, where it has another name."""


COMMANDS = {
    "ng_run": CommandInfo(
        RunConfig,
        "start every server of the configuration",
        (
            'ng_run "+config_paths=[configs/quickstart.yaml]"',
            'ng_run "+config_paths=[configs/quickstart.yaml]" +head_server.port=11001',
        ),
    ),
    "ng_collect_rollouts": CommandInfo(
        CollectConfig,
        "run tasks through an agent, verify and append rollouts",
        (
            "ng_collect_rollouts +agent_name=mcqa_simple_agent "
            "+input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=rollouts.jsonl",
            'ng_collect_rollouts "+config_paths=[configs/quickstart.yaml]" '
            "+input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=rollouts.jsonl +limit=10 "
            "+responses_create_params.temperature=0.3",
        ),
    ),
    "ng_estimate": CommandInfo(
        EstimateConfig,
        "collect a few rollouts at random, and estimate the cost of all",
        (
            'ng_estimate "+config_paths=[configs/quickstart.yaml]" '
            "+input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=rollouts.jsonl "
            "+num_repeats=4",
            "ng_estimate +agent_name=mcqa_simple_agent +input_jsonl_fpath=tasks.jsonl "
            "+output_jsonl_fpath=rollouts.jsonl +num_canary=100 +json=true",
        ),
    ),
    "ng_reverify": CommandInfo(
        ReverifyConfig,
        "verify stored responses again, without a policy model",
        (
            'ng_reverify "+config_paths=[configs/quickstart.yaml]" '
            "+input_jsonl_fpath=rollouts.jsonl +output_jsonl_fpath=reverified.jsonl",
            "ng_reverify +input_jsonl_fpath=rollouts.d/unverified.jsonl "
            "+output_jsonl_fpath=reverified.jsonl +num_samples_in_parallel=50",
        ),
    ),
    "ng_chaos": CommandInfo(
        ChaosConfig,
        "kill a collection repeatedly, and check that no data is lost",
        (
            'ng_chaos "+config_paths=[configs/rehearsal.yaml]" +dataset=example '
            "+num_repeats=20 +output_jsonl_fpath=results/chaos/rollouts.jsonl "
            "+kills.collector=10",
            "ng_chaos +check_only=true +input_jsonl_fpath=tasks.jsonl "
            "+output_jsonl_fpath=rollouts.jsonl",
        ),
    ),
    "ng_plan_vllm": CommandInfo(
        PlanVllmConfig,
        "show whether a model fits on GPUs, and how many sequences",
        (
            "ng_plan_vllm +model_name=meta-llama/Llama-3.1-70B-Instruct +gpus=8xH100",
            "ng_plan_vllm +model_name=./model +gpus=2x80GB +max_model_len=16384 +quantization=fp8",
        ),
    ),
    "ng_status": CommandInfo(
        StatusConfig,
        "show the health and the load of the servers of an ng_run",
        (
            "ng_status",
            "ng_status +head_server.port=11001 +json=true",
        ),
    ),
    "ng_stop": CommandInfo(
        ControlConfig,
        "stop a running ng_run and its servers",
        (
            "ng_stop",
            "ng_stop +head_server.port=11001",
        ),
    ),
    "ng_ctl": CommandInfo(
        CtlConfig,
        "list running collections, and steer them",
        (
            "ng_ctl parallelism=128",
            "ng_ctl cancel=c4ca4238a0b92382:0 +drop=true",
        ),
    ),
    "ng_init_resources_server": CommandInfo(
        EntrypointConfig,
        "create the folder of a new environment",
        ("ng_init_resources_server +entrypoint=resources_servers/my_env",),
    ),
    "ng_test": CommandInfo(
        EntrypointConfig,
        "check a server's rows, verdicts and configuration; run its tests",
        (
            "ng_test +entrypoint=resources_servers/my_env",
            "ng_test +entrypoint=resources_servers/mcqa",
        ),
    ),
    "ng_audit_verifier": CommandInfo(
        AuditConfig,
        "check that a verifier's verdicts can be trusted, and how long they take",
        (
            "ng_audit_verifier +entrypoint=resources_servers/mcqa",
            'ng_audit_verifier "+config_paths=[my_env.yaml]" +resources_server_name=my_env '
            "+input_jsonl_fpath=rows.jsonl +output_fpath=audit.json",
        ),
    ),
    "ng_prepare_data": CommandInfo(
        PrepareDataConfig,
        "write files of checked tasks from the datasets of the agents",
        (
            'ng_prepare_data "+config_paths=[resources_servers/mcqa/configs/mcqa.yaml]" '
            "+output_dirpath=results/data",
            'ng_prepare_data "+config_paths=[my_env.yaml]" +output_dirpath=data '
            "+mode=train_preparation +drop_duplicates=true",
        ),
    ),
    "ng_view": CommandInfo(
        ViewConfig,
        "look at rollouts in a browser, or write them as one HTML file",
        (
            "ng_view results/",
            "ng_view rollouts.jsonl +where='reward < 0.5' +static=report.html",
        ),
    ),
    "ng_report": CommandInfo(
        ReportConfig,
        "write one HTML page with figures, plots and examples",
        (
            "ng_report results/*.jsonl",
            "ng_report before.jsonl after.jsonl +output_fpath=report.html +title='Before "
            "and after'",
        ),
    ),
    "ng_merge": CommandInfo(
        MergeConfig,
        "merge shards, or other files of rollouts, into one",
        (
            "ng_merge 'shards/*.jsonl' +output_jsonl_fpath=rollouts.jsonl",
            "ng_merge 'shards/*.jsonl' +output_jsonl_fpath=rollouts.jsonl "
            "+input_jsonl_fpath=tasks.jsonl",
        ),
    ),
    "ng_aggregate_rollouts": CommandInfo(
        MergeConfig,
        "the same as ng_merge, by its name in NeMo Gym",
        module="merge",
    ),
    "ng_compare": CommandInfo(
        CompareConfig,
        "compare files of rollouts task by task, and conclude",
        (
            "ng_compare before.jsonl after.jsonl",
            "ng_compare a.jsonl b.jsonl c.jsonl +json=true",
        ),
    ),
    "ng_check_tokens": CommandInfo(
        CheckTokensConfig,
        "score sampled tokens again, compare the log-probs",
        (
            "ng_check_tokens +input_jsonl_fpath=rollouts.jsonl",
            'ng_check_tokens "+config_paths=[configs/demo.yaml]" '
            "+input_jsonl_fpath=rollouts.jsonl +limit=1000 +json=true",
        ),
    ),
    "ng_export": CommandInfo(
        ExportConfig,
        "write rollouts in the format of a trainer",
        (
            "ng_export rollouts.jsonl +format=trl_sft +output_fpath=train.jsonl "
            "+where='reward > 0.5 and num_turns < 8' +drop_truncated=true",
            "ng_export rollouts.jsonl +format=verl_rl +output_fpath=train.parquet "
            "+test_fraction=0.1",
        ),
    ),
    "ng_pairs": CommandInfo(
        PairsConfig,
        "write preference pairs, by rules, in the format of a trainer",
        (
            "ng_pairs rollouts.jsonl +output_fpath=pairs.jsonl +rules=[correctness] "
            "+max_per_task=4",
            "ng_pairs rollouts.jsonl +format=llamafactory_dpo +output_fpath=pairs.jsonl "
            "+rules_fpath=rules.yaml",
        ),
    ),
    "ng_merge_lora": CommandInfo(
        MergeLoraConfig,
        "write a model with a LoRA adapter merged in",
        (
            "ng_merge_lora +base=models/base +adapter=checkpoints/lora +output=models/merged",
            "ng_merge_lora +base=Qwen/Qwen3-0.6B +adapter=lora +output=merged +dtype=float32",
        ),
    ),
    "ng_simulate_trainer": CommandInfo(
        SimulateTrainerConfig,
        "take groups from a buffer at a given pace, and train nothing",
        (
            "ng_simulate_trainer +buffer=http://127.0.0.1:8123 +step_s=2 +steps=50",
            "ng_simulate_trainer '+buffer=redis://localhost:6379/0/run1' +batch=32 +step_s=10",
        ),
    ),
    "ng_validate": CommandInfo(
        ValidateConfig,
        "check everything without starting anything",
        (
            'ng_validate "+config_paths=[configs/quickstart.yaml]"',
            'ng_validate "+config_paths=[a.yaml,b.yaml]" +policy_model_name=gpt-4o-mini',
        ),
    ),
    "ng_list": CommandInfo(
        ListConfig,
        "list environments, benchmarks and agents, where they are from and what they need",
        (
            "ng_list",
            "ng_list +nemo_gym=~/Gym +kind=benchmark",
        ),
    ),
    "ng_dump_config": CommandInfo(
        InspectConfig,
        "print the merged configuration with the origin of each value",
        (
            'ng_dump_config "+config_paths=[configs/quickstart.yaml]"',
            'ng_dump_config "+config_paths=[configs/quickstart.yaml]" +json=true',
        ),
    ),
    "ng_help": CommandInfo(
        InspectConfig,
        "list the commands",
        (
            "ng_help",
            "ng_collect_rollouts --help",
        ),
    ),
    "ng_version": CommandInfo(
        InspectConfig,
        "print versions for a bug report",
        (
            "ng_version",
            "ng_version +json=true",
        ),
    ),
}
"""Every command of the toolkit: its keys, what it does, and how it is typed."""


def known_keys() -> set[str]:
    """The keys of all commands: a YAML file may contain the keys of any of them."""
    return {
        field.alias or name
        for entry in COMMANDS.values()
        for name, field in entry.keys.model_fields.items()
    }
