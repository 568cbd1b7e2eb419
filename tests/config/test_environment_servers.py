"""NeMo Gym's environment servers: further names of an agent, in YAML, rows, commands and files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import as_function
from endpoint import Endpoint, endpoint
from running import ng_run
from support import read_jsonl, write_jsonl

from rollout_kit.api.testing import call_response, text_response
from rollout_kit.authoring.catalogue import check_files
from rollout_kit.collecting.data.entries import list_datasets
from rollout_kit.config.keys import ValidateConfig
from rollout_kit.config.load import Config, load
from rollout_kit.errors import ConfigError
from rollout_kit.serving.nemo_gym.checkout import Gym
from rollout_kit.serving.nemo_gym.handover import with_addresses
from rollout_kit.serving.nemo_gym.rows import flatten

collect_rollouts = as_function("ng_collect_rollouts")
reverify = as_function("ng_reverify")
validate = as_function("ng_validate")

BASE = """
policy_model:
  responses_api_models:
    openai_model: {entrypoint: app.py, openai_base_url: URL, openai_api_key: k, openai_model: m}
mcqa:
  resources_servers:
    mcqa: {entrypoint: app.py, domain: knowledge, verified: false, grading_mode: null}
mcqa_simple_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: mcqa}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
      - {name: example, type: example, jsonl_fpath: tasks.jsonl}
"""

LEGACY = """
mcqa_environment_server:
  environment_servers:
    legacy_agent:
      entrypoint: app.py
      agent_server: {type: responses_api_agents, name: mcqa_simple_agent}
"""

TURN = """
mcqa_turn:
  environment_servers:
    KIND:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: mcqa}
      agent_server: {type: responses_api_agents, name: mcqa_simple_agent}
      resources_tool_transports: [direct_http]
      max_concurrent_episodes: null
      queue_timeout_seconds: null
      default_episode_timeout_seconds: 21600
      cleanup_timeout_seconds: 180
"""

INHERITED = """
gpqa_resources_server: {_inherit_from: mcqa}
gpqa_simple_agent:
  _inherit_from: mcqa_simple_agent
  responses_api_agents:
    simple_agent: {resources_server: {name: gpqa_resources_server}}
gpqa_environment_server:
  DIRECTIVE: mcqa_environment_server
  environment_servers:
    legacy_agent: {agent_server: {name: gpqa_simple_agent}}
"""


def answer_b(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, text_response(r"\boxed{B}")


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with endpoint(answer_b) as found:
        yield found


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def question(expected: str, **more: Any) -> dict[str, Any]:
    options = [{letter: f"{expected}{letter}"} for letter in "ABCD"]
    asked = {"input": [{"role": "user", "content": f"Which? {expected} {sorted(more)}"}]}
    return {
        "responses_create_params": asked,
        "options": options,
        "expected_answer": expected,
        **more,
    }


def deep(row: dict[str, Any], container: str) -> dict[str, Any]:
    """The same row with the fields of its task in a container."""
    inner = {name: row[name] for name in ("options", "expected_answer")}
    return {name: row[name] for name in row if name not in inner} | {container: inner}


def write(work: Path, text: str, url: str = "http://127.0.0.1:1/v1") -> Path:
    path = work / "their.yaml"
    path.write_text(text.replace("URL", url))
    return path


def dump(text: str, *words: str, command: Any = ValidateConfig) -> Config[Any]:
    write(Path.cwd(), text)
    return load(["+config_paths=[their.yaml]", *words], command)


def run(main: Any, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def collect(
    work: Path, model: Endpoint, text: str, rows: list[Any], *words: str, output: str | None = None
) -> list[Any]:
    write(work, text, model.url)
    write_jsonl(work / "tasks.jsonl", rows)
    name = "rollouts.jsonl" if output is None else output
    named = () if any("dataset=" in word for word in words) else ("+input_jsonl_fpath=tasks.jsonl",)
    into = f"+output_jsonl_fpath={name}"
    code = run(collect_rollouts, "+config_paths=[their.yaml]", *named, into, *words)
    assert code == 0
    return read_jsonl(work / name)


def names(line: dict[str, Any]) -> tuple[str, str | None]:
    """The name in a rollout's key, and the agent behind it."""
    return line["agent_ref"]["name"], line["rollout"].get("agent")


