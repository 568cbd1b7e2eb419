"""The documents' collection commands for hosted services, word for word but for the address."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from endpoint import Endpoint, endpoint, says
from support import HANG_S, read_jsonl, skip_unless_installed

skip_unless_installed("math_verify")

ROOT = Path(__file__).resolve().parents[2]

OPENAI = """
    +agent_name=openai_agent \
    +input_jsonl_fpath=tasks.jsonl \
    +output_jsonl_fpath=rollouts.jsonl \
    +responses_create_params.model=gpt-4o-mini \
    +responses_create_params.temperature=0.3 \
    +responses_create_params.max_output_tokens=512 \
    +num_samples_in_parallel=8
"""
AZURE = """
    +agent_name=azure_agent \
    +input_jsonl_fpath=tasks.jsonl \
    +output_jsonl_fpath=rollouts.jsonl \
    +responses_create_params.max_output_tokens=512 \
    +responses_create_params.temperature=0.2 \
    +num_samples_in_parallel=5 \
    +limit=1000
"""
TIER = """
responses_create_params:
  service_tier: "scale"  # Options: auto, default, flex, scale
"""


def collected(folder: Path, command: str, *given: str) -> tuple[int, str]:
    """Its status, and what it said."""
    (folder / "tier.yaml").write_text(TIER)
    rows = (ROOT / "resources_servers/math_with_verify/data/example.jsonl").read_text()
    (folder / "tasks.jsonl").write_text(rows)
    hidden = ("OPENAI_", "AZURE_", "POLICY_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    code = "import sys; from rollout_kit.commands import main; main('ng_collect_rollouts')"
    done = subprocess.run(
        [sys.executable, "-c", code, *given, *shlex.split(command)],
        cwd=folder,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    return done.returncode, done.stdout + done.stderr


def asked_for(hosted: Endpoint, folder: Path) -> dict[str, object]:
    """What every request had in common, once as many were sent as there are rollouts."""
    bodies = [body for _, _, body in hosted.requests]
    assert len(read_jsonl(folder / "rollouts.jsonl")) == len(bodies) == 10
    return {k: v for k, v in bodies[0].items() if all(body.get(k) == v for body in bodies)}


def test_openai_agent_collects_with_the_key_of_env_yaml(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text('OPENAI_API_KEY: "sk-proj-planted"\n')
    with endpoint(says(lambda body: "42")) as hosted:
        where = f"+policy_model.responses_api_models.openai_model.openai_base_url={hosted.url}"
        paths = "+config_paths=[configs/openai_agent.yaml,tier.yaml]"
        status, said = collected(tmp_path, OPENAI, paths, where)
    assert status == 0, said
    assert asked_for(hosted, tmp_path) == {
        "model": "gpt-4o-mini",
        "temperature": 0.3,
        "max_output_tokens": 512,
        "service_tier": "scale",
    }
    path, headers, _ = hosted.requests[0]
    assert path == "/v1/responses" and headers["authorization"] == "Bearer sk-proj-planted"
    assert "sk-proj-planted" not in (tmp_path / "rollouts.d/run.json").read_text() + said


def test_azure_agent_collects_with_the_names_that_azure_users_know(tmp_path: Path) -> None:
    with endpoint(says(lambda body: "42")) as hosted:
        told = {"ENDPOINT": hosted.url.removesuffix("/v1"), "API_KEY": "planted-azure-key"}
        lines = [f"AZURE_OPENAI_{name}: {value}\n" for name, value in told.items()]
        (tmp_path / "env.yaml").write_text("".join(lines))
        status, said = collected(tmp_path, AZURE, "+config_paths=[configs/azure_agent.yaml]")
    assert status == 0, said
    assert asked_for(hosted, tmp_path) == {
        "model": "gpt-4o-mini",
        "temperature": 0.2,
        "max_output_tokens": 512,
    }
    path, headers, _ = hosted.requests[0]
    assert path == "/openai/v1/responses" and headers["api-key"] == "planted-azure-key"
    assert "planted-azure-key" not in (tmp_path / "rollouts.d/run.json").read_text() + said


@pytest.mark.parametrize(
    "config, missing",
    [
        ("configs/openai_agent.yaml", ["OPENAI_API_KEY"]),
        ("configs/azure_agent.yaml", ["AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"]),
    ],
)
def test_a_missing_key_is_asked_for_by_name_before_anything_starts(
    tmp_path: Path, config: str, missing: list[str]
) -> None:
    status, said = collected(tmp_path, OPENAI, f"+config_paths=[{config}]")
    assert status == 1
    for name in missing:
        assert f"put {name} into env.yaml, or set the environment variable" in said
