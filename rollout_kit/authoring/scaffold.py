"""Write the folder of a new resources server, with everything that `ng_test` checks and an example
rule to replace."""

import keyword
import re
from pathlib import Path
from string import Template
from typing import Literal

from ..errors import ConfigError

TEMPLATE = Path(__file__).with_name("template")

FILES = {
    "app.txt": "app.py",
    "config.txt": "configs/{name}.yaml",
    "example.txt": "data/example.jsonl",
    "test_app.txt": "tests/test_app.py",
    "readme.txt": "README.md",
    "requirements.txt": "requirements.txt",
}
"""Template → file. What a kind has no template for is the same for all kinds."""

EnvironmentKind = Literal["answer", "tools", "judge", "game", "shell"]

KINDS: dict[EnvironmentKind, str] = {
    "answer": "an answer that a rule can check",
    "tools": "tools with a state, which must be right at the end",
    "judge": "an open answer that a judge grades with a rubric",
    "game": "a game of many turns",
    "shell": "work in a shell, whose files must be right at the end",
}

KIND = "resources_servers"


def write_server(entrypoint: str, kind: EnvironmentKind = "answer") -> list[Path]:
    """Write a new server to `resources_servers/<name>` and return its files; raise ConfigError for
    another path or an existing folder."""
    folder = Path(entrypoint)
    name = folder.name
    if folder != Path(KIND, name):
        raise ConfigError(
            f"entrypoint={entrypoint}: expected {KIND}/<name>, in your working folder"
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"entrypoint={entrypoint}: the name must be small letters, digits and _, no keyword"
        )
    if folder.exists():
        raise ConfigError(f"{folder} already exists: choose another name, or remove it")
    class_name = "".join(word.title() for word in name.split("_"))
    paths = []
    for template, target in FILES.items():
        path = folder / target.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        own = TEMPLATE / kind / template
        text = Template((own if own.exists() else TEMPLATE / template).read_text())
        path.write_text(text.substitute(name=name, class_name=class_name))
        paths.append(path)
    return paths
