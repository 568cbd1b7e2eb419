"""The table of commands: the keys of each, what it does, and how it is typed.

A new command is one entry here, and a module of its name in `commands/` with a `main`.
"""

from typing import NamedTuple

from .keys import (
    AuditConfig,
    BranchConfig,
    BuildRootConfig,
    ChaosConfig,
    CheckHarborConfig,
    CheckOverlapConfig,
    CheckRolloutsConfig,
    CheckTokensConfig,
    CollectConfig,
    Command,
    CompareConfig,
    ControlConfig,
    CtlConfig,
    EntrypointConfig,
    EstimateConfig,
    ExportConfig,
    ImportConfig,
    InitConfig,
    InspectConfig,
    JudgeAgreementConfig,
    ListConfig,
    MakeTasksConfig,
    MergeConfig,
    MergeLoraConfig,
    PackageConfig,
    PairsConfig,
    PlanTrainingConfig,
    PlanVllmConfig,
    PrepareDataConfig,
    ReportConfig,
    ReverifyConfig,
    ReweightConfig,
    RunConfig,
    ScanConfig,
    SimulateTrainerConfig,
    SimulateTrainingConfig,
    StatusConfig,
    ValidateConfig,
    ViewConfig,
)

MAX_SHOWN = 25
"""Keys that a reader takes in at once."""

OF_RUNS = (
    "output_jsonl_fpath",
    "limit",
    "resume",
    "num_samples_in_parallel",
    "max_attempts",
    "rollout_timeout_s",
    "max_cost_usd",
    "max_minutes",
    "dashboard",
    "dry_run",
    "config_paths",
    "head_server.port",
    "auth_token",
    "json",
)
"""The most used keys of the commands that write rollouts."""

OF_RUNNING = (
    *("config_paths", "head_server.host", "head_server.port", "default_host", "request_timeout_s"),
    *("log_dir", "auth_token", "reload", "dry_run", "ready_timeout_s", "max_restarts"),
    *("record", "replay", "batch", "cheapest", "mcp", "openenv", "unsafe_code", "nemo_gym"),
)
"""Keys of ng_run that its help shows first."""

OF_COLLECTING = (
    "agent_name",
    "input_jsonl_fpath",
    "benchmark",
    "dataset",
    "num_repeats",
    "responses_create_params",
    "prompt",
    "map",
    "arms",
    "confirm",
    "cheapest",
    *OF_RUNS,
)


class CommandInfo(NamedTuple):
    """One command. Its code is the `main` of the module of its name in `commands/`."""

    keys: type[Command]
    summary: str
    examples: tuple[str, ...] = ()
    module: str = ""
    """The module, where it has another name."""
    first: tuple[str, ...] = ()
    """The keys that `--help` shows, where a command has more than MAX_SHOWN; `--help=all` shows
    all."""


