"""Whether every key of the servers of an installed NeMo Gym that ours replace is known here, and
every key of its rows: `python -m benchmarks.agreement.gym_keys <its interpreter>`. The exit status
is 1 if one is not.

Their classes are read, not run. Each key is given with its default, or with a value of its kind
where there is none that can be read.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry
from rollout_kit.serving.nemo_gym import environment_servers
from rollout_kit.serving.nemo_gym.models import name_ours, translate
from rollout_kit.serving.nemo_gym.rows import SOURCE, flatten

SERVERS = (
    *(("responses_api_models", name) for name in ("vllm_model", "openai_model")),
    *(("responses_api_models", name) for name in ("azure_openai_model", "inference_provider")),
    ("responses_api_agents", "simple_agent"),
)

OF_CODE = {"nemo_user_sim"}
"""Kinds of environment servers that run with NeMo Gym's code. All others are names of agents."""

OF_ROWS = {
    "episode_types.py": {"MaterializedTask": {"task_id", "task_input"}},
    "single_agent_turn_types.py": {
        "SingleAgentTurnTaskInput": {"responses_create_params", "task_data"}
    },
}
"""Modules of NeMo Gym → their classes of a row, with the fields that are read here."""

WHERE = "import nemo_gym, pathlib; print(pathlib.Path(nemo_gym.__file__).parents[1])"


def keys_of(app: Path, ending: str = "Config") -> Iterator[tuple[str, Any]]:
    """The keys of the classes of a module whose names end so, each with a value."""
    for node in ast.parse(app.read_text("utf-8")).body:
        if not isinstance(node, ast.ClassDef) or not node.name.endswith(ending):
            continue
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                yield each.target.id, _value_of(each)


KINDS = {"Dict": {}, "dict": {}, "List": [], "list": [], "bool": True, "int": 1, "float": 1.0}
"""What an annotation names → a value of that kind."""


def _value_of(annotated: ast.AnnAssign) -> Any:
    try:
        default = ast.literal_eval(annotated.value) if annotated.value else None
    except ValueError:
        default = None
    if default is not None:
        return default
    told = ast.unparse(annotated.annotation)
    return next((value for kind, value in KINDS.items() if kind in told), "text")


def find_unknown(root: Path) -> Iterator[str]:
    for kind, name in SERVERS:
        app = root / kind / name / "app.py"
        if not app.is_file():
            yield f"{kind}/{name}: is not there any more"
            continue
        for key, default in keys_of(app):
            try:
                given, _ = translate(name, {key: default})
                ours = registry.load(kind, name_ours(kind, name, {key: default})).Config
            except ConfigError as error:
                yield f"{name}.{key}: {error}"
                continue
            if key.startswith("model_config") or set(given) <= set(ours.model_fields):
                continue
            yield f"{name}.{key}: no key of {ours.__name__}"


def find_unknown_fronts(root: Path) -> Iterator[str]:
    """Kinds of environment servers, and their keys."""
    base = {key for key, _ in keys_of(root / "nemo_gym/base_environment_server.py")}
    for app in sorted((root / environment_servers.TYPE).glob("*/app.py")):
        name = app.parent.name
        if name in OF_CODE:
            continue
        if (ours := environment_servers.KINDS.get(name)) is None:
            yield f"{environment_servers.TYPE}/{name}: is no known kind"
            continue
        for key in sorted(base | {key for key, _ in keys_of(app)}):
            if key != "model_config" and key not in ours.model_fields:
                yield f"{name}.{key}: no key of {ours.__name__}"


def find_unknown_rows(root: Path) -> Iterator[str]:
    """Fields of rows that are not at the top of a row, once it is read."""
    for module, classes in OF_ROWS.items():
        for name, known in classes.items():
            found = {key for key, _ in keys_of(root / "nemo_gym" / module, name)}
            yield from (f"{name}.{key}" for key in sorted(found - known - {"model_config"}))
            yield from (f"{name}.{key}: is not there any more" for key in sorted(known - found))
    params = {"input": "?"}
    task = {"responses_create_params": params, "task_data": {"answer": 1}}
    row = {"task_id": {"taskset": "sums", "task_id": "one"}, "task_input": task}
    read = flatten(row)
    wanted = {"task_id": "one", SOURCE: "sums", "responses_create_params": params, "answer": 1}
    yield from (f"a row's {key} is not read" for key in wanted if read.get(key) != wanted[key])


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    words = [sys.argv[1], "-c", WHERE]
    root = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
    unknown = [*find_unknown(root), *find_unknown_fronts(root), *find_unknown_rows(root)]
    print("\n".join([*unknown, f"{len(unknown)} keys of its servers and rows are not known"]))
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
