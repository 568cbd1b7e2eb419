"""ng_build_root: build the root file system of a Dockerfile, before a run needs it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from ..config.keys import BuildRootConfig
from ..errors import ConfigError
from ..serving.sandbox.roots.build import CannotBuild, Root, build_root
from ..serving.sandbox.roots.dockerfile import Recipe, read_dockerfile
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_plain(words, BuildRootConfig)
    recipes = [_read(Path(each)) for each in command.inputs]
    if command.base:
        recipes.append((command.base, Recipe(base=command.base, base_line=1)))
    if not recipes:
        raise ConfigError("name a Dockerfile, or an image: ng_build_root +base=debian:bookworm")
    found = []
    for name, recipe in recipes:
        try:
            root = asyncio.run(build_root(recipe, command.roots, command.packages, _say, name))
        except CannotBuild as error:
            raise ConfigError(str(error.problem)) from None
        found.append(_describe(name, root))
    if command.json_output:
        print(json.dumps(found, indent=2))
    else:
        for each in found:
            cached = "from the cache" if each["cached"] else "built"
            base = each["folder"] or "this machine's programs"
            print(f"{each['name']}: {cached}, {each['bytes'] / 1e6:.1f} MB over {base}")
    return 0


def _read(path: Path) -> tuple[str, Recipe]:
    path = path / "Dockerfile" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    recipe = read_dockerfile(path, str(path))
    if recipe.problems:
        raise ConfigError("\n".join(map(str, recipe.problems)))
    return str(path), recipe


def _say(text: str, **_: Any) -> None:
    print(text, file=sys.stderr, flush=True)


def _describe(name: str, root: Root) -> dict[str, Any]:
    return {
        "name": name,
        "digest": root.digest,
        "folder": str(root.folder) if root.folder else None,
        "layers": [str(each) for each in root.layers],
        "bytes": root.num_bytes,
        "cached": root.was_cached,
    }