COMMANDS = {
    "ng_run": CommandInfo(
        RunConfig,
        "start every server of the configuration",
        (
            'ng_run "+config_paths=[configs/quickstart.yaml]"',
            'ng_run "+config_paths=[configs/quickstart.yaml]" +head_server.port=11001',
        ),
        first=OF_RUNNING,
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
        first=OF_COLLECTING,
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
        first=(*OF_COLLECTING, "num_canary"),
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
        first=("input_jsonl_fpath", "stale_only", *OF_RUNS),
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
        first=(
            "kills.collector",
            "kills.servers",
            "kills.ng_run",
            "check_only",
            "agent_name",
            "input_jsonl_fpath",
            "num_repeats",
            *OF_RUNS,
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
    "ng_plan_training": CommandInfo(
        PlanTrainingConfig,
        "show the memory that a training takes on each GPU",
        (
            "ng_plan_training +model_name=Qwen/Qwen2.5-7B-Instruct +num_gpus=8 +zero=3",
            "ng_plan_training +model_name=./model +algorithm=ppo +lora_rank=16 +gpu_gb=40",
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
    "ng_package_environment": CommandInfo(
        PackageConfig,
        "write an environment as a package for verifiers and prime-rl",
        (
            "ng_package_environment +environment=math_with_verify +output_dir=sums",
            "ng_package_environment +environment=mcqa +output_dir=my_mcqa"
            " +input_jsonl_fpath=tasks.jsonl +model_name=tiny +base_url=http://127.0.0.1:8000/v1",
        ),
    ),
    "ng_init_resources_server": CommandInfo(
        InitConfig,
        "create the folder of a new environment",
        (
            "ng_init_resources_server +entrypoint=resources_servers/my_env",
            "ng_init_resources_server +entrypoint=resources_servers/my_game +kind=game",
        ),
    ),
    "ng_test": CommandInfo(
        EntrypointConfig,
        "check a server's rows, verdicts and configuration, and run its tests",
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
    "ng_check_harbor_tasks": CommandInfo(
        CheckHarborConfig,
        "show which tasks in Harbor's folders run here, and which line prevents it",
        (
            "ng_check_harbor_tasks tasks/",
            "ng_check_harbor_tasks tasks/ +run=true +json=true",
        ),
    ),
    "ng_make_tasks": CommandInfo(
        MakeTasksConfig,
        "make tasks of packages: faults that their tests find",
        (
            "ng_make_tasks pypi:toolz +output_dir=tasks",
            "ng_make_tasks my_project/ +num_tasks=50",
        ),
    ),
    "ng_build_root": CommandInfo(
        BuildRootConfig,
        "build the root file system of a Dockerfile before a run needs it",
        (
            "ng_build_root tasks/my_task/environment",
            "ng_build_root +base=python:3.13",
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
    "ng_import": CommandInfo(
        ImportConfig,
        "make rollouts of the runs of other tools",
        (
            "ng_import +input=logs/sums.eval +output_jsonl_fpath=rollouts.jsonl",
            "ng_import jobs/ +output_jsonl_fpath=rollouts.jsonl +format=harbor",
        ),
        module="import_runs",
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
    "ng_reweight": CommandInfo(
        ReweightConfig,
        "compute rewards again from stored components",
        (
            "ng_reweight rollouts.jsonl +factors.coherence=2 +output_jsonl_fpath=reweighted.jsonl",
            "ng_reweight rollouts.jsonl +factors.length_penalty=0 +output_jsonl_fpath=free.jsonl",
        ),
    ),
    "ng_compare": CommandInfo(
        CompareConfig,
        "compare files of rollouts task by task, and conclude",
        (
            "ng_compare before.jsonl after.jsonl",
            "ng_compare a.jsonl b.jsonl c.jsonl +json=true",
        ),
    ),
    "ng_check_rollouts": CommandInfo(
        CheckRolloutsConfig,
        "find rollouts whose reward cannot be trusted",
        (
            "ng_check_rollouts results/rollouts.jsonl",
            "ng_check_rollouts results/rollouts.jsonl +max_unhealthy_fraction=0.05",
        ),
    ),
    "ng_check_overlap": CommandInfo(
        CheckOverlapConfig,
        "find rows of benchmarks in rows to train on",
        (
            "ng_check_overlap train.jsonl +benchmark=[gsm8k,math_500]",
            "ng_check_overlap +dataset=dapo_math_17k +benchmark=[aime24,aime25]",
            "ng_check_overlap train.jsonl +against=my_test.jsonl +clean_fpath=clean.jsonl",
        ),
    ),
    "ng_scan": CommandInfo(
        ScanConfig,
        "look for what went wrong inside rollouts",
        (
            "ng_scan results/rollouts.jsonl",
            "ng_scan results/rollouts.jsonl +scanner=[loop,tests_edited]",
            "ng_scan results/rollouts.jsonl \"+rule.failed=any(tool == 'bash' and error)\"",
            "ng_scan results/rollouts.jsonl '+question.cheats=Does the agent edit a test?' "
            "+question_model=openai/gpt-5-mini",
        ),
    ),
    "ng_branch": CommandInfo(
        BranchConfig,
        "make tasks that begin in the middle of stored rollouts",
        (
            "ng_branch results/rollouts.jsonl +turn=4 '+where=reward == 0' "
            "+output_jsonl_fpath=from_turn_4.jsonl",
        ),
    ),
    "ng_judge_agreement": CommandInfo(
        JudgeAgreementConfig,
        "show how far judges agree with each other, and with people",
        (
            "ng_judge_agreement results/judged.jsonl",
            "ng_judge_agreement results/judged.jsonl +labels.good=correct=yes "
            "+labels.bad=correct=no +json=true",
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
        first=(
            "input_jsonl_fpath",
            "model_server",
            "limit",
            "num_samples_in_parallel",
            "request_timeout_s",
            "config_paths",
            "head_server.host",
            "head_server.port",
            "auth_token",
            "json",
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
        first=(
            "rules",
            "rules_fpath",
            "max_per_task",
            "max_pairs",
            "dedupe_pairs",
            "drop_truncated",
            "drop_empty",
            "drop_identical",
            "format",
            "prompt",
            "output_fpath",
            "where",
            "min_reward",
            "max_reward",
            "top_k_per_group",
            "drop_zero_variance",
            "test_fraction",
            "split_seed",
            "reward_key",
            "label_key",
            "pass_threshold",
            "input_jsonl_fpath",
            "json",
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
    "ng_simulate_training": CommandInfo(
        SimulateTrainingConfig,
        "predict rate, tail, staleness, waste and cost of a training from recorded rollouts",
        (
            "ng_simulate_training +input_jsonl_fpath=results/first.jsonl +num_replicas=8"
            " +num_samples_in_parallel=512 +step_s=90 +staleness=1",
            "ng_simulate_training +input_jsonl_fpath=results/first.jsonl +num_replicas=4"
            " +replica_usd=3.5 +trainer_usd=28",
        ),
    ),
    "ng_validate": CommandInfo(
        ValidateConfig,
        "check everything without starting anything",
        (
            'ng_validate "+config_paths=[configs/quickstart.yaml]"',
            'ng_validate "+config_paths=[exact.yaml,'
            'responses_api_models/openai_model/configs/openai.yaml]"',
        ),
    ),
    "ng_list": CommandInfo(
        ListConfig,
        "list environments, benchmarks, datasets and agents, with their origin and needs",
        (
            "ng_list",
            "ng_list +kind=dataset",
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


OLD_KEYS = {
    "revisit": "write +task_policy=later for +revisit=later",
    "audit_seed": "leave it out, the draw is fixed",
    "canary_seed": "leave it out, the draw is fixed",
    "ray_worker_cpus": "leave it out, Ray reserves one CPU for each worker",
    "tracker_wait_s": "leave it out, a run waits for its trackers for up to a minute",
    "rows": "the driver writes every rollout. To share the work between drivers, give each its"
    " +shard=1/2, and join the parts with ng_merge",
}
"""Keys of the version before, which are ignored with a line: key → what to write instead."""


def explain_old_key(key: str) -> str:
    return f"'{key}' is ignored, there is no such key any more: {OLD_KEYS[key]}"


def known_keys() -> set[str]:
    """The keys of all commands: a YAML file may contain the keys of any of them."""
    return {
        field.alias or name
        for entry in COMMANDS.values()
        for name, field in entry.keys.model_fields.items()
    }
