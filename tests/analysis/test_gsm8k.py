"""configs/gsm8k.yaml and gsm8k_platinum.yaml: prepared, collected, voted on and compared.

The rows are a few of our own in the format of these datasets; the datasets come from Hugging Face.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint, says
from support import asked, read_jsonl
from workplace import ROOT, Workplace

NUM_WRONG = {"before": 3, "after": 1}
"""Of four answers to a problem, how many are wrong, all in the same way."""


@pytest.mark.parametrize("name", ["gsm8k", pytest.param("gsm8k_platinum", marks=pytest.mark.slow)])
def test_rows_are_prepared_collected_voted_on_and_compared(name: str, tmp_path: Path) -> None:
    with endpoint(says(lambda body: "")) as model:
        place = Workplace(tmp_path, model)
        yaml = f"+config_paths=[{ROOT}/configs/{name}.yaml,run.yaml]"
        status, said = place.run(
            *("prepare_data", f"+config_paths=[{ROOT}/configs/{name}.yaml]"),
            *("+mode=example_validation", "+output_dirpath=data"),
        )
        assert status == 0 and "8 rows, 8 tasks" in said, said
        tasks = read_jsonl(tmp_path / "data/example.jsonl")
        assert [task["expected_answer"] for task in tasks[3:6]] == ["2,800", "185", "42"]
        right = {asked(task["responses_create_params"]): task["expected_answer"] for task in tasks}
        for file, num_wrong in NUM_WRONG.items():
            wrong = {question: ["7.5"] * num_wrong for question in right}

            def answer(body: Any, wrong: dict[str, list[str]] = wrong) -> str:
                question = asked(body)
                return f"#### {wrong[question].pop() if wrong[question] else right[question]}"

            model.behaviour = says(answer)
            status, said = place.run(
                *("collect_rollouts", yaml, f"+agent_name={name}_agent", "+num_repeats=4"),
                *("+input_jsonl_fpath=data/example.jsonl", f"+output_jsonl_fpath={file}.jsonl"),
            )
            assert status == 0, said
        status, said = place.run("compare", "before.jsonl", "after.jsonl", "+json=true")
        assert status == 0, said
    found = json.loads(said)
    before, after = found["files"]
    assert (before["reward"], after["reward"]) == (0.25, 0.75)
    assert (before["maj_at_k"]["4"], after["maj_at_k"]["4"]) == (0.0, 1.0)
    assert before["pass_at_k"]["4"] == 1.0
    assert found["pairs"][0]["conclusion"].startswith("The second is better")


def test_a_dataset_that_must_be_prepared_first_is_named(tmp_path: Path) -> None:
    with endpoint(says(lambda body: "")) as model:
        place = Workplace(tmp_path, model)
        for name in ("test", "example"):
            status, said = place.run(
                *("collect_rollouts", f"+config_paths=[{ROOT}/configs/gsm8k.yaml,run.yaml]"),
                *("+output_jsonl_fpath=out.jsonl", f"+dataset={name}", "+agent_name=gsm8k_agent"),
            )
            assert status == 1 and f"'{name}' is not in the form of tasks: run ng_prepare" in said


def test_the_eight_arms_run_on_the_tiny_model_and_export_the_grouped_view(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    model = "responses_api_models/local_model/configs/local_model.yaml"
    with endpoint(says(lambda body: "")) as unused:
        place = Workplace(tmp_path, unused)
        status, said = place.run(
            *("prepare_data", f"+config_paths=[{ROOT}/configs/gsm8k.yaml]"),
            *("+mode=example_validation", "+output_dirpath=data"),
        )
        assert status == 0, said
        status, said = place.run(
            *("collect_rollouts", f"+config_paths=[configs/coherence_math_8.yaml,{model}]"),
            *("+input_jsonl_fpath=data/example.jsonl", "+output_jsonl_fpath=rollouts.jsonl"),
            "+responses_create_params.max_output_tokens=12",
        )
        assert status == 0 and "8 tasks × 8 arms = 64 rollouts" in said, said
        assert "8 of 8 groups scored" in said, said
        status, said = place.run(
            *("export", "rollouts.jsonl", "+format=grouped", "+output_fpath=grouped.jsonl")
        )
        assert status == 0, said
        status, said = place.run("pairs", "rollouts.jsonl", "+output_fpath=pairs.jsonl")
        # the tiny model knows no word problems: cut off after 12 tokens, nothing makes a pair
        assert status == 1 and "drop_truncated" in said, said
    rows = read_jsonl(tmp_path / "grouped.jsonl")
    assert [len(row["trajectories"]) for row in rows] == [8] * 8
    assert {"question", "gold_answer", "trajectories"} <= rows[0].keys()
    names = {"full_text", "answer", "reasoning", "num_tokens", "reward", "correct", "arm_name"}
    assert all(names <= each.keys() for row in rows for each in row["trajectories"])
    assert rows[0]["trajectories"][0]["arm_name"] == "direct_0"
