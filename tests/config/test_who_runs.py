"""Before a run one line says which agent, model and endpoint it uses, and what was replaced."""

import asyncio
import io
from pathlib import Path

import pytest
from endpoint import endpoint, says
from support import asked, write_jsonl

from rollout_kit.commands.collect_rollouts import collect
from rollout_kit.commands.progress import Progress
from rollout_kit.config.keys import CollectConfig, RunConfig, ValidateConfig
from rollout_kit.config.load import load
from rollout_kit.config.replaced import explain
from rollout_kit.errors import ConfigError

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


OTHER = "policy_model: {responses_api_models: {simulated_model: {model_name: other}}}\n"
MADE_HERE = "exact: {resources_servers: {string_match: {}}}\n"


def test_a_later_source_replaces_the_implementation_and_says_so(folder: Path) -> None:
    (folder / "run.yaml").write_text(CONFIG.format(url="http://one.test:8000/v1"))
    (folder / "other.yaml").write_text(OTHER)
    config = load(["+config_paths=[run.yaml,other.yaml]"], ValidateConfig)
    policy = config.instances["policy_model"]
    assert policy.implementation == "simulated_model" and policy.settings == {"model_name": "other"}
    [note] = config.notes
    file = "responses_api_models/openai_model/configs/openai_model.yaml"
    assert note == (
        f"policy_model is simulated_model from other.yaml, instead of openai_model from {file}"
    )
    assert not config.warnings, "keys that only the replaced model used are no mistake"
    (folder / "env.yaml").write_text(OTHER)
    [note] = load(["+config_paths=[run.yaml]"], ValidateConfig).notes
    assert note.startswith("policy_model is simulated_model from env.yaml, instead of openai_model")


def test_the_command_line_can_replace_an_implementation_and_set_its_keys(folder: Path) -> None:
    (folder / "run.yaml").write_text(MADE_HERE + OTHER)
    place = "policy_model.responses_api_models.openai_model"
    words = ["+config_paths=[run.yaml]", f"+{place}.openai_base_url=http://h/v1?a=b"]
    config = load([*words, f"+{place}.openai_model=large"], ValidateConfig)
    policy = config.instances["policy_model"]
    assert policy.settings == {"openai_base_url": "http://h/v1?a=b", "openai_model": "large"}
    [note] = config.notes
    assert note.startswith("policy_model is openai_model from the command line, instead of sim")


def test_two_implementations_in_one_file_are_a_mistake(folder: Path) -> None:
    block = "policy_model: {responses_api_models: {simulated_model: {}, local_model: {}}}\n"
    (folder / "run.yaml").write_text(MADE_HERE + block)
    with pytest.raises(ConfigError, match="holds 2 implementations"):
        load(["+config_paths=[run.yaml]"], ValidateConfig)


def test_the_plan_says_where_agent_model_and_endpoint_come_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "run.yaml").write_text(CONFIG.format(url="http://one.test:8000/v1"))
    (folder / "env.yaml").write_text("policy_base_url: https://two.test/v1\n")
    monkeypatch.setenv("MODEL_OF_TODAY", "small")
    said = said_by("+policy_model_name=${oc.env:MODEL_OF_TODAY}")
    assert (
        "  string_match_simple_agent is simple_agent from resources_servers/string_match/configs/"
        "string_match.yaml; policy_model is openai_model from responses_api_models/openai_model/"
        "configs/openai_model.yaml, its openai_base_url from env.yaml, its openai_model from the"
        " environment variable MODEL_OF_TODAY\n"
    ) in said
    (folder / "run.yaml").write_text(MADE_HERE + OTHER)
    assert (
        "  exact_simple_agent is made automatically; policy_model is simulated_model from run.yaml"
    ) in said_by()


def test_an_agent_of_its_own_asks_the_policy_model_among_several(folder: Path) -> None:
    more = "hosted: {responses_api_models: {simulated_model: {}}}\n"
    (folder / "run.yaml").write_text(MADE_HERE + OTHER + more)
    config = load(["+config_paths=[run.yaml]"], ValidateConfig)
    agent = config.instances["exact_simple_agent"]
    assert agent.settings["model_server"]["name"] == "policy_model"
    assert config.notes == ("hosted is asked by no agent and no verifier: they ask policy_model",)
    (folder / "run.yaml").write_text(MADE_HERE + more + more.replace("hosted", "other"))
    config = load(["+config_paths=[run.yaml]"], ValidateConfig)
    assert "exact_simple_agent" not in config.instances
    [warning] = config.warnings
    assert "exact gets no agent, as 2 models are configured, hosted and other: call" in warning


SHORT = "string_match: {regex_timeout_s: 2}\n"
WHOLE = "string_match: {resources_servers: {string_match: {port: 8001}}}\n"


@pytest.mark.parametrize("texts", [(SHORT, WHOLE), (WHOLE, SHORT)])
def test_a_server_written_in_short_and_as_a_whole_is_one_server(
    folder: Path, texts: tuple[str, str]
) -> None:
    for name, text in zip(("one.yaml", "two.yaml"), texts, strict=True):
        (folder / name).write_text(text)
    config = load(["+config_paths=[one.yaml,two.yaml]"], ValidateConfig)
    [server] = config.instances.values()
    assert server.settings == {"regex_timeout_s": 2} and server.port == 8001
    place = "string_match.resources_servers.string_match"
    origins = {config.origins[f"{place}.{key}"] for key in ("regex_timeout_s", "port")}
    assert origins == {"one.yaml", "two.yaml"} and not config.notes


def test_another_implementation_replaces_a_server_that_was_written_in_short(folder: Path) -> None:
    (folder / "one.yaml").write_text("simulated_model: {text: hello}\n")
    other = "simulated_model: {responses_api_models: {local_model: {}}}\n"
    (folder / "two.yaml").write_text(other)
    config = load(["+config_paths=[one.yaml,two.yaml]"], ValidateConfig)
    assert config.instances["simulated_model"].implementation == "local_model"
    [note] = config.notes
    assert note.endswith("local_model from two.yaml, instead of simulated_model from one.yaml")


def test_env_yaml_can_name_the_usual_model(folder: Path) -> None:
    (folder / "run.yaml").write_text(MADE_HERE)
    (folder / "usual.yaml").write_text(OTHER)
    (folder / "env.yaml").write_text("config_paths: [usual.yaml]\n")
    config = load(["+config_paths=[run.yaml]"], ValidateConfig)
    assert config.instances["policy_model"].implementation == "simulated_model"
    local = "responses_api_models/local_model/configs/local_model.yaml"
    config = load([f"+config_paths=[run.yaml,{local}]"], ValidateConfig)
    assert config.instances["policy_model"].implementation == "local_model"
