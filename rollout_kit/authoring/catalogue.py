"""What ng_list shows: servers, agents and benchmarks, where each is from and what it needs; and
which YAML files of a checkout of NeMo Gym are valid here."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..config.benchmarks.definition import (
    TRAINING,
    list_definitions,
    read_definition,
    rows_file,
)
from ..config.instances import BLOCK_TYPES
from ..config.keys import ListConfig, ValidateConfig
from ..config.load import Program, load
from ..errors import ConfigError
from ..serving import registry
from ..serving.nemo_gym.benchmarks import list_configs
from ..serving.nemo_gym.checkout import Gym, GymServer
from ..serving.nemo_gym.environments import environment_of
from ..serving.nemo_gym.manifests import GymManifest
from ..serving.nemo_gym.models import NAMES

POLICY = "policy_base_url: http://127.0.0.1:1/v1\npolicy_api_key: none\npolicy_model_name: none\n"
"""Values that nearly every YAML of NeMo Gym needs."""

MODEL_YAMLS = [
    f"responses_api_models/{name}/configs/{name}.yaml" for name in ("openai_model", "vllm_model")
]

PLACES = ("*_servers/*/configs", "benchmarks", "environments", "responses_api_*/*/configs")
"""Folders of a checkout with YAML files of servers."""

VALUE = re.compile(
    r"\$\{([\w.:]+)[^}]*\}\S* has no value|^(\S+) is mandatory"
    r"|^(\S+) \(\w+\): (?:\w*_url|\w*_key|\w*_model|model_name|\w+_server):"
    r" (?:is required|must start with|is not a URL)"
    r"|^\S+ \(\w+\): \w+: needs (\w+): \w+",
    re.MULTILINE,
)
SERVER = re.compile(
    r"no instance '([^']+)'|inherits from (\w+), but there is no|_delete_key names '(\w+)', which"
)
CODE = re.compile(r"no implementation '(\w+)'|^'(\w+)' in .* no server here runs", re.MULTILINE)

VALID, NEEDS, REFUSED = "valid", "needs", "refused"


@dataclass(frozen=True, slots=True)
class Listed:
    """One thing that can be used: `needs` is what is missing for it."""

    kind: str
    name: str
    source: str
    needs: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """One YAML file: valid, or what it needs, or why it is refused."""

    path: str
    status: str
    reason: str


def list_entries(command: ListConfig, cwd: Path) -> list[Listed]:
    """Everything that is found, by kind and name."""
    gym = Gym.of(command.model_dump(), cwd)
    found = [*_servers(gym), *_definitions(gym.cwd), *_benchmarks(gym)]
    return [each for each in found if command.kind in (None, each.kind)]


def _servers(gym: Gym) -> Iterator[Listed]:
    kinds = dict(zip(registry.TYPES, ("model", "environment", "agent"), strict=True))
    for type_, kind in kinds.items():
        ours = registry.implementations(type_, gym.cwd)
        theirs = sorted(app.parent.name for app in _apps(gym, type_))
        replaced = {name for name in theirs if NAMES.get((type_, name), name) in ours}
        for name in sorted({*ours, *theirs}):
            server = gym.find(type_, name)
            if name in ours:
                both = ", and in the checkout" if server else ""
                yield Listed(kind, name, f"rollout_kit{both}", "")
            elif name in replaced:
                own = NAMES[type_, name]
                yield Listed(kind, name, f"rollout_kit, as {own}", "")
            elif server:
                yield Listed(kind, name, str(server.folder), _needs_of(server))


def _apps(gym: Gym, type_: str) -> Iterator[Path]:
    for root in filter(None, {gym.root, gym.cwd.resolve()}):
        apps = (root / type_).glob("*/app.py")
        yield from (each for each in apps if registry.is_for_nemo_gym(each))


def _needs_of(server: GymServer) -> str:
    environment = environment_of(server)
    parts = [] if environment.is_ready else [", ".join(environment.own) or "NeMo Gym's environment"]
    if server.asks_for_ray:
        parts.append("Ray")
    return "; ".join(parts)


def _definitions(cwd: Path) -> Iterator[Listed]:
    names = {"": list_definitions(cwd), TRAINING: list_definitions(cwd, "dataset")}
    for one in (read_definition(mark + name, cwd) for mark in names for name in names[mark]):
        is_here = rows_file(one).is_file()
        parts = [*one.needs, *(["its terms accepted"] if one.gated else [])]
        said = [one.about, one.server, *filter(None, [one.metric]), one.license]
        needs = "; ".join([*parts, *([] if is_here else ["to be fetched"])])
        what = f"{one.rows:,} rows: {' · '.join(said)}"
        yield Listed(one.kind, one.path.stem, "rollout_kit", needs, what)


def _benchmarks(gym: Gym) -> Iterator[Listed]:
    for name, config in (list_configs(gym.root) if gym.root else {}).items():
        prepared = any((config.parent / "data").glob("*.jsonl"))
        needs = "" if prepared else f"ng_prepare_data +benchmark={name}"
        place = config.parent if config.name == "config.yaml" else config
        # the manifest of another file than config.yaml is in a folder of its name
        manifest = GymManifest.of(place.with_suffix(""))
        yield Listed("benchmark", name, str(place), needs, str(manifest or ""))


def check_files(gym: Gym) -> Iterator[Checked]:
    """Every YAML file of the checkout, checked as ng_validate does, with a policy model if it has
    none."""
    if gym.root is None:
        raise ConfigError("check: name a checkout of NeMo Gym, +nemo_gym=<folder>")
    tops = [top for place in PLACES for top in gym.root.glob(place)]
    files = {path for top in tops for path in top.rglob("*.yaml")}
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        policy.write_text(POLICY)
        for path in sorted(files):
            if re.search(rf"^ {{2}}({'|'.join(BLOCK_TYPES)}):", path.read_text(), re.M):
                status, reason = _check(path, policy, gym)
                yield Checked(str(path.relative_to(gym.root)), status, reason)


def _check(path: Path, policy: Path, gym: Gym) -> tuple[str, str]:
    problem = ""
    for files in ([policy, path], *([policy, model, path] for model in MODEL_YAMLS)):
        program = Program([str(file) for file in files], {"nemo_gym": str(gym.root)})
        try:
            load([], ValidateConfig, gym.cwd, program)
            return VALID, ""
        except ConfigError as error:
            problem = str(error)
            is_first = files == [policy, path]
            if is_first and "policy_model" not in str(SERVER.findall(problem)):
                break
    return _explain(problem)


def _explain(problem: str) -> tuple[str, str]:
    values = sorted({"".join(groups) for groups in VALUE.findall(problem)})
    servers = sorted({"".join(groups) for groups in SERVER.findall(problem)})
    code = sorted({"".join(groups) for groups in CODE.findall(problem)})
    lines = [line for line in problem.splitlines() if not _is_lack(line)]
    if lines:
        return REFUSED, lines[0]
    named = {"values": values, "servers": servers, "code of": code}
    return NEEDS, "; ".join(f"{what} {', '.join(names)}" for what, names in named.items() if names)


def _is_lack(line: str) -> bool:
    return any(pattern.search(line) for pattern in (VALUE, SERVER, CODE))
