"""The scripts with which NeMo Gym's benchmarks write their rows; they run in an environment of the
checkout, and most of them download."""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from ...errors import ConfigError
from ...types import JsonObject
from ..registry import is_checkout
from .checkout import GymServer
from .environments import interpreter_for
from .manifests import NAME, GymManifest

RUN = """
import json, runpy, sys
made = runpy.run_path(sys.argv[1])["prepare"](**json.loads(sys.argv[2]))
print("wrote", made)
"""

LISTS_ROWS = re.compile(r"^[\s-]*(prepare_script:|type: benchmark\s*$)", re.M)

ARGUMENTS = "prepare_script_args"
"""Key of a benchmark's YAML: arguments of its script."""

LAST_LINES = 6


def config_of(name: str, root: Path | None) -> str:
    """The YAML of a benchmark, relative to the checkout."""
    if name.endswith(".yaml"):
        return f"benchmarks/{name}"
    folder = f"benchmarks/{name}"
    if root is not None and (manifest := GymManifest.of(root / folder)) is not None:
        return str(manifest.config.relative_to(root.resolve()))
    return f"{folder}/config.yaml"


def list_configs(root: Path) -> dict[str, Path]:
    """The YAML files of a checkout that list a benchmark's rows, by the name of the benchmark: its
    folder, or the file where that has another name than config.yaml."""
    found = {}
    for path in sorted((root / "benchmarks").rglob("*.yaml")):
        if path.name != NAME and LISTS_ROWS.search(path.read_text("utf-8", "replace")):
            own = path.parent if path.name == "config.yaml" else path
            found[str(own.relative_to(root / "benchmarks"))] = path
    return found


def run_script(
    script: Path,
    values: JsonObject,
    *,
    given: str | None,
    install: bool,
    python: str | None,
    say: Callable[[str], None],
    needs: Sequence[str] = (),
) -> None:
    """Run the `prepare` of a script, which `needs` further packages; ConfigError with its last
    words if it fails."""
    script = script.resolve()
    root = next((folder for folder in script.parents if is_checkout(folder)), script.parent)
    server = GymServer(script.parent, root, "benchmarks", tuple(needs))
    interpreter = interpreter_for(
        script.parent.name, server, given, install=install, python=python, say=say
    )
    say(f"running {script}")
    config = {"dry_run": False, **values}
    env = {"PYTHONPATH": str(root), "NEMO_GYM_CONFIG_DICT": orjson.dumps(config).decode()}
    arguments = orjson.dumps(values.get(ARGUMENTS) or {}).decode()
    done = subprocess.run(
        [interpreter, "-c", RUN, str(script), arguments],
        cwd=root,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n  ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
        raise ConfigError(
            f"{script} failed; most of these scripts need the network, some a key such as hf_token"
            f" in env.yaml:\n  {last}"
        )
    say(done.stdout.strip().rpartition("\n")[2])
