"""A checkout of NeMo Gym used as it is: its YAML, servers, agents and benchmarks.

`gym/` is written for these tests after the protocol's description, and stands for the checkout.
"""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import as_function
from endpoint import Endpoint, endpoint
from support import read_jsonl, write_jsonl

from rollout_kit.api.testing import call_response, text_response
from rollout_kit.commands import gym
from rollout_kit.commands.gym import translate
from rollout_kit.config.keys import ValidateConfig
from rollout_kit.config.load import Config, load
from rollout_kit.config.verification import select_needed
from rollout_kit.errors import ConfigError
from rollout_kit.serving.nemo_gym.checkout import Gym
from rollout_kit.serving.nemo_gym.environments import READY, environment_of
from rollout_kit.serving.nemo_gym.handover import SCRIPT, config_for, with_addresses

collect_rollouts = as_function("ng_collect_rollouts")
prepare_data = as_function("ng_prepare_data")
validate = as_function("ng_validate")

GYM = Path(__file__).parents[1] / "gym"
ADD = {"type": "function", "name": "add", "parameters": {"properties": {"number": {}}}}
READ = {"type": "function", "name": "read", "parameters": {"properties": {}}}


def answer(body: dict[str, Any]) -> tuple[int, Any]:
    """Call `add`, then `read`, if there are tools; play 1, 2, 3 in the game; else echo."""
    items = body["input"]
    outputs = [item for item in items if item.get("type") == "function_call_output"]
    if body.get("tools") and len(outputs) < 2:
        name, arguments = ("read", {}) if outputs else ("add", {"number": 3})
        return 200, call_response((name, json.dumps(arguments)))
    texts = [text_of(item) for item in items if item.get("role") == "user"]
    if "Guess a number." in texts:
        return 200, text_response(str(texts.count("No. Again.") + 1))
    return 200, text_response(texts[-1].split(" ")[-1].strip("?"))


