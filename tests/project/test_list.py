"""ng_list: what can be used, where it is from, what it needs; and the check of a whole checkout."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import as_function

from rollout_kit.errors import ConfigError
from rollout_kit.serving.nemo_gym.benchmarks import config_of

list_command = as_function("ng_list")

GYM = Path(__file__).parents[1] / "gym"


@pytest.fixture
def gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(GYM, tmp_path / "Gym")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "Gym"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        list_command([*argv, "+json=true"])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_it_lists_ours_and_those_of_a_checkout_with_their_needs(
    gym: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {(each["kind"], each["name"]): each for each in run(capsys, "+nemo_gym=Gym")}
    assert found["environment", "mcqa"] == {
        "kind": "environment",
        "name": "mcqa",
        "source": "rollout_kit",
        "needs": "",
    }
    counter = found["environment", "counter"]
    assert counter["source"].endswith("Gym/resources_servers/counter")
    assert counter["needs"] == "six==1.16.0"
    assert found["agent", "plain_agent"]["needs"] == "NeMo Gym's environment"
    assert found["benchmark", "letters"]["needs"] == "ng_prepare_data +benchmark=letters"
    letters = gym / "benchmarks/letters"
    shutil.copy(letters / "config.yaml", letters / "hard.yaml")
    only = {each["name"]: each for each in run(capsys, "+nemo_gym=Gym", "+kind=benchmark")}
    assert run(capsys, "+nemo_gym=Gym", "+benchmarks=true") == list(only.values())
    theirs = sorted(name for name, each in only.items() if each["source"] != "rollout_kit")
    assert theirs == ["letters", "letters/hard.yaml"]
    assert only["human_eval"]["about"].startswith("164 rows: ")
    hard = only["letters/hard.yaml"]["needs"]
    assert hard == "ng_prepare_data +benchmark=letters/hard.yaml"
    assert config_of("letters/hard.yaml", gym) == "benchmarks/letters/hard.yaml"


MANIFEST = """
name: letters/hard
description: Letters that are
  hard.
domain: knowledge
licensing: MIT
lifecycle: deprecated
datasets: [{name: letters, type: benchmark, prepare_script: benchmarks/letters/prepare.py}]
config_path: ../hard.yaml
"""


def test_a_manifest_says_what_a_benchmark_is_and_which_file_runs_it(
    gym: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = gym / "benchmarks/letters"
    shutil.copy(letters / "config.yaml", letters / "hard.yaml")
    (letters / "hard").mkdir()
    (letters / "hard/manifest.yaml").write_text(MANIFEST)
    found = run(capsys, "+nemo_gym=Gym", "+kind=benchmark")
    listed = {each["name"]: each for each in found if each["source"] != "rollout_kit"}
    assert listed.keys() == {"letters", "letters/hard.yaml"} and "about" not in listed["letters"]
    about = listed["letters/hard.yaml"]["about"]
    assert about == "Letters that are hard. · knowledge · MIT · deprecated"
    assert config_of("letters/hard", gym) == "benchmarks/letters/hard.yaml"
    for text, why in (("- no mapping", "is no mapping"), ("config_path: ../../x", "config_path")):
        (letters / "hard/manifest.yaml").write_text(text)
        with pytest.raises(ConfigError, match=why):
            config_of("letters/hard", gym)


def test_the_checkout_may_be_named_in_env_yaml(
    gym: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("env.yaml").write_text("nemo_gym: Gym\n")
    assert "counter" in {each["name"] for each in run(capsys)}


def test_without_a_checkout_it_lists_ours(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {each["source"] for each in run(capsys)} == {"rollout_kit"}


NEEDY = """
judged:
  resources_servers:
    letters:
      judge_model_server: {type: responses_api_models, name: judge_model}
      key: ${judge_key}
"""


def test_the_check_names_what_a_file_needs_and_why_one_is_refused(
    gym: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = gym / "resources_servers/letters/configs"
    (folder / "judged.yaml").write_text(NEEDY)
    (folder / "judged_model.yaml").write_text(NEEDY.replace("${judge_key}", "k"))
    (folder / "strange.yaml").write_text("a:\n  resources_servers:\n    b: {}\n    c: {}\n")
    found = {each["path"]: each for each in run(capsys, "+nemo_gym=Gym", "+check=true")}
    states = {Path(path).name: (each["status"], each["reason"]) for path, each in found.items()}
    assert states["letters.yaml"] == ("valid", "")
    assert states["config.yaml"] == ("valid", "")
    assert states["guess.yaml"] == ("valid", "")
    assert states["judged.yaml"] == ("needs", "values judge_key")
    assert states["judged_model.yaml"] == ("needs", "servers judge_model")
    status, reason = states["strange.yaml"]
    assert status == "refused" and "holds 2 implementations" in reason