ALIAS = ("mcqa_environment_server", "mcqa_simple_agent")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (BASE + LEGACY, "mcqa_environment_server"),
        (BASE + TURN.replace("KIND", "single_agent_turn"), "mcqa_turn"),
        (BASE + TURN.replace("KIND", "single_agent_turn_legacy"), "mcqa_turn"),
        (
            BASE
            + LEGACY
            + INHERITED.replace("_inherit_from", "_copy").replace("DIRECTIVE", "_copy"),
            "gpqa_environment_server",
        ),
    ],
)
def test_the_name_of_the_command_is_the_keys_and_the_agent_stands_beside_it(
    work: Path, model: Endpoint, text: str, name: str
) -> None:
    rows = [question("B"), question("C")]
    found = collect(work, model, text, rows, f"+agent_name={name}", "+num_repeats=2")
    agent = "gpqa_simple_agent" if name.startswith("gpqa") else "mcqa_simple_agent"
    assert [names(line) for line in found] == [(name, agent)] * 4
    assert sorted(line["reward"] for line in found) == [0.0, 0.0, 1.0, 1.0]
    again = collect(work, model, text, rows, f"+agent_name={name}", "+num_repeats=2")
    assert again == found and len(model.requests) == 4


def test_each_row_may_name_the_environment_server_or_its_agent(work: Path, model: Endpoint) -> None:
    rows = [
        question("B", agent_ref={"name": "mcqa_environment_server"}),
        question("C", agent_ref={"type": "responses_api_agents", "name": "mcqa_simple_agent"}),
        question("D"),
        question("A", task_source="mcqa_environment_server"),
        question("A", task_source="mcqa_simple_agent", n=1),
        question("A", task_source="mcqa", n=2),
    ]
    found = collect(work, model, BASE + LEGACY, rows)
    by_task = {line["_ng_task_index"]: names(line) for line in found}
    own = ("mcqa_simple_agent", None)
    assert by_task == {0: ALIAS, 1: own, 2: own, 3: ALIAS, 4: own, 5: own}


def test_an_inherited_block_leads_to_the_inheriting_agent_only(work: Path) -> None:
    text = BASE + LEGACY + INHERITED.replace("DIRECTIVE", "_inherit_from")
    found = dump(text.replace("{_inherit_from: mcqa}", "{_copy: mcqa}"))
    [name] = [key for key in found.values if "environment" in key]
    assert name == "gpqa_environment_server"
    [settings] = found.values[name]["environment_servers"].values()
    assert settings["agent_server"]["name"] == "gpqa_simple_agent"
    assert set(found.instances) == {
        "policy_model",
        "mcqa",
        "gpqa_resources_server",
        "gpqa_simple_agent",
    }


@pytest.mark.parametrize("container", ["task_data", "verifier_metadata"])
def test_fields_of_a_task_count_wherever_a_row_has_them(
    work: Path, model: Endpoint, container: str
) -> None:
    rows = [deep(question(letter), container) for letter in "ABC"]
    found = collect(work, model, BASE + LEGACY, rows)
    assert [(line["_ng_task_index"], line["reward"]) for line in found] == [(0, 0), (1, 1), (2, 0)]
    flat = {line["rollout"]["task_id"] for line in found}
    plain = [question(letter) for letter in "ABC"]
    again = collect(work, model, BASE + LEGACY, plain, output="again.jsonl")
    same = {line["rollout"]["task_id"] for line in again} == flat
    assert same == (container == "task_data")


