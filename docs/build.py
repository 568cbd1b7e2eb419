"""Builds the site in `.site/html` from the documents and the READMEs of the servers.

python docs/build.py           # build it; a broken link is an error
python docs/build.py --serve   # build it, and show it at http://127.0.0.1:8000
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from generate import ROOT, servers, text_below

import rollout_kit
from rollout_kit import rl

SITE = ROOT / ".site"
PAGES = SITE / "pages"

LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")(?!https?:|mailto:|#)([^)#\"\s]+)")
"""A link to a file, in Markdown or in HTML."""


NAMED = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
"""The beginning of a block of code with the name of the file that it is."""


def main(words: Sequence[str]) -> int:
    """Build the site; returns the exit status."""
    shutil.rmtree(SITE, ignore_errors=True)
    pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *_documents()]
    readmes = [f"{type_}/{folder.name}/README.md" for type_, folder in servers()]
    for page in (*pages, *readmes):
        _place(Path(page))
    shutil.copytree(ROOT / "docs/site", PAGES / "docs/site")
    api = PAGES / "docs/reference/python-api.md"
    api.write_text("\n\n".join(_api()) + "\n")
    config = SITE / "mkdocs.yml"
    config.write_text(_config(readmes))
    command = ["serve", "--no-livereload"] if "--serve" in words else ["build", "--strict"]
    argv = [sys.executable, "-m", "mkdocs", *command, "--quiet", "--config-file", str(config)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode


def _documents() -> list[str]:
    folders = (ROOT / "docs", ROOT / "docs/goals", ROOT / "docs/reference")
    found = [path for folder in folders for path in folder.glob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def _config(readmes: Sequence[str]) -> str:
    """The configuration, with paths from its place, and with a page for each server."""
    text = (ROOT / "docs/mkdocs.yml").read_text()
    names = {"responses_api_models": "Models", "resources_servers": "Environments"}
    rows: list[str] = []
    for page in readmes:
        type_, name, _ = page.split("/")
        title = names.get(type_, "Agents")
        if f"      - {title}:" not in rows:
            rows.append(f"      - {title}:")
        rows.append(f"          - {name}: {page}")
    text = text.replace("  - Servers: SERVERS", "\n".join(["  - Servers:", *rows]))
    return text.replace("../.site/", "")


def _api() -> Iterator[str]:
    """A page on which mkdocstrings writes what the public names say."""
    yield "# Python reference"
    for module in (rollout_kit, rl):
        for name, home in sorted(vars(module)["_MODULES"].items()):
            thing = getattr(module, name)
            if text := text_below(import_module(f"{module.__name__}.{home}"), name):
                yield f"## `{name}`"
                yield text
            elif hasattr(thing, "__qualname__"):
                yield f"::: {thing.__module__}.{thing.__qualname__}"


def _place(page: Path) -> None:
    """Copy a page, and the files that it links to. A link to a folder becomes one to its README."""

    def point(match: re.Match[str]) -> str:
        target = ROOT / page.parent / match[2]
        if target.is_dir() and (target / "README.md").is_file():
            return f"{match[1]}{match[2].rstrip('/')}/README.md"
        if target.is_dir():
            return f"{match[1]}{os.path.relpath(ROOT / 'docs/index.md', ROOT / page.parent)}"
        if target.is_file() and target.suffix != ".md":
            copy = PAGES / target.resolve().relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
        return match[0]

    text = (ROOT / page).read_text()
    path = PAGES / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(NAMED.sub(r'```\1 title="\2"', LINK.sub(point, text)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
