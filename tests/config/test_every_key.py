"""Each key of a collection, wherever it is given, has an effect or is named as without one."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from support import HANG_S, write_jsonl

from rollout_kit.commands.collect_rollouts import collect
from rollout_kit.commands.progress import Progress
from rollout_kit.config.fields import keys
from rollout_kit.config.idle import PASSED
from rollout_kit.config.keys import CollectConfig, CommandKeys, RunConfig
from rollout_kit.config.load import load
from rollout_kit.errors import RolloutKitError

SERVERS = """
config_paths: [resources_servers/string_match/configs/string_match.yaml]
policy_model:
  responses_api_models:
    simulated_model: {answer: text, text: "Answer: 4"}
"""

KEYS = sorted(set(keys(CollectConfig)) - {"config_paths", "json", "inputs"})

VALUES: dict[str, Any] = {
    "agent_name": "string_match_simple_agent",
    "arms": [{"id": "warm", "temperature": 1.0}],
    "arms_seed": 7,
    "auth_token": "a-token-of-sixteen",
    "buffer": "memory://x",
    "buffer_port": 1,
    "dataset": "example",
    "group_deadline_s": 3.0,
    "head_server": {"host": "127.0.0.1"},
    "input_jsonl_fpath": "tasks.jsonl",
    "metrics_port": 0,
    "mlflow": {"run_name": "x"},
    "num_repeats": 2,
    "num_samples_in_parallel": 3,
    "only": "0123456789abcdef:0",
    "otel": {"service": "x"},
    "output_jsonl_fpath": "other.jsonl",
    "prompt_config": "prompt.yaml",
    "responses_create_params": {"temperature": 0.5},
    "resume": "append",
    "roots": {"debian:old": "machine"},
    "shard": "1/2",
    "wandb": {"name": "x"},
}
"""Where the type does not tell a value that the command takes."""

OWN = {"resume_from_cache"}
"""Accepted for NeMo Gym, with the only value that it may have."""

OF_ACCIDENTS = {"drain_timeout_s", "stop_early"}
"""Read when a run is interrupted, or when everything fails."""

TRIED = [key for key in KEYS if key not in OWN | OF_ACCIDENTS]


def value_of(key: str) -> Any:
    if key in VALUES:
        return VALUES[key]
    field = keys(CollectConfig)[key]
    kinds = [each for each in get_args(field.annotation) if each is not type(None)]
    kinds = kinds or [field.annotation]
    if field.annotation is bool or kinds[-1] is bool:
        return not field.default if isinstance(field.default, bool) else True
    if all(isinstance(each, str) for each in kinds):
        return next(each for each in kinds if each != field.default)
    if kinds[0] in (int, float):
        return 1 if key == "max_failed_fraction" else 0.5 if "fraction" in key else 5
    return "place"


class Read:
    """Notes which keys a run reads, besides the modules that load them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names = set[str]()
        read = CommandKeys.__getattribute__

        def noting(command: CommandKeys, name: str) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            is_ours = caller.startswith("rollout_kit.") and ".config." not in caller
            if is_ours or caller == "rollout_kit.config.inputs":
                self.names.add(name)
            return read(command, name)

        patch.setattr(CommandKeys, "__getattribute__", noting)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    (tmp_path / "servers.yaml").write_text(SERVERS)
    (tmp_path / "prompt.yaml").write_text('user: "{expected_answer}?"')
    asked = {"input": [{"role": "user", "content": "2 + 2?"}]}
    write_jsonl(
        tmp_path / "tasks.jsonl", [{"responses_create_params": asked, "expected_answer": "4"}]
    )
    return tmp_path


def run(words: list[str]) -> str:
    """What a collection said, its warnings and its error among it."""
    out = io.StringIO()
    try:
        config = load(words, CollectConfig)
        for warning in config.warnings:
            print(warning, file=out)
        progress = Progress(out=out, err=io.StringIO())
        asyncio.run(asyncio.wait_for(collect(config, words, progress), HANG_S))
    except RolloutKitError as error:
        print(f"error: {error}", file=out)
    return out.getvalue()


def words_for(key: str) -> list[str]:
    given = {"input_jsonl_fpath": "tasks.jsonl", "output_jsonl_fpath": "rollouts.jsonl"}
    if key == "dataset":
        del given["input_jsonl_fpath"]
    given.pop(key, None)
    return [f"+{name}={value}" for name, value in given.items()]


def check(key: str, read: Read, said: str) -> None:
    is_named = key in said
    name = {"json": "json_output"}.get(key, key)
    assert is_named or name in read.names, f"{key} was neither read nor named:\n{said}"


