"""The reference pages are what the code says, and leave out no key, error, status or name."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field
from workplace import ROOT

from rollout_kit.collecting.results import Status
from rollout_kit.commands import entry
from rollout_kit.config.commands import COMMANDS, MAX_SHOWN
from rollout_kit.config.keys import Command
from rollout_kit.config.reference import list_groups
from rollout_kit.store.head import describe
from rollout_kit.types import VERDICT, Key, RolloutInfo


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_references", ROOT / "docs/generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_what_the_code_says(generate: ModuleType) -> None:
    for path, text in generate.written():
        assert path.read_text() == text, f"{path} is not what the code says: make references"


def test_every_key_error_status_and_name_has_a_text(generate: ModuleType) -> None:
    models: list[Any] = [info.keys for info in COMMANDS.values()]
    models += [generate.load(type_, path.name).Config for type_, path in generate.servers()]
    models.append(generate.CommonKeys)
    for model in models:
        for group in list_groups(model):
            assert not [row.name for row in group.rows if not row.about], model
    statuses = generate.attribute_texts(generate.results, "Status")
    assert statuses.keys() == set(Status.__members__)
    for line in (*generate.failures(), *generate.names()):
        assert "|  |\n" not in line and not line.endswith("|  |")


def test_a_key_without_a_text_and_a_page_that_is_old_are_found(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bare(BaseModel):
        size_mb: float = 2.5
        name: str = Field(description="Its name.")

    [group] = list_groups(Bare)
    assert [(row.name, row.default, row.unit, row.about) for row in group.rows] == [
        ("name", None, "", "Its name."),
        ("size_mb", "2.5", "megabytes", ""),
    ]
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {"errors.md": generate.failures})
    assert generate.main(["--check"]) == 1 and not list(tmp_path.iterdir())
    assert generate.main([]) == 0 == generate.main(["--check"])
    (tmp_path / "errors.md").write_text("old")
    assert generate.main(["--check"]) == 1


def test_the_glossary_names_only_what_exists(generate: ModuleType) -> None:
    models: list[Any] = [info.keys for info in COMMANDS.values()]
    models += [generate.load(type_, path.name).Config for type_, path in generate.servers()]
    models.append(generate.CommonKeys)
    keys = {row.name for model in models for group in list_groups(model) for row in group.rows}
    routes = {path for base in generate.BASES.values() for path in base.routes}
    servers = {path.name for _, path in generate.servers()} | {"policy_model"}
    fields = {name for name, _, _ in describe()} | {*RolloutInfo._fields, *Key._fields}
    fields |= {*VERDICT, "output"}
    text = (ROOT / "docs/glossary.md").read_text().replace("`this font`", "")
    named = set(re.findall(r"`([^`]+)`", text))
    assert named and named - {*COMMANDS, *keys, *routes, *servers, *fields} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_at_most_what_a_reader_takes_in_and_all_on_demand(name: str) -> None:
    model: type[Command] = COMMANDS[name].keys
    known = {row.name for group in list_groups(model) for row in group.rows}
    if not model.has_servers:
        known.discard("config_paths")
    assert set(COMMANDS[name].first) <= known
    shown = [line for line in entry.format_help(name).splitlines() if "default " in line]
    assert len(shown) <= MAX_SHOWN
    whole = entry.format_help(name, is_whole=True)
    assert all(f"  {key}  (" in whole for key in known)


def test_the_openapi_document_has_every_route_and_every_type_that_it_names(
    generate: ModuleType,
) -> None:
    document = json.loads(generate.openapi())
    routes = {
        (route.path, route.method.lower())
        for base in generate.BASES.values()
        for route in base.routes.values()
    }
    assert {(path, verb) for path, found in document["paths"].items() for verb in found} == routes
    named = set(re.findall(r'"#/components/schemas/(\w+)"', generate.openapi()))
    assert named and named <= document["components"]["schemas"].keys()
    verify = document["paths"]["/verify"]["post"]
    body = verify["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/VerifyRequest"}
