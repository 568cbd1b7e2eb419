"""Options as other tools and earlier scripts spell them: taken, or led to the key that is meant."""

import json
from pathlib import Path

import pytest
from command import as_function

from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import load
from rollout_kit.config.overrides import take_options
from rollout_kit.errors import ConfigError

MODEL = {"responses_api_models": {"simulated_model": {}}}

SERVER = {"resources_servers": {"string_match": {}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(**blocks: object) -> str:
    Path("run.yaml").write_text(json.dumps(blocks))
    return "+config_paths=[run.yaml]"


@pytest.mark.parametrize(
    ("command", "given", "meant"),
    [
        (
            "ng_reverify",
            "--input a.jsonl --output=b.jsonl --parallelism 50",
            "+input_jsonl_fpath=a.jsonl +output_jsonl_fpath=b.jsonl +num_samples_in_parallel=50",
        ),
        (
            "ng_merge_lora",
            "--base_model B --lora-path L +output_path=O",
            "+base=B +adapter=L +output=O",
        ),
        (
            "ng_collect_rollouts",
            "--model_path M --data_path d.jsonl --out_path o.jsonl --n_samples 500 +resume=auto",
            "+policy_model_path=M +input_jsonl_fpath=d.jsonl +output_jsonl_fpath=o.jsonl"
            " +limit=500 +resume=auto",
        ),
        ("ng_run", "--input a", "--input a"),
    ],
)
def test_options_of_earlier_scripts_are_taken(command: str, given: str, meant: str) -> None:
    words, notes = take_options(command, given.split())
    assert words == meant.split()
    assert len(notes) == len([each for each in meant.split() if each not in given.split()])


def test_an_option_without_its_value_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"--input: a value is missing: \+input_jsonl_fpath="):
        take_options("ng_reverify", ["--input"])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("+temperature=0.5", r"write \+responses_create_params.temperature=0.5$"),
        ("+max_tokens=64", r"write \+responses_create_params.max_output_tokens=64$"),
        ("+num_parallel=8", r"write \+num_samples_in_parallel=8$"),
        ("+model=gpt", r"write \+policy_model_name=gpt; it is for a YAML with \$\{policy_model_na"),
        ("+base_model=x", r"write \+policy_model_name=x"),
        ("+fast_mode=true", "no server has it"),
    ],
)
def test_a_key_of_another_tool_leads_to_ours(word: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=meant):
        load([config(policy_model=MODEL, string_match=SERVER), word], CollectConfig)


def test_keys_of_servers_lead_to_the_ng_run_that_starts_them() -> None:
    with pytest.raises(ConfigError, match=r"write \+policy_model_name=gpt for the ng_run"):
        load(["+model=gpt"], CollectConfig)
    with pytest.raises(ConfigError, match="belongs to the ng_run that starts it"):
        load(["+fast_mode=true"], CollectConfig)


def test_a_judge_is_no_policy() -> None:
    judge = {"judge_model_server": {"type": "responses_api_models", "name": "judge"}}
    server = {"resources_servers": {"equivalence_llm_judge": judge}}
    found = load([config(judge=MODEL, mine=MODEL, e=server)], CollectConfig)
    agent = found.instances["e_simple_agent"]
    assert agent.settings["model_server"]["name"] == "mine"


def test_validate_names_who_asks_whom_and_misses_an_agent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = {
        "openai_base_url": "http://127.0.0.1:1/v1",
        "openai_model": "m",
        "openai_api_key": "k1",
    }
    blocks = {
        "policy_model": {"responses_api_models": {"openai_model": model}},
        "string_match": SERVER,
    }
    with pytest.raises(SystemExit):
        as_function("ng_validate")([config(**blocks)])
    said = capsys.readouterr()
    assert "string_match_simple_agent: asks string_match · asks policy_model" in said.out
    assert "openai_base_url http://127.0.0.1:1/v1" in said.out and "openai_model m" in said.out
    assert "k1" not in said.out
    with pytest.raises(SystemExit):
        as_function("ng_validate")([config(one=MODEL, other=MODEL, string_match=SERVER)])
    assert "there is no agent, so nothing can be collected" in capsys.readouterr().err