def text_of(item: dict[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else content[0]["text"]


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with endpoint(answer) as found:
        yield found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, beside a checkout called Gym."""
    shutil.copytree(GYM, tmp_path / "Gym")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "work"


def policy(model: Endpoint) -> list[str]:
    values = {"base_url": model.url, "api_key": "sk-planted-0123", "model_name": "m"}
    return [f"+policy_{key}={value}" for key, value in values.items()]


def collect(place: Path, model: Endpoint, yaml: str, rows: list[Any], *words: str) -> list[Any]:
    """The rollouts of a collection with the checkout's YAML."""
    write_jsonl(place / "tasks.jsonl", rows)
    openai = "responses_api_models/openai_model/configs/openai_model.yaml"
    with pytest.raises(SystemExit) as ended:
        collect_rollouts(
            [
                f"+config_paths=[{yaml},{openai}]",
                "+nemo_gym=../Gym",
                f"+nemo_gym_python={sys.executable}",
                "+input_jsonl_fpath=tasks.jsonl",
                "+output_jsonl_fpath=out/rollouts.jsonl",
                *policy(model),
                *words,
            ]
        )
    assert ended.value.code == 0
    output = place / "out/rollouts.jsonl"
    return read_jsonl(output) if output.exists() else []


def says(text: str, **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **fields}


def counts(start: int, expected: int) -> dict[str, Any]:
    row = says("Count.", initial_count=start, expected_count=expected)
    row["responses_create_params"]["tools"] = [ADD, READ]
    return row


LETTERS = "resources_servers/letters/configs/letters.yaml"
COUNTER = "resources_servers/counter/configs/counter.yaml"


def test_a_server_of_the_checkout_verifies_the_rollouts_of_our_agent(
    place: Path, model: Endpoint
) -> None:
    rows = [says("a", expected_answer="a"), says("b", expected_answer="c")]
    rows[0]["responses_create_params"] |= {"prompt": None, "truncation": None}  # as in its files
    found = collect(place, model, LETTERS, rows, "+num_repeats=3")
    assert sorted(row["reward"] for row in found) == [0.0] * 3 + [1.0] * 3
    assert {row["answer"] for row in found} == {"a", "b"}
    assert {row["rollout"]["verifier"] for row in found} != {None}


TALK = "environment_servers/talk/configs/talk.yaml"


def test_an_environment_server_with_code_is_an_agent_whose_rows_need_no_request(
    place: Path, model: Endpoint
) -> None:
    identity = {"taskset": "words:few", "task_id": "one"}
    rows = [{"words": "a b"}, {"task_id": identity, "task_input": {"words": "c d"}}]
    found = collect(place, model, TALK, rows)
    assert [row["agent_ref"]["name"] for row in found] == ["talk_environment"] * 2
    one, two = sorted(found, key=lambda row: row["words"])
    assert (one["reward"], one["response"]["output"][0]["content"][0]["text"]) == (0.5, "b")
    assert one["responses_create_params"]["input"][0]["content"] == "a b"
    assert one["fields"] == ["words"] and two["fields"] == ["task_id", "words"]
    assert two["_ng_task_id"] == identity and len(two["invocations"]) == 1
    write_jsonl(place / "tasks.jsonl", [{"words": "nothing"}])
    (place / "out/rollouts.jsonl").unlink()
    with pytest.raises(AssertionError):
        collect(place, model, TALK, [{"words": "nothing"}])
    [failed] = read_jsonl(place / "out/rollouts.d/failures.jsonl")
    assert failed["failure"]["message"] == "/run reported: agent: no words"


@pytest.mark.parametrize("agent", ["counter_agent", "plain_counter_agent"])
def test_sessions_of_a_stateful_server_reach_it_through_both_agents(
    place: Path, model: Endpoint, agent: str
) -> None:
    rows = [counts(start, 7) for start in range(6)]
    found = collect(place, model, COUNTER, rows, f"+agent_name={agent}")
    assert {row["initial_count"]: row["count"] for row in found} == {n: n + 3 for n in range(6)}
    assert {row["initial_count"] for row in found if row["reward"]} == {4}
    outputs = [item["output"] for item in found[0]["response"]["output"] if "output" in item]
    assert json.loads(outputs[-1]) == {"count": found[0]["count"]}


ITS_FRONT = """
config_paths: [resources_servers/counter/configs/counter.yaml]
counter_environment_server:
  environment_servers:
    KIND
      agent_server: {type: responses_api_agents, name: plain_counter_agent}
"""


@pytest.mark.parametrize(
    "kind",
    [
        "legacy_agent:",
        "single_agent_turn:\n      resources_server: {type: resources_servers, name: counter}",
    ],
)
def test_an_environment_server_may_lead_to_an_agent_of_the_checkout(
    place: Path, model: Endpoint, kind: str
) -> None:
    (place / "front.yaml").write_text(ITS_FRONT.replace("KIND", kind))
    name = "counter_environment_server"
    found = collect(place, model, "front.yaml", [counts(4, 7)], f"+agent_name={name}")
    assert [(line["agent_ref"]["name"], line["reward"]) for line in found] == [(name, 1.0)]
    assert found[0]["rollout"]["agent"] == "plain_counter_agent"


OURS_BEHIND_ITS_AGENT = """
ours: {resources_servers: {example_session_state_mgmt: {}}}
their_agent:
  responses_api_agents:
    plain_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: ours}
      model_server: {type: responses_api_models, name: policy_model}
"""


def test_its_agent_keeps_the_session_of_our_server(place: Path, model: Endpoint) -> None:
    def use(body: dict[str, Any]) -> tuple[int, Any]:
        outputs = [item for item in body["input"] if item.get("type") == "function_call_output"]
        if len(outputs) == 2:
            return 200, text_response("done")
        name = "increment_counter" if not outputs else "get_counter_value"
        arguments = {"count": 4} if not outputs else {}
        return 200, call_response((name, json.dumps(arguments)))

    model.behaviour = use
    (place / "ours.yaml").write_text(OURS_BEHIND_ITS_AGENT)
    rows = [says("Count.", initial_count=n, expected_count=n + 4) for n in range(5)]
    found = collect(place, model, "ours.yaml", rows)
    assert [row["reward"] for row in found] == [1.0] * 5


def test_a_game_without_a_session_to_seed_is_played_by_our_agent(
    place: Path, model: Endpoint
) -> None:
    rows = [says("Play.", secret=secret) for secret in "1239"]
    yaml = "resources_servers/guess/configs/guess.yaml"
    found = collect(place, model, yaml, rows, "+num_samples_in_parallel=1")
    rewards = {row["secret"]: row["reward"] for row in found}
    assert rewards == {"1": 1.0, "2": 0.5, "3": pytest.approx(1 / 3), "9": 0.0}


def dump(yaml: str, *words: str, **files: str) -> Config[ValidateConfig]:
    for name, text in files.items():
        Path(f"{name}.yaml").write_text(text)
    return load([f"+config_paths=[{yaml}]", *words], ValidateConfig)


BASE = """
a: {x: 1, inner: {keep: 1, drop: 2}}
b: {_copy: a, x: 3}
c: {_inherit_from: a.inner, _delete_key: "drop, own", own: 5, more: 4}
d: "${copy:b.x}"
e: {_copy: b}
f: "${inherit_from:gone}"
gone: ???
"""


def test_the_directives_of_its_yaml_copy_move_and_delete(place: Path) -> None:
    (place / "base.yaml").write_text(BASE)
    from rollout_kit.config.load import read

    tree = read(["+config_paths=[base.yaml]", "++b.y=9"], ValidateConfig).merged
    found = {key: tree.tree[key] for key in "abcdef"}
    whole = {"x": 1, "inner": {"keep": 1, "drop": 2}}
    assert found == {
        "a": {"x": 1},  # its `inner` has moved
        "b": {**whole, "x": 3, "y": 9},
        "c": {"keep": 1, "more": 4},
        "d": 3,
        "e": {**whole, "x": 3, "y": 9},
        "f": "???",
    }
    assert tree.origin("c", "keep") == "base.yaml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: {_inherit_from: b}", "a: inherits from b, but there is no 'b'"),
        ("a: {_copy: b.d}\nb: {c: 1}", "a: inherits from b.d, but there is no 'd'"),
        ("a: {_copy: b, _delete_key: z}\nb: {c: 1}", "a: _delete_key names 'z', which is not"),
        ("a: {_copy: a}", "a: inherits from itself"),
        ("a: {_copy: b}\nb: 1", "a: b is no mapping to inherit from"),
    ],
)
def test_a_wrong_directive_is_refused(place: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        dump("wrong.yaml", wrong=text)


def test_a_benchmark_replaces_the_servers_that_it_inherits_from(
    place: Path, model: Endpoint
) -> None:
    openai = "responses_api_models/openai_model/configs/openai_model.yaml"
    yaml = f"benchmarks/letters/config.yaml,{openai}"
    config = dump(yaml, "+nemo_gym=../Gym", *policy(model))
    assert sorted(config.instances) == ["easy_letters", "easy_letters_agent", "policy_model"]
    assert config.instances["easy_letters"].settings["ignores_case"] is True
    [dataset] = config.instances["easy_letters_agent"].datasets
    assert dataset["prompt_config"] == str(place.parent / "Gym/benchmarks/letters/prompt.yaml")


THEIR_MODELS = """
policy_model:
  responses_api_models:
    local_vllm_model:
      entrypoint: app.py
      model: m
      return_token_id_information: true
      uses_reasoning_parser: true
      uses_interleaved_reasoning: false
      extra_body: null
      hf_home: /models
      vllm_serve_env_vars: {VLLM_LOGGING_LEVEL: ERROR}
      vllm_serve_kwargs: {tensor_parallel_size: 2}
judge:
  responses_api_models:
    inference_provider: {base_url: http://x/v1, api_key: k, model: j, num_concurrent_requests: 3}
math:
  resources_servers:
    math_with_judge:
      judge_model_server: {type: responses_api_models, name: judge}
      should_use_judge: false
"""


def test_its_model_servers_and_their_keys_become_ours(place: Path) -> None:
    found = dump("models.yaml", models=THEIR_MODELS).instances
    policy_model, judge = found["policy_model"], found["judge"]
    assert policy_model.implementation == "vllm_model"
    assert policy_model.settings == {
        "model": "m",
        "return_token_ids": True,
        "drop_input_reasoning_items": True,
        "tensor_parallel_size": 2,
    }
    assert policy_model.env == {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HOME": "/models"}
    assert (judge.implementation, judge.settings["max_concurrent_requests"]) == ("openai_model", 3)
    assert judge.settings["upstream_api"] == "chat_completions"
    assert found["math"].implementation == "math_with_verify"


def test_a_model_key_without_a_counterpart_is_refused_with_its_reason(place: Path) -> None:
    for key, expected in REFUSED_KEYS.items():
        text = THEIR_MODELS.replace("extra_body: null", key)
        with pytest.raises(ConfigError, match=rf"policy_model .*{expected}"):
            dump("models.yaml", models=text)


def test_keys_of_its_model_servers_that_ours_have_too_are_taken(place: Path) -> None:
    keys = {
        "sampling_overrides: {top_p: 1}": {"sampling_overrides": {"top_p": 1}},
        "sampling_overrides: null": {},
        "continue_final_assistant_message: true": {"continue_final_assistant_message": True},
        "preserve_reasoning_in_assistant_content: true": {
            "preserve_reasoning_in_assistant_content": True
        },
        "use_completions_api: true": {"use_completions_api": True},
        "endpoint_file: null, endpoint_stale_grace_s: 300.0, endpoint_connection_retries: 8,"
        " endpoint_check_interval_s: 10.0": {},
        "use_completions_api: false, render_chat_template: true, tokenizer: t": {
            "use_completions_api": False
        },
        "supply_prefix_token_ids: true": {},  # with token ids, as in this block
        "supply_prefix_token_ids: false": {},
        "propagate_context_overflow_errors: false": {},
        "reasoning_field: both": {},
        "reasoning_field: reasoning_content": {"reasoning_field": "reasoning_content"},
    }
    bare = dump("models.yaml", models=THEIR_MODELS).instances["policy_model"].settings
    for given, settings in keys.items():
        lines = given.replace(", ", "\n      ") if "{" not in given else given
        text = THEIR_MODELS.replace("extra_body: null", lines)
        found = dump("models.yaml", models=text).instances["policy_model"]
        assert found.settings == {**bare, **settings}, given
    tries = THEIR_MODELS.replace(
        "inference_provider: {base_url: http://x/v1, api_key: k, model: j,",
        "openai_model: {openai_base_url: http://x/v1, openai_api_key: k, openai_model: j,",
    ).replace("num_concurrent_requests: 3}", "max_http_attempts: 1800}")
    assert dump("models.yaml", models=tries).instances["judge"].settings["max_tries"] == 1800


REFUSED_KEYS = {
    "render_chat_template: true\n      use_completions_api: true": "render_chat_template: leave it",
    "endpoint_file: /shared/url": "endpoint_file: name the server that runs",
    "use_completions_api: true\n      continue_final_assistant_message: true": "a raw prompt is no",
    "propagate_context_overflow_errors: true": "propagate_context_overflow_errors: leave it out",
    "sampling_override: {top_p: 1}": "unknown key 'sampling_override'",
}
"""A key in a block → what its refusal says."""


def test_an_agent_that_executes_no_tools_is_the_one_that_asks_once(place: Path) -> None:
    agent = """
user:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: math}
      model_server: {type: responses_api_models, name: judge}
      max_steps: 1
      execute_tools: EXECUTES
"""
    found = dump("models.yaml", models=THEIR_MODELS + agent.replace("EXECUTES", "false"))
    assert found.instances["user"].implementation == "non_executing_simple_agent"
    assert "max_steps" not in found.instances["user"].settings
    found = dump("models.yaml", models=THEIR_MODELS + agent.replace("EXECUTES", "true"))
    assert found.instances["user"].implementation == "simple_agent"
    assert found.instances["user"].settings["max_steps"] == 1


def test_a_folder_of_the_checkout_does_not_shadow_ours_silently(
    place: Path, model: Endpoint
) -> None:
    theirs = place.parent / "Gym/resources_servers/mcqa"
    theirs.mkdir()
    (theirs / "app.py").write_text("from nemo_gym.servers import ResourcesServer\n")
    words = ["+config_paths=[mcqa.yaml]", "+nemo_gym=../Gym"]
    (place / "mcqa.yaml").write_text("mine: {resources_servers: {mcqa: {}}}")
    config = load(words, ValidateConfig)
    assert config.instances["mine"].code is None
    assert any("mcqa: rollout_kit's own code runs" in line for line in config.warnings)
    for name in ("mcqa", "mine", "all"):
        config = load([*words, f"+nemo_gym_code=[{name}]"], ValidateConfig)
        assert config.instances["mine"].code is not None, name
        assert list(select_needed(config.instances, ["mine"])) == ["mine"], "its keys are not ours"
        assert not config.warnings
    os.chdir(place.parent / "Gym")  # the working directory is a checkout
    (Path("mcqa.yaml")).write_text("mine: {resources_servers: {mcqa: {}}}")
    assert load(["+config_paths=[mcqa.yaml]"], ValidateConfig).instances["mine"].code is None


def test_an_agent_that_shares_only_its_name_with_ours_is_theirs(
    place: Path, model: Endpoint
) -> None:
    theirs = place.parent / "Gym/responses_api_agents/harness_agent"
    theirs.mkdir(parents=True)
    (theirs / "app.py").write_text("from nemo_gym.servers import SimpleResponsesAPIAgent\n")
    (place / "codex.yaml").write_text(
        """
theirs: {responses_api_agents: {harness_agent: {agent: codex, sandbox_provider: sandbox}}}
ours:
  responses_api_agents:
    harness_agent:
      resources_server: {type: resources_servers, name: lines}
      model_server: {type: responses_api_models, name: judge}
      command: "true"
lines: {resources_servers: {string_match: {}}}
"""
        + THEIR_MODELS
    )
    words = ["+config_paths=[codex.yaml]", "+nemo_gym=../Gym"]
    found = load(words, ValidateConfig).instances
    assert found["theirs"].code is not None and found["ours"].code is None


METADATA = """Metadata-Version: 2.4
Name: nemo-gym
Requires-Python: >=3.13.14
Requires-Dist: fastapi
Requires-Dist: ray[default]>=2.58.0; python_version < "3.15"
Provides-Extra: sandbox
Requires-Dist: tenacity>=9.1.4; extra == "sandbox"

NeMo Gym. Requires-Dist: nothing
"""


def test_a_wheel_says_in_its_metadata_what_a_clone_says_in_its_project(place: Path) -> None:
    root = place.parent / "Gym"
    (root / "pyproject.toml").unlink()
    (root / "nemo_gym-0.7.0.dist-info").mkdir()
    (root / "nemo_gym-0.7.0.dist-info/METADATA").write_text(METADATA)
    server = Gym.of({"nemo_gym": "../Gym"}, place).find("resources_servers", "counter")
    assert server is not None
    (server.folder / "requirements.txt").write_text("-e nemo-gym[dev,sandbox] @ ../../\nsix==1\n")
    found = environment_of(server)
    ray = 'ray[default]>=2.58.0; python_version < "3.15"'
    assert found.requirements == ("fastapi", ray, "tenacity>=9.1.4", "six==1")
    assert found.python == "3.13"


UV = """#!{python}
import pathlib, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*words, file=log)
if words[0] == "venv":
    folder = pathlib.Path(words[-1], "bin")
    folder.mkdir(parents=True)
    (folder / "python").symlink_to({python!r})
elif "six==9" in pathlib.Path(words[-1]).read_text():
    sys.exit("error: there is no six 9")
"""


def test_an_environment_is_made_once_and_only_on_demand(
    place: Path, model: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    tools, log = place.parent / "tools", place.parent / "uv.log"
    tools.mkdir()
    (tools / "uv").write_text(UV.format(python=sys.executable, log=str(log)))
    (tools / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    server = Gym.of({"nemo_gym": "../Gym"}, place).find("resources_servers", "counter")
    assert server is not None
    assert environment_of(server).requirements == ("fastapi", "aiohttp", "tenacity", "six==1.16.0")
    openai = "responses_api_models/openai_model/configs/openai_model.yaml"
    words = [f"+config_paths=[{LETTERS},{openai}]", "+nemo_gym=../Gym", *policy(model)]
    write_jsonl(place / "tasks.jsonl", [says("a", expected_answer="a")])
    words += ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
    with pytest.raises(SystemExit) as ended:
        collect_rollouts(words)
    assert ended.value.code == 1
    assert "+install=true makes it once" in capsys.readouterr().err
    assert not log.exists()
    # the stub installs nothing: the server then fails at its first import, under that interpreter
    monkeypatch.setattr(
        "rollout_kit.serving.nemo_gym.environments.Environment.interpreter", sys.executable
    )
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            collect_rollouts([*words, "+install=true", "+resume=fresh"])
        assert ended.value.code == 0
    assert len(log.read_text().splitlines()) == 2  # one `venv` and one `pip install`, once
    [made] = (place.parent / "cache/rollout_kit/nemo_gym").iterdir()
    assert (made / READY).is_file()


def test_a_server_that_no_file_wires_names_what_is_missing(
    place: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended:
        validate([f"+config_paths=[{LETTERS}]", "+nemo_gym=../Gym"])
    assert ended.value.code == 1
    assert "no instance 'policy_model'" in capsys.readouterr().err


def test_a_folder_that_is_no_checkout_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="is no checkout of NeMo Gym"):
        load([f"+config_paths=[{LETTERS}]", "+nemo_gym=."], ValidateConfig)


def test_the_nemo_gym_of_an_interpreter_is_a_checkout_whose_servers_it_runs(
    place: Path, model: Endpoint
) -> None:
    python = place.parent / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={place.parent}/Gym exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    write_jsonl(place / "tasks.jsonl", [says("a", expected_answer="a")])
    files = f"{LETTERS},responses_api_models/openai_model/configs/openai_model.yaml"
    words = [f"+config_paths=[{files}]", f"+nemo_gym=installed:{python}"]
    paths = "+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"
    with pytest.raises(SystemExit) as ended:
        collect_rollouts([*words, *paths, *policy(model)])
    assert ended.value.code == 0
    [line] = read_jsonl(place / "out/rollouts.jsonl")
    assert line["reward"] == 1.0


def test_an_interpreter_without_nemo_gym_is_named(place: Path) -> None:
    words = [f"+config_paths=[{LETTERS}]", f"+nemo_gym=installed:{sys.executable}"]
    with pytest.raises(ConfigError, match=r"has no NeMo Gym: .*not installed there"):
        load(words, ValidateConfig)
    with pytest.raises(ConfigError, match="/no/python has no NeMo Gym"):
        load([words[0], "+nemo_gym=installed:/no/python"], ValidateConfig)


def test_its_collector_finds_the_servers_of_an_ng_run(place: Path, model: Endpoint) -> None:
    """NeMo Gym's collector reads every server's address from the head server's configuration, and
    sends no token."""
    values = {"policy_model": {"responses_api_models": {"openai_model": {"x": 1}}}, "agent": {}}
    urls = {"policy_model": ["http://127.0.0.1:7001"], "agent": ["http://[::1]:7002"]}
    kinds = {
        "policy_model": ("responses_api_models", "openai_model"),
        "agent": ("responses_api_agents", "simple_agent"),
    }
    head = {"head_server": ["http://127.0.0.1:11000"]}
    found = with_addresses(values, kinds, {**urls, **head})
    [own] = found["policy_model"]["responses_api_models"].values()
    assert (own["host"], own["port"], own["x"]) == ("127.0.0.1", 7001, 1)
    assert found["agent"]["responses_api_agents"]["simple_agent"]["host"] == "[::1]"
    assert found["head_server"] == {"host": "127.0.0.1", "port": 11000}


def test_a_server_gets_a_whole_address_of_the_head_server() -> None:
    found = config_for({"head_server": {"port": 11001}}, {}, {})
    assert found["head_server"] == {"host": "127.0.0.1", "port": 11001}


METRICS = """
from pandas import DataFrame
from pandas.core.groupby import Groups
from wandb import Histogram

def histogram() -> Histogram | None:
    return None

def rows():
    frame = DataFrame([1])
    return isinstance(frame, DataFrame), isinstance(1, DataFrame), DataFrame.kind
"""

IMPORTS = """
import runpy, sys
sys.path.insert(0, sys.argv[2])
runpy.run_path(sys.argv[1], run_name="bootstrap")["import_metrics"]()
from nemo_gym.reward_profile import rows
assert "pandas" not in sys.modules and "wandb" not in sys.modules
print(rows(), "pandas" in sys.modules)
import pandas
print(pandas.__name__)
"""


def test_its_servers_import_what_metrics_need_only_when_they_use_it(tmp_path: Path) -> None:
    files = {
        "nemo_gym/__init__.py": "",
        "nemo_gym/server_utils.py": "",
        "nemo_gym/reward_profile.py": METRICS,
        "pandas/__init__.py": "class DataFrame(list):\n    kind = 'real'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", IMPORTS, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "(True, False, 'real') True\npandas\n"


@pytest.mark.parametrize(
    ("paths", "module", "expected"),
    [
        (["/seed_session", "/verify"], "nemo_gym.servers", ["/close_session", "/seed_session"]),
        (["/seed_session", "/verify"], "__main__", ["/close_session"]),
        (["/seed_session", "/verify", "/add"], "nemo_gym.servers", ["/close_session"]),
        (["/seed_session", "/close_session"], "__main__", []),
        (["/run"], "nemo_gym.servers", []),
    ],
)
def test_steps_that_need_none_of_a_servers_code_are_answered_before_it(
    paths: list[str], module: str, expected: list[str]
) -> None:
    def endpoint() -> None: ...

    endpoint.__module__ = module
    routes = [SimpleNamespace(path=path, methods={"POST"}, endpoint=endpoint) for path in paths]
    find_replies = runpy.run_path(str(SCRIPT), run_name="bootstrap")["find_replies"]
    assert sorted(find_replies(SimpleNamespace(routes=routes))) == expected


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("env run --config a.yaml --config=b.yaml", "ng_run +config_paths=[a.yaml,b.yaml]"),
        ("env start +a.b=c", "ng_run +a.b=c"),
        (
            "eval run --no-serve -a x -i in.jsonl --output out.jsonl --concurrency 4 --top-p=0.5",
            "ng_collect_rollouts +agent_name=x +input_jsonl_fpath=in.jsonl"
            " +output_jsonl_fpath=out.jsonl +num_samples_in_parallel=4"
            " +responses_create_params.top_p=0.5",
        ),
        ("eval prepare --benchmark gpqa", "ng_prepare_data +benchmark=gpqa"),
        ("eval run --help", "ng_collect_rollouts --help"),
        ("list agents", "ng_list +kind=agent"),
        ("--version", "ng_version"),
    ],
)
def test_its_commands_are_spelled_as_ours(theirs: str, ours: str) -> None:
    assert translate(theirs.split()) == ours.split()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("env prefetch", "gym env prefetch: has no counterpart here"),
        ("eval rum", "did you mean 'eval run'"),
        ("eval run --inpt x", "--inpt has no counterpart here (did you mean '--input'?)"),
        ("eval run --limit", "--limit needs a value"),
    ],
)
def test_a_spelling_without_a_counterpart_is_refused(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gym.main(words.split())
    assert ended.value.code == 1
    assert reason in capsys.readouterr().err


def test_a_command_in_its_spelling_says_which_of_ours_runs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["env", "validate", "--config", "a.yaml", "--model-api-key", "planted"]
    with pytest.raises(SystemExit):
        gym.main(words)
    said = capsys.readouterr().err
    assert "rollout_kit runs: ng_validate '+config_paths=[a.yaml]'" in said
    assert "planted" not in said and "a.yaml" in said.splitlines()[-1]


def test_a_server_may_lie_in_a_folder_of_folders(place: Path, model: Endpoint) -> None:
    agents = place.parent / "Gym/responses_api_agents"
    (agents / "family").mkdir()
    (agents / "plain_agent").rename(agents / "family/plain_agent")
    yaml = place.parent / "Gym" / COUNTER
    yaml.write_text(yaml.read_text().replace("    plain_agent:", "    family/plain_agent:"))
    words = ["+agent_name=plain_counter_agent"]
    assert [row["reward"] for row in collect(place, model, COUNTER, [counts(1, 4)], *words)] == [1]
    for name in ("../plain_agent", "/", "", "."):
        assert Gym.of({"nemo_gym": "../Gym"}, place).find("responses_api_agents", name) is None


def test_a_server_begins_at_the_entrypoint_of_its_block(place: Path, model: Endpoint) -> None:
    agent = place.parent / "Gym/responses_api_agents/plain_agent"
    shutil.copy(agent / "app.py", agent / "other.py")
    (agent / "app.py").write_text("import nemo_gym\n")
    yaml = place.parent / "Gym" / COUNTER
    before, after = yaml.read_text().split("    plain_agent:\n      entrypoint: app.py")
    yaml.write_text(f"{before}    plain_agent:\n      entrypoint: other.py{after}")
    words = ["+agent_name=plain_counter_agent"]
    assert [row["reward"] for row in collect(place, model, COUNTER, [counts(1, 4)], *words)] == [1]


def test_a_failure_that_an_agent_reports_is_no_rollout(place: Path, model: Endpoint) -> None:
    agent = place.parent / "Gym/responses_api_agents/plain_agent/app.py"
    text = agent.read_text()
    reported = 'return {"_ng_failure_class": "sandbox lost", "_ng_failure_terminal": True}'
    place_of = text.index("        resources, model = ")
    agent.write_text(f"{text[:place_of]}        {reported}\n{text[place_of:]}")
    words = ["+agent_name=plain_counter_agent", "+max_failed_fraction=1"]
    found = collect(place, model, COUNTER, [counts(1, 4)], *words)
    assert found == []
    [failure] = read_jsonl(place / "out/rollouts.d/failures.jsonl")
    assert "/run reported: sandbox lost" in str(failure)


def test_a_benchmark_is_prepared_and_collected_with_its_own_prompt_and_repeats(
    place: Path, model: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    openai = "responses_api_models/openai_model/configs/openai_model.yaml"
    python = ["+nemo_gym=../Gym", f"+nemo_gym_python={sys.executable}"]
    words = [f"+config_paths=[benchmarks/letters/config.yaml,{openai}]", *python, *policy(model)]
    words += ["+output_jsonl_fpath=out/rollouts.jsonl"]
    with pytest.raises(SystemExit) as ended:
        collect_rollouts(words)
    assert ended.value.code == 1
    assert "ng_prepare_data +benchmark=letters writes it" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        prepare_data(["+benchmark=letters", *python])
    assert ended.value.code == 0
    assert "wrote" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        collect_rollouts([*words])
    assert ended.value.code == 0
    found = read_jsonl(place / "out/rollouts.jsonl")
    assert len(found) == 3 * 3
    [asked] = {row["responses_create_params"]["input"][0]["content"] for row in found[:1]}
    assert asked.startswith("Which letter comes after ")
    assert {row["answer"] for row in found} == {"a", "b", "c"}


def test_a_script_that_fails_says_so_with_its_last_words(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = place.parent / "Gym/benchmarks/letters/prepare.py"
    script.write_text("def prepare():\n    raise OSError('Name or service not known')\n")
    with pytest.raises(SystemExit) as ended:
        prepare_data(
            ["+benchmark=letters", "+nemo_gym=../Gym", f"+nemo_gym_python={sys.executable}"]
        )
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "need the network" in said and "Name or service not known" in said
