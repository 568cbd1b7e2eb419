"""From nothing to a collected rollout with a rule of one's own, as the document says it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import endpoint, says
from support import asked, read_jsonl
from test_writing import DOCUMENT

from rollout_kit.authoring.examination import examine
from rollout_kit.authoring.gaming.search import read_files
from rollout_kit.authoring.scaffold import KINDS, EnvironmentKind, write_server
from rollout_kit.commands.test import main as check_folder
from rollout_kit.errors import ConfigError

LAST_BUT_TESTS = "equal verdicts when repeated"

SECTION = DOCUMENT[DOCUMENT.index("## Start from the template") : DOCUMENT.index("## A verifier")]


def solved(body: dict[str, Any]) -> str:
    """The answer, with a full stop that only the rule of one's own puts up with."""
    a, sign, b = re.findall(r"(\d) (.) (\d)", asked(body))[0]
    a, b = int(a), int(b)
    return f"It is {({'+': a + b, '-': a - b, '*': a * b, '/': a // b})[sign]}."


def test_five_commands_lead_to_a_rollout_with_a_rule_of_one_s_own(tmp_path: Path) -> None:
    [block] = re.findall(r"^```bash\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    commands = block.replace("\\\n", " ").strip().splitlines()
    assert len(commands) <= 5
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with endpoint(says(solved)) as model:
        env = {"base_url": model.url, "api_key": "k", "model_name": "m"}
        (tmp_path / "env.yaml").write_text("".join(f"policy_{k}: {v}\n" for k, v in env.items()))
        for command in commands:
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    rollouts = read_jsonl(tmp_path / "results/my_env/rollouts.jsonl")
    assert [line["reward"] for line in rollouts] == [1.0] * 5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_server("resources_servers/my_env")
    return Path("resources_servers/my_env")


def problems(folder: Path) -> list[str]:
    """But for those of its own tests, which come last and take longest."""
    found = []
    for each in examine(folder):
        found += [f"{each.what}: {each.problem}"] if each.problem else []
        if each.what.startswith(LAST_BUT_TESTS):
            break
    return found


def test_a_new_folder_holds(folder: Path) -> None:
    assert [each.what for each in examine(folder) if each.problem] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_folder_of_each_kind_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: EnvironmentKind
) -> None:
    monkeypatch.chdir(tmp_path)
    write_server("resources_servers/my_kind", kind)
    found = list(examine(Path("resources_servers/my_kind")))
    assert [(each.what, each.problem) for each in found if each.problem or each.warning] == []
    assert read_files(Path("resources_servers/my_kind")) == []


def test_a_configuration_that_is_missing_is_named(folder: Path) -> None:
    path = folder / "configs/my_env.yaml"
    path.unlink()
    assert problems(folder) == [f"configs/my_env.yaml: no configuration: write {path}"]


def test_a_row_that_does_not_fit_is_named(folder: Path) -> None:
    path = folder / "data/example.jsonl"
    path.write_bytes(path.read_bytes() + b'{"responses_create_params": {"input": "?"}}\nnot json\n')
    [problem] = problems(folder)
    assert "5 rows fit" in problem and "line 6" in problem and "expected_answer" in problem


def test_gold_that_is_wrong_is_named(folder: Path) -> None:
    path = folder / "data/example.jsonl"
    row = orjson.loads(path.read_bytes().splitlines()[0])
    path.write_bytes(orjson.dumps({**row, "gold_output": "It is 6"}) + b"\n" + path.read_bytes())
    [problem] = problems(folder)
    assert problem == "6 gold answers score 1.0: not number 1 of those"


def test_a_verifier_that_is_always_content_is_seen(folder: Path) -> None:
    app = folder / "app.py"
    app.write_text(app.read_text().replace("float(is_right)", "1.0"))
    assert "empty responses score less: not number 1, 2, 3, 4, 5 of those" in problems(folder)


def test_verdicts_that_change_are_seen(folder: Path) -> None:
    app = folder / "app.py"
    text = app.read_text().replace("len(text)", "time.monotonic_ns()")
    app.write_text(text.replace("from rollout_kit", "import time\nfrom rollout_kit", 1))
    assert any("equal verdicts when repeated" in problem for problem in problems(folder))


@pytest.mark.parametrize(
    ("entrypoint", "reason"),
    [
        ("my_env", "expected resources_servers/<name>"),
        ("../resources_servers/my_env", "expected resources_servers/<name>"),
        ("resources_servers/My-Env", "small letters"),
        ("resources_servers/class", "small letters"),
        ("", "expected resources_servers/<name>"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entrypoint: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        write_server(entrypoint)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(folder: Path) -> None:
    (folder / "app.py").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        write_server("resources_servers/my_env")
    assert (folder / "app.py").read_text() == "mine"


def test_without_pytest_its_own_tests_are_left_out_with_the_command_that_installs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "pytest" else real(name, *more),
    )
    assert check_folder([f"+entrypoint={folder}"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"not run, as pytest is not installed: .* -m pip install 'pytest'", said)
    assert said.endswith("resources_servers/my_env: all checks passed, 1 warning\n")