def test_a_materialized_task_runs_with_the_environment_server_of_its_taskset(
    work: Path, model: Endpoint
) -> None:
    text = BASE + TURN.replace("KIND", "single_agent_turn")
    text += "environment_server_routes: {'mcqa:example': mcqa_turn}\n"
    flat = [question("B"), question("C")]
    identity = [{"taskset": "mcqa:example", "task_id": str(number)} for number in range(2)]
    rows = [
        {"task_id": identity[0], "task_input": flat[0]},
        {"task_id": identity[1], "task_input": deep(flat[1], "task_data")},
    ]
    found = collect(work, model, text, rows)
    assert [names(line) for line in found] == [("mcqa_turn", "mcqa_simple_agent")] * 2
    assert {line["task_id"]: line["reward"] for line in found} == {"0": 1.0, "1": 0.0}
    assert {line["task_source"] for line in found} == {"mcqa:example"}


def test_a_field_with_two_values_makes_a_row_malformed(work: Path, model: Endpoint) -> None:
    wrong = question("B") | {"task_data": {"expected_answer": "C"}}
    doubled = question("B", n=1) | {"verifier_metadata": {"expected_answer": "C"}}
    write(work, BASE + LEGACY, model.url)
    write_jsonl(work / "tasks.jsonl", [wrong, doubled, question("B")])
    words = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=rollouts.jsonl"]
    run(collect_rollouts, "+config_paths=[their.yaml]", *words)
    assert len(read_jsonl(work / "rollouts.jsonl")) == len(model.requests) == 1
    failures = str(read_jsonl(work / "rollouts.d/failures.jsonl"))
    assert "expected_answer has two values, one of them in task_data" in failures
    assert "expected_answer has two values, one of them in verifier_metadata" in failures


@pytest.mark.parametrize(
    ("row", "flat"),
    [
        ({"a": 1}, {"a": 1}),
        ({"task_data": "a text"}, {"task_data": "a text"}),
        ({"task_data": {"a": 1}, "a": 1}, {"a": 1}),
        ({"task_data": {}, "verifier_metadata": {"b": 2}}, {"verifier_metadata": {"b": 2}}),
        ({"task_id": "7", "task_input": {"a": 1}}, {"task_id": "7", "task_input": {"a": 1}}),
        (
            {"task_id": {"taskset": "t", "task_id": "7"}, "task_input": {"task_data": {"a": 1}}},
            {"task_id": "7", "task_source": "t", "a": 1},
        ),
        (
            {"task_id": {"taskset": "t", "task_id": "7"}, "task_input": {"task_id": "own"}},
            {"task_id": "own", "task_source": "t"},
        ),
    ],
)
def test_a_row_is_flattened_without_a_loss(row: dict[str, Any], flat: dict[str, Any]) -> None:
    assert flatten(row) == flat


def test_an_agent_without_a_resources_server_gets_that_of_its_environment_server(
    work: Path, model: Endpoint
) -> None:
    bare = BASE.replace("      resources_server: {type: resources_servers, name: mcqa}\n", "")
    text = bare + TURN.replace("KIND", "single_agent_turn_legacy")
    found = collect(work, model, text, [question("B"), question("C")])
    assert [names(line) for line in found] == [("mcqa_simple_agent", None)] * 2
    assert sorted(line["reward"] for line in found) == [0.0, 1.0]


def test_an_environment_server_may_have_its_agent_verified_by_another_server(
    work: Path, model: Endpoint
) -> None:
    text = BASE + TURN.replace("KIND", "single_agent_turn").replace("name: mcqa}", "name: match}")
    text += "match: {resources_servers: {string_match: {}}}\n"
    row = question("B", extraction_mode="boxed", case_sensitive=False)
    found = collect(work, model, text, [row], "+agent_name=mcqa_turn")
    assert [names(line) for line in found] == [("mcqa_turn", "mcqa_simple_agent")]
    assert found[0]["reward"] == 1.0 and "extraction_mode" in found[0]
    own = collect(work, model, text, [row], "+agent_name=mcqa_simple_agent", output="own.jsonl")
    assert names(own[0]) == ("mcqa_simple_agent", None)
    assert own[0]["rollout"]["verifier"] != found[0]["rollout"]["verifier"]


