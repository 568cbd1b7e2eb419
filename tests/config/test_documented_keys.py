"""The README of each server names all of its keys, and the reference the keys of all servers."""

import json
import re
from pathlib import Path

import pytest
from workplace import ROOT

from rollout_kit.config.fields import spellings
from rollout_kit.config.keys import ValidateConfig
from rollout_kit.config.load import load
from rollout_kit.serving import registry
from rollout_kit.serving.model import ModelConfig
from rollout_kit.serving.resources_server import ResourcesServer

SERVERS = [
    (kind, path.parent.name)
    for kind in registry.TYPES
    for path in sorted((ROOT / kind).glob("*/app.py"))
]


MODELS, RESOURCES, _ = registry.TYPES

OF_ALL = {MODELS: ModelConfig, RESOURCES: ResourcesServer.Config}
"""Type → the keys that all of its servers have."""


def read_tables(path: Path) -> str:
    """What stands in the first column of the tables of a document, with a break after each cell."""
    return "\n".join(re.findall(r"^\| ([^|]*) \|", path.read_text(), re.MULTILINE))


def is_named(names: list[str], text: str) -> bool:
    return any(f"`{name}`" in text for name in names)


@pytest.mark.parametrize(("kind", "name"), SERVERS)
def test_the_readme_of_a_server_has_all_of_its_keys(kind: str, name: str) -> None:
    config = registry.load(kind, name).Config
    readme = ROOT / kind / name / "README.md"
    text, cells = readme.read_text(), read_tables(readme)
    assert "docs/reference/configuration.md" in text, "it has the keys of all servers"
    elsewhere = {*OF_ALL[kind].model_fields} if kind in OF_ALL else set()
    if (listed := ROOT / kind / name / "vllm_options.json").exists():
        elsewhere |= {*json.loads(listed.read_text())["options"]}  # vLLM documents them
    missing = [
        key
        for key, field in config.model_fields.items()
        if key not in elsewhere and not is_named(spellings(key, field), cells)
    ]
    assert missing == []


def test_a_pace_without_an_endpoint_is_reported(tmp_path: Path) -> None:
    model = "{name}: {{responses_api_models: {{{name}: {{requests_per_minute: 5{more}}}}}}}\n"
    hosted = ", openai_base_url: http://h.test/v1, openai_model: m"
    text = model.format(name="openai_model", more=hosted)
    text += model.format(name="local_model", more="")
    (tmp_path / "run.yaml").write_text(text)
    [warning] = load(["+config_paths=[run.yaml]"], ValidateConfig, tmp_path).warnings
    assert warning == (
        "requests_per_minute in local_model has no effect: local_model asks no endpoint"
    )
