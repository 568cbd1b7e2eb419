"""Every YAML that we ship is valid, and an environment's YAML names no model."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import skip_unless_installed
from workplace import ROOT

from rollout_kit.config.keys import ValidateConfig
from rollout_kit.config.load import load
from rollout_kit.config.sources import read_layers
from rollout_kit.serving.registry import TYPES

MODELS, *ENVIRONMENT = TYPES

FOLDERS = (
    "configs/**/*.yaml",
    "resources_servers/*/configs/*.yaml",
    "responses_api_agents/*/configs/*.yaml",
    "responses_api_models/*/configs/*.yaml",
    "examples/**/*.yaml",
)
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in chain.from_iterable(map(ROOT.glob, FOLDERS))
    if not isinstance(yaml.safe_load(path.read_text()), list)  # that is another program's
)

MODEL = "responses_api_models/local_model/configs/local_model.yaml"

VARIABLES = ("OPENAI_API_KEY", "NVIDIA_API_KEY", "OPENROUTER_API_KEY", "TOGETHER_API_KEY")
VARIABLES += ("FIREWORKS_API_KEY", "DEEPINFRA_TOKEN", "GEMINI_API_KEY", "ANTHROPIC_API_KEY")
VARIABLES += ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", "HARNESSES")

HOSTED = {"policy_base_url": "http://h.test/v1", "policy_api_key": "k", "policy_model_name": "m"}

JUDGED = ("equivalence_llm_judge", "genrm_compare")

BEFORE = {
    f"{folder}/configs/{file}.yaml": f"resources_servers/{name}/configs/{name}.yaml"
    for name, judge in zip(JUDGED, ("equal_judge", "equal_scores_judge"), strict=True)
    for folder, file in (
        (f"resources_servers/{name}", "rehearsal"),
        ("responses_api_models/simulated_model", judge),
    )
}
for name in ("rubric_judge", "graded_answers"):
    judged = f"resources_servers/{name}/configs/{name}.yaml"
    BEFORE[f"resources_servers/{name}/configs/rehearsal.yaml"] = judged
"""The YAML of a judge → that of the environment whose answers it judges."""


def kinds(tree: dict[str, Any]) -> set[str]:
    """The types of the servers that a file configures, or changes."""
    # without a type, it is named after a model server that has a folder
    nested = {key for block in tree.values() if isinstance(block, dict) for key in block}
    flat = {MODELS for name in tree if (ROOT / MODELS / name).is_dir()}
    return (nested & {*TYPES}) | flat


def read_included(path: str) -> list[str]:
    """All files that a file includes, at any depth."""
    return [layer.origin for layer in read_layers([path], ROOT)][:-2]


def read_values(path: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / path).read_text()) or {}


@pytest.mark.parametrize("path", FILES)
def test_an_environment_names_no_model_and_a_model_no_environment(path: str) -> None:
    own = kinds(read_values(path))
    theirs = set(chain.from_iterable(kinds(read_values(each)) for each in read_included(path)))
    if own & {*ENVIRONMENT}:
        assert MODELS not in own | theirs, "the model comes from another file: see configs/"
    if MODELS in own:
        assert not (own | theirs) & {*ENVIRONMENT}, "a file that names both is a list of files"


@pytest.mark.parametrize("path", FILES)
def test_every_file_is_valid(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, text = read_values(path), (ROOT / path).read_text()
    if not kinds(tree) and "config_paths" not in tree:
        pytest.skip("no configuration of servers: the tests of its command read it")
    skip_unless_installed("ctranslate2", "math_verify")
    for name in VARIABLES:
        monkeypatch.setenv(name, "https://h.test")
    files = [BEFORE[path]] if path in BEFORE else []
    words = [f"+{name}={value}" for name, value in HOSTED.items() if name in text]
    if "???" in text:
        files.append("resources_servers/mcqa/configs/mcqa.yaml")
        agent = next(iter(tree))
        words.append(f"++{agent}.responses_api_agents.{agent}.resources_server.name=mcqa")
    named = [*files, path, *read_included(path)]
    if path in BEFORE or not any(MODELS in kinds(read_values(each)) for each in named):
        files.insert(0, MODEL)
    config = load([f"+config_paths=[{','.join([*files, path])}]", *words], ValidateConfig, tmp_path)
    assert config.instances and not config.warnings
    assert not [note for note in config.notes if "instead of" in note]
