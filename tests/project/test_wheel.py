"""The wheel, installed where nothing else is: what it holds, what it finds, what comes first."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import read_jsonl, write_jsonl
from workplace import ROOT

pytest.importorskip("hatchling")
pytest.importorskip("ctranslate2")

SHIPPED = ("resources_servers", "responses_api_models", "responses_api_agents", "configs")
MAX_BYTES = 10_000_000
"""Most of the wheel is the tiny model's weights, 3 MB; a larger one must be wanted, not slip in."""

PYTHONS = ("3.11", "3.12", "3.13")
OUTPUT = "+output_jsonl_fpath=results/rollouts.jsonl"
DEMO = [
    "+config_paths=[configs/demo.yaml]",
    "+input_jsonl_fpath=responses_api_models/local_model/data/demo.jsonl",
    OUTPUT,
]
QUICKSTART = [
    "+config_paths=[configs/quickstart.yaml]",
    "+input_jsonl_fpath=resources_servers/mcqa/data/largest_number.jsonl",
    OUTPUT,
]


@dataclass
class Installed:
    """An environment with the wheel in it, and an empty folder to work in."""

    python: Path
    folder: Path

    def run(self, command: str, *argv: str) -> str:
        """What a command of the environment says; it must end well."""
        done = subprocess.run(
            [str(self.python.parent / command), *argv],
            cwd=self.folder,
            env=clean_env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def lines(self) -> list[dict]:
        return read_jsonl(self.folder / "results/rollouts.jsonl")


def clean_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel alone in a fresh environment; what it depends on is lent by this interpreter's."""
    place = tmp_path_factory.mktemp("installed")
    python = environment(Path(sys.executable), place / "env")
    install(python, "--no-deps", str(wheel))
    own = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    # as a line of a .pth file the folder is searched, while its own .pth files (as that of an
    # editable rollout_kit) are not read: the wheel is the only one
    lent = "".join(f"{sysconfig.get_path(each)}\n" for each in ("purelib", "platlib"))
    (Path(own.strip()) / "lent.pth").write_text(lent)
    (place / "folder").mkdir()
    return Installed(python, place / "folder")


@pytest.fixture
def workplace(installed: Installed, tmp_path: Path) -> Installed:
    """The same environment, with an empty folder for this test."""
    return Installed(installed.python, tmp_path)


def environment(base: Path, folder: Path) -> Path:
    """The interpreter of an empty virtual environment over `base`."""
    if base == Path(sys.executable):
        venv.create(folder, symlinks=True)
    else:
        subprocess.run([str(base), "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin/python"


def install(python: Path, *what: str) -> None:
    """Install into the environment of `python`: with uv where there is one, else with pip."""
    if uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        command.append("--disable-pip-version-check")
    done = subprocess.run([*command, *what], capture_output=True, text=True, env=clean_env())
    assert done.returncode == 0, done.stdout + done.stderr


def works_by_itself(place: Installed) -> None:
    """The commands, the shipped configs and data, and a real model, from an empty folder."""
    said = place.run("ng_version")
    assert "rollout_kit: " in said and "not installed" not in said
    code = "import rollout_kit; print(rollout_kit.__file__)"
    where = subprocess.check_output(
        [str(place.python), "-c", code], cwd=place.folder, text=True, env=clean_env()
    )
    assert Path(where.strip()).is_relative_to(place.python.parent.parent)
    place.run("ng_validate", DEMO[0])
    assert list(place.folder.iterdir()) == []
    place.run("ng_collect_rollouts", *DEMO, "+responses_create_params.temperature=0")
    tasks = {line["rollout"]["task_id"] for line in place.lines()}
    assert len(place.lines()) == len(tasks) == 96
    assert {line["reward"] for line in place.lines()} == {0.0, 1.0}
    metrics = json.loads((place.folder / "results/rollouts_aggregate_metrics.json").read_text())
    assert metrics["counts"]["rollouts"] == 96
    assert not (place.folder / "results/rollouts.d/failures.jsonl").exists()


def test_the_wheel_holds_what_runs_and_no_tests_or_leftovers(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SHIPPED, "rollout_kit"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("this is no git checkout")
    sources = [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).exists()]
    expected = {
        str(path if path.parts[0] == "rollout_kit" else "rollout_kit/_shipped" / path)
        for path in sources
        if "tests" not in path.parts
    }
    assert names == expected
    assert wheel.stat().st_size < MAX_BYTES


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder(installed: Installed) -> None:
    works_by_itself(installed)


MY_MODEL = """
from rollout_kit.serving.model import Model
from rollout_kit.api.testing import text_response

class MyModel(Model):
    async def responses(self, params):
        return text_response("mine")
"""

MY_ENV = """
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.responses import output_text

class MyEnv(ResourcesServer):
    def verify(self, task, response):
        return {"reward": float(output_text(response) == "mine"), "checked_by": "WHOSE"}
"""


def test_a_user_s_servers_and_configs_come_before_shipped_ones(workplace: Installed) -> None:
    folder = workplace.folder
    apps = {
        "responses_api_models/my_model": MY_MODEL,
        "resources_servers/my_env": MY_ENV.replace("WHOSE", "my_env"),
        "resources_servers/mcqa": MY_ENV.replace("WHOSE", "my mcqa"),
    }
    for server, app in apps.items():
        (folder / server).mkdir(parents=True)
        (folder / server / "app.py").write_text(app)
    (folder / "configs").mkdir()
    # it has a shipped file's name, and takes another one in by its relative path
    (folder / "configs/quickstart.yaml").write_text(
        "config_paths: [resources_servers/mcqa/configs/mcqa.yaml]\n"
        "policy_model: {responses_api_models: {my_model: {}}}\n"
    )
    workplace.run("ng_collect_rollouts", *QUICKSTART, "+limit=3")
    found = [(line["reward"], line["checked_by"]) for line in workplace.lines()]
    assert found == [(1.0, "my mcqa")] * 3

    (folder / "mine.yaml").write_text(
        "policy_model: {responses_api_models: {my_model: {placement: process}}}\n"
        "my_env: {resources_servers: {my_env: {num_workers: 2}}}\n"
    )
    (folder / "resources_servers/mcqa/data").mkdir()
    # a data file's path, too, means the one here first
    task = {"responses_create_params": {"input": "whose?"}}
    write_jsonl(folder / "resources_servers/mcqa/data/largest_number.jsonl", [task])
    shutil.rmtree(folder / "results")
    workplace.run("ng_collect_rollouts", "+config_paths=[mine.yaml]", *QUICKSTART[1:])
    [line] = workplace.lines()
    assert (line["reward"], line["checked_by"]) == (1.0, "my_env")


def interpreters(version: str) -> Iterator[Path]:
    """Every interpreter of that version that this machine has and that starts."""
    candidates = [Path(sys.executable)] if sys.version.startswith(f"{version}.") else []
    candidates += [Path(found) for found in [shutil.which(f"python{version}")] if found]
    candidates += Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for candidate in candidates:
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            yield candidate


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_and_what_it_declares_are_enough(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    """With nothing lent: dependencies and the extra `demo` come from the package registry."""
    base = next(interpreters(version), None)
    if base is None:
        pytest.skip(f"this machine has no Python {version}")
    python = environment(base, tmp_path / "env")
    install(python, f"{wheel}[demo]")
    (tmp_path / "folder").mkdir()
    place = Installed(python, tmp_path / "folder")
    works_by_itself(place)
    assert f"python: {version}." in place.run("ng_version")