def test_datasets_may_lie_with_any_server(work: Path, model: Endpoint) -> None:
    listed = "      datasets:\n      - {name: example, type: example, jsonl_fpath: tasks.jsonl}\n"
    text = BASE.replace(listed, "").replace(
        "grading_mode: null}",
        "datasets: [{name: one, type: example, jsonl_fpath: tasks.jsonl}]}",
    )
    turn = TURN.replace("KIND", "single_agent_turn")
    found = collect(work, model, text + turn, [question("B")], "+dataset=one")
    assert [names(line) for line in found] == [("mcqa_turn", "mcqa_simple_agent")]
    named = collect(work, model, text + LEGACY, [question("B")], "+dataset=one", output="n.jsonl")
    assert [names(line) for line in named] == [("mcqa_simple_agent", None)]


def test_datasets_of_any_server_are_prepared(work: Path) -> None:
    entry = "{name: one, type: example, jsonl_fpath: tasks.jsonl, taskset: t, license: x}"
    text = BASE.replace("grading_mode: null}", f"datasets: [{entry}]}}")
    config = dump(text + TURN.replace("KIND", "single_agent_turn"))
    listed = [(each.agent, each.entry.name, each.entry.taskset) for each in list_datasets(config)]
    assert listed == [("mcqa_simple_agent", "example", None), ("mcqa_turn", "one", "t")]


def test_tools_of_a_turn_reach_the_resources_server(work: Path, model: Endpoint) -> None:
    def use(body: dict[str, Any]) -> tuple[int, Any]:
        outputs = [item for item in body["input"] if item.get("type") == "function_call_output"]
        called = call_response(("increment_counter", '{"count": 4}'))
        return 200, text_response("done") if outputs else called

    model.behaviour = use
    text = BASE.replace(
        "mcqa: {entrypoint: app.py, domain: knowledge, verified: false, grading_mode: null}",
        "example_session_state_mgmt: {entrypoint: app.py}",
    )
    asked = {"input": [{"role": "user", "content": "Count."}]}
    rows = [{"responses_create_params": asked, "initial_count": 1, "expected_count": 5}]
    turn = TURN.replace("KIND", "single_agent_turn")
    [line] = collect(work, model, text + turn, rows, "+agent_name=mcqa_turn")
    assert line["reward"] == 1.0 and line["rollout"]["num_tool_calls"] == 1