@pytest.mark.parametrize("key", TRIED)
@pytest.mark.parametrize("place", ["run.yaml", "env.yaml"])
def test_a_key_of_one_command(
    folder: Path, key: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / place).write_text(yaml.safe_dump({key: value_of(key)}))
    paths = "servers.yaml" if place == "env.yaml" else "servers.yaml,run.yaml"
    read = Read(monkeypatch)
    check(key, read, run([f"+config_paths=[{paths}]", *words_for(key)]))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the head server of a running ng_run."""
    place = tmp_path_factory.mktemp("run")
    (place / "servers.yaml").write_text(SERVERS)
    code = "from rollout_kit.commands import main; main('ng_run')"
    words = ["+config_paths=[servers.yaml]", "+head_server.port=0"]
    argv = [sys.executable, "-c", code, *words]
    with subprocess.Popen(argv, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if "Head server: " in line)
            url = ready.partition("Head server: ")[2].partition(" ")[0].rstrip(".")
            yield int(url.rpartition(":")[2])
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.parametrize("key", TRIED)
def test_a_key_beside_an_ng_run(
    folder: Path, key: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.yaml").write_text(yaml.safe_dump({key: value_of(key)}))
    read = Read(monkeypatch)
    head = [] if key == "head_server" else [f"+head_server.port={port}"]
    check(key, read, run(["+config_paths=[own.yaml]", *head, *words_for(key)]))


@pytest.mark.parametrize("key", TRIED)
def test_a_key_that_only_an_ng_run_was_given(folder: Path, key: str) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump({key: value_of(key)}))
    if key == "nemo_gym":
        (folder / "place/nemo_gym").mkdir(parents=True)
        (folder / "place/nemo_gym/__init__.py").touch()
    warnings = load(["+config_paths=[servers.yaml,run.yaml]"], RunConfig).warnings
    is_used = key in keys(RunConfig) or key in PASSED
    assert is_used != any(f"'{key}' in run.yaml changes nothing here" in each for each in warnings)


@pytest.mark.parametrize("key", sorted(set(keys(RunConfig)) - set(keys(CollectConfig))))
def test_a_key_of_ng_run_in_one_command(folder: Path, key: str) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump({key: True if key == "reload" else "::1"}))
    warnings = load(["+config_paths=[servers.yaml,run.yaml]"], CollectConfig).warnings
    assert any(f"'{key}' in run.yaml changes nothing here" in each for each in warnings)


def sent_by(folder: Path) -> dict[str, Any]:
    from support import read_jsonl

    return read_jsonl(folder / "rollouts.jsonl")[0]["responses_create_params"]


@pytest.mark.parametrize("place", ["own.yaml", "env.yaml"])
def test_parameters_beside_an_ng_run_reach_the_model(folder: Path, port: int, place: str) -> None:
    """`service_tier: scale`, as a document has it."""
    params = {"service_tier": "scale", "temperature": 0.5}
    (folder / place).write_text(yaml.safe_dump({"responses_create_params": params}))
    paths = ["+config_paths=[own.yaml]"] if place == "own.yaml" else []
    said = run([*paths, f"+head_server.port={port}", *words_for("")])
    assert "error" not in said, said
    assert {name: sent_by(folder)[name] for name in params} == params


LIMITS = ["request_timeout_s", "max_reply_mb", "global_aiohttp_connector_limit"]


@pytest.mark.parametrize("key", LIMITS)
def test_limits_beside_an_ng_run_are_said_to_be_those_of_one_side(
    folder: Path, port: int, key: str
) -> None:
    said = run([f"+{key}=5", f"+head_server.port={port}", *words_for(key)])
    assert f"{key}=5 holds for this command's own requests only" in said


def test_nemo_gym_s_name_for_the_limits_is_followed_too(folder: Path, port: int) -> None:
    own = {"GlobalAIOHTTPAsyncClientConfig": {"global_aiohttp_connector_limit": 5}}
    (folder / "own.yaml").write_text(yaml.safe_dump(own))
    said = run(["+config_paths=[own.yaml]", f"+head_server.port={port}", *words_for("")])
    assert "global_aiohttp_connector_limit=5 holds for this command's own requests only" in said


def test_what_env_yaml_means_for_the_ng_run_is_no_error(folder: Path, port: int) -> None:
    (folder / "env.yaml").write_text("max_restarts: 5\nlog_dir: elsewhere\n")
    said = run([f"+head_server.port={port}", *words_for("")])
    assert "error" not in said and "log_dir in env.yaml has changed" in said, said
    assert "max_restarts in env.yaml" not in said
