"""Rows that run with other agents than they name, and with several."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint, says
from support import row, write_jsonl
from workplace import Workplace

from rollout_kit.errors import ConfigError
from rollout_kit.store.tasks import Routes

SERVERS = """
config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]
exact: {resources_servers: {string_match: {entrypoint: app.py}}}
""" + "".join(
    f"""
{name}:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: exact}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""
    for name in ("one", "another", "third")
)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    with endpoint(says(lambda body: "4")) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "agents.yaml").write_text(SERVERS)
        rows = [
            {**row("2 + 2?", expected_answer="4"), "agent_ref": {"name": "old"}},
            {**row("1 + 3?", expected_answer="4"), "agent_ref": {"name": "another"}},
            row("9 - 5?", expected_answer="4"),
        ]
        write_jsonl(tmp_path / "tasks.jsonl", rows)
        yield place


def collect(place: Workplace, *words: str) -> tuple[int, str]:
    return place.run(
        *("collect_rollouts", "+config_paths=[agents.yaml]"),
        *("+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl", *words),
    )


def agents(place: Workplace) -> Counter[tuple[str, str]]:
    asked = [line["responses_create_params"]["input"] for line in place.lines()]
    ran = [line["agent_ref"]["name"] for line in place.lines()]
    return Counter(zip((each[-1]["content"] for each in asked), ran, strict=True))


def test_rows_run_with_other_agents_and_are_not_repeated(place: Workplace) -> None:
    words = "+agent_map={old: one, _default: third}", "+num_repeats=2"
    status, said = collect(place, *words)
    assert status == 0, said
    expected = {("2 + 2?", "one"): 2, ("1 + 3?", "third"): 2, ("9 - 5?", "third"): 2}
    assert agents(place) == expected
    status, said = collect(place, *words)
    assert status == 0 and "6 done" in said and agents(place) == expected, said


def test_a_row_runs_with_several_agents_which_are_compared(place: Workplace) -> None:
    words = "+fan_out={old: [one, another]}", "+agent_name=one"
    status, said = collect(place, *words)
    assert status == 0, said
    assert agents(place) == {
        ("2 + 2?", "one"): 1,
        ("2 + 2?", "another"): 1,
        ("1 + 3?", "one"): 1,
        ("9 - 5?", "one"): 1,
    }
    status, said = place.run("compare", "out/rollouts.jsonl")
    assert status == 0 and "one" in said and "over 1 common task" in said, said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["+agent_map={old: thrid}"], "agent_map.old: no agent is called 'thrid' (did you mean"),
        (["+fan_out={old: [one, one]}"], "fan_out.old: 'one' is named twice"),
        (["+fan_out={old: []}"], "fan_out.old: name at least one agent"),
        (["+agent_map={_default: one}", "+agent_name=third"], "agent_name: 'third', but agent_map"),
    ],
)
def test_routes_that_lead_nowhere(words: list[str], why: str, place: Workplace) -> None:
    status, said = collect(place, *words)
    assert status == 1 and why in said, said


def test_the_name_in_the_row_comes_before_its_source() -> None:
    routes = Routes({"a": "x", "s": "y", "_default": "z"}, {"b": ["p", "q"]})
    assert routes.agents_of("a", "s") == ["x"]
    assert routes.agents_of("c", "s") == ["y"]
    assert routes.agents_of(None, "other") == ["z"]
    assert routes.agents_of("b", "s") == ["p", "q"]
    assert routes.agents_of(None, "b") == ["p", "q"]
    assert not Routes() and Routes().agents_of("a", None) == ()
    with pytest.raises(ConfigError, match="there are: none"):
        routes.check([])