def test_stored_rollouts_are_verified_again_under_the_same_name(
    work: Path, model: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [question("B"), question("C")]
    for text, name in (
        (BASE + LEGACY, "mcqa_environment_server"),
        (BASE + TURN.replace("KIND", "single_agent_turn"), "mcqa_turn"),
    ):
        found = collect(work, model, text, rows, f"+agent_name={name}", output=f"{name}.jsonl")
        words = [f"+input_jsonl_fpath={name}.jsonl", f"+output_jsonl_fpath=again_{name}.jsonl"]
        code = run(reverify, "+config_paths=[their.yaml]", *words)
        assert code == 0, capsys.readouterr().err
        again = read_jsonl(work / f"again_{name}.jsonl")
        assert [names(line) for line in again] == [names(line) for line in found]
        assert [line["reward"] for line in again] == [line["reward"] for line in found]


def test_the_names_work_beside_a_running_ng_run(work: Path, model: Endpoint) -> None:
    path = write(work, BASE + LEGACY, model.url)
    rows = [question("B"), question("C", agent_ref={"name": "mcqa_environment_server"})]
    write_jsonl(work / "tasks.jsonl", rows)
    with ng_run(work, config=str(path)) as head:
        port = head.rpartition(":")[2].rstrip("/")
        words = [f"+head_server.port={port}", "+input_jsonl_fpath=tasks.jsonl"]
        output = "+output_jsonl_fpath=rollouts.jsonl"
        assert run(collect_rollouts, *words, output) == 0
    found = {line["_ng_task_index"]: names(line) for line in read_jsonl(work / "rollouts.jsonl")}
    assert found == {0: ("mcqa_simple_agent", None), 1: ALIAS}


def test_its_collector_finds_the_environment_server_where_the_agent_is(work: Path) -> None:
    values = dump(BASE + LEGACY).values
    urls = {"mcqa_simple_agent": ["http://127.0.0.1:7002"], "head_server": ["http://127.0.0.1:1"]}
    kinds = {"mcqa_simple_agent": ("responses_api_agents", "simple_agent")}
    found = with_addresses(values, kinds, urls)["mcqa_environment_server"]
    own = found["environment_servers"]["legacy_agent"]
    assert (own["host"], own["port"]) == ("127.0.0.1", 7002)
    assert own["agent_server"]["name"] == "mcqa_simple_agent"


def test_a_rollout_ends_at_the_limit_of_its_environment_server(work: Path, model: Endpoint) -> None:
    model.num_answered = 0
    text = BASE + TURN.replace("KIND", "single_agent_turn").replace("21600", "0.05")
    write(work, text, model.url)
    write_jsonl(work / "tasks.jsonl", [question("B")])
    words = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=rollouts.jsonl"]
    run(collect_rollouts, "+config_paths=[their.yaml]", *words, "+agent_name=mcqa_turn")
    [failure] = read_jsonl(work / "rollouts.d/failures.jsonl")
    assert "did not end within default_episode_timeout_seconds=0.05" in str(failure)


def of(kind: str, **settings: Any) -> str:
    """A block of this kind."""
    agent = {"agent_server": {"type": "responses_api_agents", "name": "mcqa_simple_agent"}}
    block = {"environment_servers": {kind: {"entrypoint": "app.py", **agent, **settings}}}
    return yaml.safe_dump({"front": block})


REFERENCE = {"type": "resources_servers", "name": "mcqa"}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            of(
                "legacy_agent", agent_server={"type": "responses_api_agents", "name": "mcqa_simple"}
            ),
            r"front \(legacy_agent\): agent_server: no instance 'mcqa_simple' \(did you mean",
        ),
        (
            of("legacy_agent", agent_server={"type": "responses_api_agents", "name": "mcqa"}),
            "agent_server: 'mcqa' is one of the resources_servers, not of the responses_api_agents",
        ),
        (
            of(
                "legacy_agent",
                agent_server={"type": "resources_servers", "name": "mcqa_simple_agent"},
            ),
            "'mcqa_simple_agent' is one of the resources_servers, not of the responses_api_agents",
        ),
        (of("legacy_agent", agent_server=None), "front .*agent_server"),
        (of("legacy_agent", agent_servr=1), r"unknown key 'agent_servr' \(did you mean"),
        (of("legacy_agent", port=8123), "port: is no server here, but a name of its agent"),
        (of("legacy_agent", entrypoint="own.py"), "entrypoint: is no server here"),
        (of("legacy_agent", max_concurrent_episodes=0), "front .*max_concurrent_episodes"),
        (of("legacy_agent", resources_server=REFERENCE), "unknown key 'resources_server'"),
        (of("single_agent_turn"), "resources_server: is required, and missing"),
        (
            of("single_agent_turn", resources_server={**REFERENCE, "name": "mcqb"}),
            "resources_server: no instance 'mcqb'",
        ),
        (
            of("single_agent_turn", resources_server=REFERENCE, max_concurrent_episodes=8),
            "leave it out: num_samples_in_parallel limits",
        ),
        (
            of("single_agent_turn", resources_server=REFERENCE, resources_tool_transports=["ssh"]),
            "resources_tool_transports",
        ),
        (of("my_own"), r"front \(my_own\): .*no code for it, environment_servers/my_own/app.py"),
        (
            of("legacy_agent").replace("environment_servers", "environment_server"),
            "unknown server type 'environment_server' .did you mean 'environment_servers'",
        ),
        (of("legacy_agent").replace("legacy_agent:", "legacy_agnt:"), r"legacy_agnt.*known are"),
        (
            "front: {environment_servers: {legacy_agent: {}, single_agent_turn: {}}}",
            "holds 2 implementations",
        ),
        ("front: {environment_servers: {}}", "must hold one implementation"),
        (
            "front: {environment_servers: {legacy_agent: {}}, responses_api_agents: {a: {}}}",
            "has two server types",
        ),
        ("environment_server_routes: {t: frnt}\n" + of("legacy_agent"), "routes.t: no environment"),
        ("environment_server_routes: [t]\n" + of("legacy_agent"), "routes: expected a mapping"),
    ],
)
def test_a_block_that_would_be_ignored_is_refused(work: Path, block: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        dump(BASE + block)


def test_an_agent_that_is_still_to_be_named_is_asked_for(work: Path) -> None:
    text = of("legacy_agent", agent_server={"type": "responses_api_agents", "name": "???"})
    with pytest.raises(ConfigError, match=r"agent_server.name is mandatory") as refused:
        dump(BASE + text)
    assert "no instance" not in str(refused.value)
    place = "front.environment_servers.legacy_agent.agent_server.name"
    found = dump(BASE + text, f"++{place}=mcqa_simple_agent")
    assert "front" not in found.instances


def test_limits_that_a_relay_does_not_apply_are_named(work: Path) -> None:
    usual = {"default_episode_timeout_seconds": 21600, "cleanup_timeout_seconds": 180}
    assert dump(BASE + of("legacy_agent", **usual)).warnings == ()
    [told] = dump(BASE + of("legacy_agent", max_concurrent_episodes=9)).warnings
    assert "front (legacy_agent): max_concurrent_episodes has no effect" in told


def test_an_unknown_name_in_the_command_suggests_an_environment_server(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, BASE + LEGACY)
    write_jsonl(work / "tasks.jsonl", [question("B", task_source="mcqa_environment")])
    words = ["+config_paths=[their.yaml]", "+input_jsonl_fpath=tasks.jsonl"]
    words += ["+output_jsonl_fpath=r.jsonl"]
    assert run(collect_rollouts, *words, "+agent_name=mcqa_environment_serve") == 1
    assert "did you mean 'mcqa_environment_server'" in capsys.readouterr().err


def test_every_yaml_of_a_checkout_is_looked_up_there_first(work: Path) -> None:
    """This toolkit ships a file of the same name."""
    root = work / "site-packages"
    for place, text in {
        "nemo_gym/__init__.py": "",
        "resources_servers/mcqa/configs/mcqa.yaml": BASE.replace("URL", "http://h/v1") + LEGACY,
        "benchmarks/gpqa/config.yaml": "config_paths: [resources_servers/mcqa/configs/mcqa.yaml]\n"
        + INHERITED.replace("DIRECTIVE", "_inherit_from"),
    }.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    found = {each.path: (each.status, each.reason) for each in check_files(Gym(root, work))}
    assert found == {
        "resources_servers/mcqa/configs/mcqa.yaml": ("valid", ""),
        "benchmarks/gpqa/config.yaml": ("valid", ""),
    }


def test_a_mapping_for_its_sandboxes_needs_a_server_with_its_code(work: Path) -> None:
    with pytest.raises(ConfigError, match=r"'sandbox' in .* no server here runs NeMo Gym's code"):
        dump(BASE + "sandbox: {docker: {image: x}}\n")


def test_ng_validate_takes_their_file(work: Path) -> None:
    write(work, BASE + LEGACY)
    assert run(validate, "+config_paths=[their.yaml]") == 0
