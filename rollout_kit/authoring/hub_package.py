"""Write an environment as a package for verifiers, prime-rl and the Environments Hub."""

import keyword
import re
import shutil
from pathlib import Path
from string import Template

from ..errors import ConfigError, suggest
from ..serving import registry

TEMPLATE = Path(__file__).with_name("template") / "package"

FILES = {
    "pyproject.txt": "pyproject.toml",
    "module.txt": "{name}/__init__.py",
    "eval.txt": "eval.toml",
    "readme.txt": "README.md",
}

KIND = "resources_servers"

TASKS = "tasks.jsonl"


def write_package(
    server: str, folder: Path, rows: Path | None, model: str, base_url: str, **words: str
) -> list[Path]:
    """Write the package of a shipped resources server to `folder` and return its files. `rows` are
    its tasks, the example rows if None. ConfigError for another server, a folder that exists, or a
    name that no package can have."""
    name = folder.name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"output_dir={folder}: its name must be small letters, digits, - and _")
    if folder.exists():
        raise ConfigError(f"{folder} already exists: choose another name, or remove it")
    home = _find_shipped(server)
    asked = rows or home / "data/example.jsonl"
    rows = registry.resolve_path(asked)
    if rows is None or not rows.is_file():
        raise ConfigError(f"input_jsonl_fpath={asked}: there is no such file")
    filled = {
        **{"name": name, "dashed": name.replace("_", "-"), "server": server, "instance": server},
        **{"config": f"{server}.yaml", "model": model, "base_url": base_url, **words},
        "class_name": "".join(word.title() for word in name.split("_")),
        "title": f"The environment {server} of rollout-kit, for verifiers and prime-rl.",
        "command": "vf-eval @ eval.toml",
    }
    paths = []
    for template, target in FILES.items():
        path = folder / target.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((TEMPLATE / template).read_text("utf-8")).substitute(filled))
        paths.append(path)
    shutil.copyfile(rows, folder / name / TASKS)
    return [*paths, folder / name / TASKS]


def _find_shipped(server: str) -> Path:
    """The folder of a server that the installed toolkit has, with a YAML of its name."""
    shipped = registry.roots()[-1]
    home = shipped / KIND / server
    if (home / "configs" / f"{server}.yaml").is_file():
        return home
    known = [path.parents[1].name for path in (shipped / KIND).glob("*/configs/*.yaml")]
    raise ConfigError(
        f"environment={server}: no shipped environment is called so{suggest(server, known)}."
        " A package finds only shipped ones. For your own, write a module as docs/trainers.md shows"
    )
