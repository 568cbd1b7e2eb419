"""Whatever stands in the server folders keeps the promises of its kind."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import NO_NAMESPACES, OF_OTHERS, blocks, may_isolate

from rollout_kit.api.testing import OVERS, mount
from rollout_kit.authoring.examination import check_verdicts, make_trusting, read_rows
from rollout_kit.config.instances import UNSAFE_CODE
from rollout_kit.config.keys import InspectConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError, RolloutError
from rollout_kit.serving import registry
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject

ROOT = Path(__file__).resolve().parents[2]
SERVERS = [
    (kind, path.parent.name)
    for kind in registry.TYPES
    for path in sorted((ROOT / kind).glob("*/app.py"))
]
ENVIRONMENTS = [
    name for kind, name in SERVERS if kind == "resources_servers" and name not in OF_OTHERS
]
VARIABLES = {
    name
    for path in ROOT.glob("*/*/configs/*.yaml")
    for name in re.findall(r"oc\.env:(\w+)", path.read_text())
}
"""Of the environment, in which configs look for keys and endpoints."""


def examples(name: str) -> list[JsonObject]:
    return read_rows(ROOT / "resources_servers" / name / "data/example.jsonl")


@pytest.mark.parametrize(("kind", "name"), SERVERS)
def test_a_server_s_folder_is_complete(kind: str, name: str) -> None:
    folder = ROOT / kind / name
    assert (folder / "README.md").exists()
    assert list((folder / "tests").glob("test_*.py"))
    assert list((folder / "configs").glob("*.yaml"))
    assert (folder / "app.py").read_text().count("\n") <= 250
    if kind == "resources_servers":
        assert len(examples(name)) >= 5
        assert (folder / f"configs/{name}.yaml").exists()


@pytest.mark.documents
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_its_readme_s_commands_work_with_the_tiny_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    config = registry.load("resources_servers", name).Config
    if UNSAFE_CODE in config.model_fields and not may_isolate():
        pytest.skip(NO_NAMESPACES)
    text = (ROOT / "resources_servers" / name / "README.md").read_text()
    commands = [each.text for each in blocks(text) if each.language == "bash" and not each.reason]
    assert any("ng_collect_rollouts" in each and "local_model.yaml" in each for each in commands)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
    [output] = tmp_path.glob("results/**/rollouts.jsonl")
    assert output.read_bytes().splitlines()


IMPORTED = """
import json, os, sys
from rollout_kit.serving import registry

for kind, name in json.loads(sys.argv[1]):
    if not os.fork():
        registry.load(kind, name)
        print(json.dumps([kind, name, sorted(sys.modules)]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""

HEAVY = {"torch", "ctranslate2", "numpy", "sympy", "math_verify", "openai", "fastapi"}
HEAVY |= {"tokenizers", "transformers", "pandas"}


@pytest.fixture(scope="module")
def imported() -> dict[tuple[str, str], set[str]]:
    """The modules of a process that has loaded nothing but this server, for each server."""
    argv = [sys.executable, "-c", IMPORTED, json.dumps(SERVERS)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {(kind, name): set(modules) for kind, name, modules in lines}


@pytest.mark.parametrize(("kind", "name"), SERVERS)
def test_importing_a_server_imports_nothing_heavy(
    imported: dict[tuple[str, str], set[str]], kind: str, name: str
) -> None:
    assert not HEAVY & imported[kind, name]


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*/*/configs/*.yaml")), ids=lambda path: path.stem
)
def test_a_shipped_config_is_valid(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    paths = [str(path.relative_to(ROOT))]
    if "responses_api_models" not in paths[0]:
        paths.append(model)
    text = "".join((ROOT / each).read_text() for each in paths)
    argv = [f"+config_paths=[{','.join(paths)}]"]
    argv += [f"+{key}=http://x" for key in sorted(set(re.findall(r"\$\{(policy_\w+)\}", text)))]
    for name in VARIABLES:
        monkeypatch.setenv(name, "https://x")
    if "name: ???" in text:
        with pytest.raises(ConfigError, match=r"resources_server\.name"):
            load(argv, InspectConfig)
    else:
        assert load(argv, InspectConfig).instances


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_gold_scores_and_wrong_does_not_the_same_twice_and_over_every_transport(name: str) -> None:
    findings = list(check_verdicts(ROOT / "resources_servers" / name, name))
    assert not [str(each) for each in findings if each.problem]
    told = " ".join(each.what for each in findings)
    assert re.search(r"[1-9]\d* gold answers", told) and re.search(r"[1-9]\d* wrong answers", told)
    assert all(over in told for over in OVERS)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_row_that_is_none_is_refused_for_good(name: str) -> None:
    async def main() -> None:
        async with mount({name: make_trusting(registry.load("resources_servers", name))}) as peers:
            for broken in ({"responses_create_params": 5}, {}):
                with entered(Session()), pytest.raises(RolloutError) as caught:
                    await peers.call(name, "/seed_session", broken, dict)
                assert caught.value.terminal

    asyncio.run(main())
