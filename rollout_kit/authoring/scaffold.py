"""Write the folder of a new resources server, with everything that `ng_test` checks and an example
rule to replace."""

import keyword
import re
from pathlib import Path
from string import Template

from ..errors import ConfigError

TEMPLATE = Path(__file__).with_name("template")

FILES = {
    "app.txt": "app.py",
    "config.txt": "configs/{name}.yaml",
    "example.txt": "data/example.jsonl",
    "test_app.txt": "tests/test_app.py",
    "readme.txt": "README.md",
}

KIND = "resources_servers"


def write_server(entrypoint: str) -> list[Path]:
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
        text = Template((TEMPLATE / template).read_text())
        path.write_text(text.substitute(name=name, class_name=class_name))
        paths.append(path)
    return paths
