"""Whether every key of the servers of an installed NeMo Gym that ours replace is known here:
`python -m benchmarks.agreement.gym_keys <its interpreter>`. The exit status is 1 if one is not.

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
from rollout_kit.serving.nemo_gym.models import name_ours, translate

SERVERS = (
    *(("responses_api_models", name) for name in ("vllm_model", "openai_model")),
    *(("responses_api_models", name) for name in ("azure_openai_model", "inference_provider")),
    ("responses_api_agents", "simple_agent"),
)

WHERE = "import nemo_gym, pathlib; print(pathlib.Path(nemo_gym.__file__).parents[1])"


def keys_of(app: Path) -> Iterator[tuple[str, Any]]:
    """The keys of the configuration classes of a module, each with a value."""
    for node in ast.parse(app.read_text("utf-8")).body:
        if not isinstance(node, ast.ClassDef) or not node.name.endswith("Config"):
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


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    words = [sys.argv[1], "-c", WHERE]
    root = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
    unknown = list(find_unknown(root))
    print("\n".join([*unknown, f"{len(unknown)} keys of {len(SERVERS)} servers are not known"]))
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
