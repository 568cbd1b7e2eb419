"""The files that tell people and programs what this project is."""

import re
from pathlib import Path

import yaml
from test_readme import LINK, documents
from workplace import ROOT

from rollout_kit import __version__


def read(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_license_is_the_one_that_is_declared() -> None:
    text = read("LICENSE")
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert 'license = "Apache-2.0"' in read("pyproject.toml")


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_llms_txt_has_every_page_and_nothing_that_is_not_there() -> None:
    text = read("docs/llms.txt")
    assert text.startswith("# rollout_kit\n\n> "), "a title and a summary, as llmstxt.org says"
    listed = LINK.findall(text)
    assert all((ROOT / "docs" / target).exists() for target in listed)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= {*listed} and len(listed) == len({*listed})


def test_agents_md_names_every_room_and_only_what_exists() -> None:
    text = read("AGENTS.md")
    rooms = {
        str(path.parent.relative_to(ROOT)) for path in (ROOT / "rollout_kit").glob("*/__init__.py")
    }
    named = set(re.findall(r"`([\w./]+)`", text))
    assert rooms <= named
    folders = {each for each in named if "/" in each or (ROOT / each).is_dir()}
    assert all((ROOT / each.rstrip("/")).exists() for each in folders if "…" not in each)


def test_the_distribution_has_one_name() -> None:
    sources = [*documents(), ROOT / "pyproject.toml", ROOT / "Makefile", *_sources()]
    other = [str(path) for path in sources if "rollout_kit[" in path.read_text()]
    assert other == [], "pip knows it as rollout-kit"


def _sources() -> list[Path]:
    folders = ("rollout_kit", "resources_servers", "responses_api_models", "responses_api_agents")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
