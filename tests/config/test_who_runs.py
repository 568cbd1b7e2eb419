"""Before a run one line says which agent, model and endpoint it uses, and what was replaced."""

import asyncio
import io
from pathlib import Path

import pytest
from endpoint import endpoint, says
from support import asked, write_jsonl

from rollout_kit.commands.collect_rollouts import collect
from rollout_kit.commands.progress import Progress
from rollout_kit.config.keys import CollectConfig, RunConfig
from rollout_kit.config.load import load
from rollout_kit.config.replaced import explain

CONFIG = """
config_paths:
  - resources_servers/string_match/configs/string_match.yaml
  - responses_api_models/openai_model/configs/openai_model.yaml
policy_base_url: {url}
policy_model_name: small-model
policy_api_key: sk-planted-key-0123456789
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    task = {"responses_create_params": {"input": "4?"}, "expected_answer": "4"}
    write_jsonl(tmp_path / "tasks.jsonl", [task])
    return tmp_path


WORDS = ["+config_paths=[run.yaml]", "+input_jsonl_fpath=tasks.jsonl"]
WORDS += ["+output_jsonl_fpath=rollouts.jsonl", "+dry_run=true"]


def said_by(*more: str) -> str:
    out, words = io.StringIO(), [*WORDS, *more]
    config = load(words, CollectConfig)
    asyncio.run(collect(config, words, Progress(out=out, err=io.StringIO())))
    return out.getvalue()


def test_agent_model_and_host_stand_before_the_plan(folder: Path) -> None:
    (folder / "run.yaml").write_text(CONFIG.format(url="http://one.test:8000/v1"))
    said = said_by()
    line = "Agent string_match_simple_agent: model small-model at one.test:8000\n"
    assert line in said and said.index(line) < said.index("Plan:")
    assert "instead of" not in said


def test_env_yaml_and_the_command_line_are_named_with_what_they_replaced(folder: Path) -> None:
    (folder / "run.yaml").write_text(CONFIG.format(url="http://one.test:8000/v1"))
    env = {"base_url": "https://user:secret@two.test/v1", "api_key": "sk-other-key-9876543210"}
    text = "".join(f"policy_{name}: {value}\n" for name, value in env.items())
    (folder / "env.yaml").write_text(text)
    said = said_by("+policy_model_name=large-model")
    assert "model large-model at two.test (" in said
    assert "policy_base_url is from env.yaml, instead of http://one.test:8000/v1 from" in said
    assert (
        "policy_model_name is from the command line, instead of small-model from run.yaml" in said
    )
    assert "sk-" not in said and "secret" not in said
    same = "policy_base_url: http://one.test:8000/v1\n"
    (folder / "env.yaml").write_text(same)
    assert "instead of" not in said_by(), "nothing is different"


def test_ng_run_has_the_same_clauses(folder: Path) -> None:
    (folder / "run.yaml").write_text(CONFIG.format(url="http://one.test:8000/v1"))
    (folder / "env.yaml").write_text("policy_base_url: https://two.test/v1\n")
    config = load(["+config_paths=[run.yaml]"], RunConfig)
    [clause] = explain(config.replaced, config.instances)
    assert clause.startswith("policy_base_url is from env.yaml, instead of http://one.test:8000/v1")


def test_an_agent_s_wiring_is_named_too(folder: Path) -> None:
    other = "other_model: {responses_api_models: {simulated_model: {}}}\n"
    (folder / "run.yaml").write_text(CONFIG.format(url="http://one.test:8000/v1") + other)
    place = "string_match_simple_agent.responses_api_agents.simple_agent.model_server.name"
    said = said_by(f"++{place}=other_model")
    assert "Agent string_match_simple_agent: model simulated" in said
    assert "model_server.name is from the command line, instead of policy_model from" in said


def test_the_endpoint_that_answers_is_the_one_that_is_named(folder: Path) -> None:
    with endpoint(says(asked)) as model:
        (folder / "run.yaml").write_text(CONFIG.format(url=model.url))
        said = said_by("+dry_run=false", "+max_attempts=1")
    host = model.url.split("/")[2]
    assert f"model small-model at {host}\n" in said and "Reward 0.000" in said
