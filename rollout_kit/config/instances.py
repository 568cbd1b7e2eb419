"""Server instances: find them in the merged tree, check their settings, resolve their references.

Each problem becomes one line; ConfigError is raised after all instances are checked.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError, suggest
from ..serving import registry
from ..serving.given_server import GivenServer
from ..serving.nemo_gym import adoption
from ..serving.nemo_gym.checkout import Gym, GymServer
from ..serving.nemo_gym.environment_servers import TYPE as ENVIRONMENTS
from ..serving.service import ServerConfig, ServerRef, Service
from ..types import JsonObject
from . import fields
from .instance_keys import (
    APP,
    NUM_REPLICAS,
    CommonKeys,
    clashes,
    explain_old_copies,
    find_copy_clashes,
    is_url,
    name_stray,
    split_keys,
)
from .sources import Merged

MODELS, RESOURCES, AGENTS = registry.TYPES

BLOCK_TYPES = (*registry.TYPES, ENVIRONMENTS)
"""Keys under which a mapping at the top describes a server, or is a name of one."""

POLICY = "policy_model"
"""References to this name mean the only model server if no server has the name."""

IGNORED = frozenset(
    [
        "domain",
        "verified",
        "verified_url",
        "description",
        "value",
        "provides",
        "checkpoint_replayable_verify",
        "token_id_capture",
        "debug",
    ]
)
"""NeMo Gym's keys that are ignored, so that its YAML files work unchanged."""

PACES = ("requests_per_minute", "tokens_per_minute")
"""Keys of every model server that limit the requests to an endpoint."""

UNSAFE_CODE = "unsafe_code"
"""The setting of servers that have a sandbox; also the command's key that sets it for all."""

EXPECTED = {"resources_server": RESOURCES, "model_server": MODELS, "agent_server": AGENTS}
"""The type that a reference under these keys must have, whatever its `type` says."""


ServiceClass = type[Service]


@dataclass(frozen=True, slots=True)
class Instance:
    """One server to run or to reach. `settings` are the implementation's own keys."""

    name: str
    type: str
    implementation: str
    settings: JsonObject
    placement: str | None = None
    host: str | None = None
    port: int | None = None
    num_workers: int = 1
    process: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    token: str | None = None
    datasets: list[JsonObject] = field(default_factory=list)
    num_gpus: float | None = None
    num_cpus: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Texts in its settings and variables that must not be shown."""
    code: GymServer | None = None
    """Its code, if that is written for NeMo Gym."""
    made: GivenServer | None = None
    """What makes it, if a program gives it: it runs in this process."""

    def load(self, cwd: Path | None = None) -> ServiceClass:
        """Its class; ConfigError if there is none, or it cannot be imported."""
        return self.made.cls if self.made else registry.load(self.type, self.implementation, cwd)


class Block(NamedTuple):
    """An instance in the merged tree; `path` leads to its keys."""

    name: str
    type: str
    implementation: str
    given: JsonObject
    path: tuple[str, ...]
    code: GymServer | None = None
    made: GivenServer | None = None

    def load(self, cwd: Path | None = None) -> ServiceClass:
        """As for an instance."""
        return self.made.cls if self.made else registry.load(self.type, self.implementation, cwd)


class Reference(NamedTuple):
    path: tuple[Any, ...]
    type: str
    name: str


@dataclass(slots=True)
class CheckedBlock:
    """An instance with the problems that were found in it."""

    instance: Instance
    references: list[Reference]
    problems: list[str]


def find_block(name: str, value: Any, cwd: Path) -> Block | fields.Problem | None:
    """The instance that a top-level key describes; a problem if it is nearly one; else None."""
    if not isinstance(value, dict):
        return None
    types = [key for key in value if key in BLOCK_TYPES]
    if types:
        return _read_nested(name, value, types)
    owners = [type_ for type_ in registry.TYPES if registry.find(type_, name, cwd)]
    for key, inner in value.items():
        close = get_close_matches(key, BLOCK_TYPES, n=1, cutoff=0.75)
        if close and isinstance(inner, dict) and all(isinstance(v, dict) for v in inner.values()):
            reason = f"unknown server type '{key}' (did you mean '{close[0]}'?)"
            return fields.Problem((name, key), reason)
    if len(owners) > 1:
        reason = f"implementations of that name are among the {' and the '.join(owners)}"
        example = f"{name}: {{{owners[0]}: {{{name}: {{…}}}}}}"
        return fields.Problem((name,), f"{reason}: write it out, {example}")
    return Block(name, owners[0], name, value, (name,)) if owners else None


def adopt(block: Block, gym: Gym) -> tuple[Block, list[str]]:
    """The block with our implementation, or with NeMo Gym's code; a line for each key that has no
    counterpart here."""
    if is_url(str(block.given.get("placement"))):
        return block, []
    found = adoption.adopt(block.name, block.type, block.implementation, block.given, gym)
    title = f"{block.name} ({block.implementation})"
    own = block._replace(implementation=found.implementation, given=found.given, code=found.code)
    return own, [f"{title}: {line}" for line in found.problems]


def check_all(
    blocks: list[Block], merged: Merged, cwd: Path, *, with_policy: bool = True
) -> dict[str, Instance]:
    """All instances with resolved references; ConfigError with one line per problem. Without
    `with_policy` an agent's model may be missing."""
    blocks = [_with_references(block, blocks) for block in blocks]
    blocks = [*blocks, *add_missing_agent(blocks, cwd, with_policy)]
    checked = [check(block, merged, cwd) for block in blocks]
    problems = [problem for one in checked for problem in one.problems]
    known = {block.name: block.type for block in blocks}
    instances = {}
    asked: set[str] = set()
    for one in checked:
        if not with_policy and one.instance.type == AGENTS:
            one.references = [ref for ref in one.references if ref.path[-1] != "model_server"]
        wired, unwired = _wire(one, known, merged)
        instances[wired.name] = wired
        asked.update(reference.name for reference in one.references)
        problems += unwired
    for block in blocks:
        is_asked = block.name in asked or (block.name == POLICY and not with_policy)
        if block.made and block.type != AGENTS and not is_asked:
            problems.append(f"{block.name}: no agent asks this server, so it would be ignored")
    if problems:
        raise ConfigError("\n".join(problems))
    return instances


def check(block: Block, merged: Merged, cwd: Path) -> CheckedBlock:
    """Check one instance against its implementation's Config."""
    title = f"{block.name} ({block.implementation})"
    common, own = ({}, block.given) if block.made else split_keys(block.given)
    problems: list[fields.Problem] = []
    if block.code:
        own["entrypoint"] = common.pop("entrypoint", None) or APP
        if not isinstance(common.get("env", {}), dict):
            own["env"] = common.pop("env")  # a key of its own
    keys = CommonKeys()
    try:
        keys = CommonKeys.model_validate(common)
    except ValidationError as error:
        problems += fields.problems(error, CommonKeys)
    problems += clashes(keys, common)
    lines = []
    validated: ServerConfig | None = None
    elsewhere = keys.python is not None or is_url(keys.placement or "")
    if block.code:
        settings = own
    elif elsewhere and registry.find(block.type, block.implementation, cwd) is None:
        settings = {key: value for key, value in own.items() if key not in IGNORED}
    else:
        settings = own
        try:
            config = block.load(cwd).Config
        except ConfigError as error:
            if not (elsewhere and isinstance(error.__cause__, ImportError)):
                lines.append(f"{block.name}: {error} [{merged.origin(*block.path)}]")
                problems = [each for each in problems if each.path != ("entrypoint",)]
        else:
            problems += find_copy_clashes(block.given, NUM_REPLICAS in config.model_fields)
            settings = _likely_meant(own, config)
            problems += fields.find_misplaced_booleans(config, settings)
            try:
                validated = config.model_validate(settings)
            except ValidationError as error:
                problems += fields.problems(error, config, CommonKeys.model_fields)
    for problem in problems:
        origin = merged.origin(*block.path, *problem.path)
        lines.append(describe_problem(title, problem, origin))
    return CheckedBlock(
        Instance(
            block.name,
            block.type,
            block.implementation,
            deepcopy(settings),
            **keys.model_dump(exclude={"entrypoint"}),
            code=block.code,
            made=block.made,
        ),
        list(references(settings, validated)),
        lines,
    )


def with_unsafe_code(given: dict[str, Instance], cwd: Path) -> dict[str, Instance]:
    """The instances, with `unsafe_code` set for those that have a sandbox."""
    allowed = dict(given)
    for name, one in given.items():
        block = Block(name, one.type, one.implementation, one.settings, (name,), made=one.made)
        config = config_of(block, cwd)
        if config is not None and UNSAFE_CODE in config.model_fields:
            allowed[name] = replace(one, settings={**one.settings, UNSAFE_CODE: True})
    return allowed


def config_of(block: Block, cwd: Path) -> type[BaseModel] | None:
    """The implementation's Config; None if it cannot be loaded, which `check` reports."""
    try:
        return block.load(cwd).Config
    except ConfigError:
        return None


def _read_nested(name: str, value: JsonObject, types: list[str]) -> Block | fields.Problem:
    type_ = types[0]
    place, inner = (name, type_), value[type_]
    if len(types) > 1:
        reason = f"has two server types, {' and '.join(types)}: give each a name of its own"
        return fields.Problem((name,), reason)
    if others := [key for key in value if key != type_]:
        return name_stray(place, others[0], value[others[0]], inner)
    if not isinstance(inner, dict) or not inner:
        reason = f"{type_} must hold one implementation, as {type_}: {{<implementation>: …}}"
        return fields.Problem(place, reason)
    if len(inner) > 1:
        if strays := [key for key, given in inner.items() if not isinstance(given, dict | None)]:
            return name_stray(place, strays[0], inner[strays[0]], inner)
        reason = f"{type_} holds {len(inner)} implementations, {' and '.join(inner)}"
        last = (*place, list(inner)[-1])
        return fields.Problem(last, f"{reason}: one instance has one; give each a name of its own")
    implementation, given = next(iter(inner.items()))
    if given is not None and not isinstance(given, dict):
        reason = f"{type_}.{implementation} must be a mapping of settings, got {given!r}"
        return fields.Problem((*place, implementation), reason)
    return Block(name, type_, implementation, given or {}, (*place, implementation))


def made_blocks(made: Mapping[str, GivenServer]) -> list[Block]:
    """The servers that a program gives."""
    return [
        Block(name, one.cls.kind, one.cls.__name__, one.settings(), (name,), made=one)
        for name, one in made.items()
    ]


def _with_references(block: Block, blocks: list[Block]) -> Block:
    """An agent that a program gives asks the only resources server and the policy model, unless it
    names others."""
    if block.made is None or block.type != AGENTS:
        return block
    found: JsonObject = {}
    for key, kind in (("resources_server", RESOURCES), ("model_server", MODELS)):
        names = [each.name for each in blocks if each.type == kind]
        name = POLICY if POLICY in names else names[0] if len(names) == 1 else None
        if name and key in block.made.cls.Config.model_fields and not block.given.get(key):
            found[key] = {"type": kind, "name": name}
    return block._replace(given={**block.given, **found})


def add_missing_agent(blocks: list[Block], cwd: Path, with_policy: bool = True) -> list[Block]:
    """The agent of the only resources server, if no agent is configured. It asks the only model, or
    the one that is called policy_model."""
    resources = [block.name for block in blocks if block.type == RESOURCES]
    models = _list_answering(blocks)
    if POLICY in models or not (models or with_policy):
        models = [POLICY]
    if len(resources) != 1 or len(models) != 1 or {block.type for block in blocks} & {AGENTS}:
        return []
    if registry.find(AGENTS, "simple_agent", cwd) is None:
        return []
    name = f"{resources[0]}_simple_agent"
    given = {
        "resources_server": {"type": RESOURCES, "name": resources[0]},
        "model_server": {"type": MODELS, "name": models[0]},
    }
    return [Block(name, AGENTS, "simple_agent", given, (name,))]


def _list_answering(blocks: list[Block]) -> list[str]:
    """The models that may answer tasks: those that no resources server asks, as it asks a judge. If
    it asks all, they are all."""
    models = [block.name for block in blocks if block.type == MODELS]
    judges = {
        each.name
        for block in blocks
        if block.type == RESOURCES
        for each in references(block.given, None)
    }
    return [name for name in models if name not in judges] or models


def explain_missing_agent(blocks: list[Block]) -> Iterator[str]:
    """Why the only resources server gets no agent, if several models could be its policy."""
    resources = [block.name for block in blocks if block.type == RESOURCES]
    models = _list_answering(blocks)
    has_agent = any(block.type == AGENTS for block in blocks)
    if len(resources) == 1 and len(models) > 1 and POLICY not in models and not has_agent:
        yield (
            f"{resources[0]} gets no agent, as {len(models)} models are configured,"
            f" {' and '.join(models)}: call the one that answers the tasks {POLICY}, or take the"
            " others out"
        )


def explain_old_keys(blocks: list[Block], cwd: Path) -> Iterator[str]:
    """A line for each key of a server that is accepted in place of another one."""
    for block in blocks:
        if block.made is None and block.code is None and (config := config_of(block, cwd)):
            has_replicas = NUM_REPLICAS in config.model_fields
            yield from explain_old_copies(block.name, block.given, has_replicas)


def explain_unused_paces(blocks: list[Block], cwd: Path) -> Iterator[str]:
    """A line for each pace that is set for a model which asks no endpoint."""
    for block in blocks:
        paced = [key for key in PACES if block.given.get(key) is not None]
        if paced and block.type == MODELS and block.made is None and block.code is None:
            from ..serving.hosted_model import HostedModel  # only where a key asks for it

            if config_of(block, cwd) and not issubclass(block.load(cwd), HostedModel):
                what = f"{' and '.join(paced)} in {block.name}"
                yield f"{what} has no effect: {block.implementation} asks no endpoint"


def explain_unasked(found: Mapping[str, Instance]) -> Iterator[str]:
    """Which models no server asks, though there are agents. One with a port of its own is for
    requests by URL."""
    servers = found.values()
    asked = {each.name for one in servers for each in references(one.settings, None)}
    models = [one for one in servers if one.type == MODELS]
    if any(one.type == AGENTS for one in servers):
        for one in models:
            if one.name not in asked and one.port is None:
                others = " and ".join(each.name for each in models if each.name in asked)
                instead = f": they ask {others}" if others else ""
                yield f"{one.name} is asked by no agent and no verifier{instead}"


def _likely_meant(own: JsonObject, config: type[BaseModel]) -> JsonObject:
    """The settings to validate with the implementation's Config."""
    known = fields.keys(config)
    takes_any = config.model_config.get("extra") == "allow"
    return {
        key: value
        for key, value in own.items()
        if key in known or (key not in IGNORED and (value is not None or takes_any))
    }


def describe_problem(title: str, problem: fields.Problem, origin: str) -> str:
    place = ".".join(problem.path)
    where = f" [{origin}]" if origin else ""
    if problem.is_unknown:
        reason, _, hint = problem.reason.partition(" (")
        return f"{title}: {reason} '{place}'{' (' + hint if hint else ''}{where}"
    got = "" if problem.value is None else f" (got {fields.show_value(problem)})"
    return f"{title}: {place + ': ' if place else ''}{problem.reason}{got}{where}"


def references(settings: JsonObject, validated: BaseModel | None) -> Iterator[Reference]:
    """The references of an instance: fields of type ServerRef, and mappings of the same form."""
    seen = set()
    for path, ref in fields.each_model(validated, ServerRef):
        assert isinstance(ref, ServerRef)
        seen.add(path)
        yield Reference(path, ref.type, ref.name)
    for path, ref in _look_alikes(settings, ()):
        if path not in seen:
            yield Reference(path, ref["type"], ref["name"])


def _look_alikes(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], JsonObject]]:
    if isinstance(value, dict):
        if set(value) == {"type", "name"} and value["type"] in registry.TYPES:
            yield path, value
            return
        for key, child in value.items():
            yield from _look_alikes(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _look_alikes(child, (*path, index))


def _wire(one: CheckedBlock, known: dict[str, str], merged: Merged) -> tuple[Instance, list[str]]:
    """The instance with its references resolved to existing names, and the problems."""
    instance, problems = one.instance, []
    settings = instance.settings
    models = [name for name, type_ in known.items() if type_ == MODELS]
    for reference in one.references:
        title = f"{instance.name} ({instance.implementation}): {'.'.join(map(str, reference.path))}"
        name = reference.name
        if name == POLICY and name not in known and len(models) == 1:
            name = models[0]
        actual = known.get(name)
        wanted = EXPECTED.get(str(reference.path[-1])) or reference.type or actual
        if actual is None:
            of_type = [other for other, type_ in known.items() if wanted in (type_, None)]
            listed = ", ".join(of_type) or "none"
            hint = suggest(name, of_type)
            problems.append(f"{title}: no instance '{name}'{hint}; {wanted or 'known'}: {listed}")
        elif actual != wanted or (reference.type and reference.type != actual):
            problems.append(
                f"{title}: '{name}' is one of the {actual}, not of the "
                f"{wanted if actual != wanted else reference.type}"
            )
        elif name != reference.name or actual != reference.type:
            settings = _put(settings, reference.path, {"type": actual, "name": name})
    return replace(instance, settings=settings), problems


def _put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, list):
        return [_put(v, path[1:], new) if i == path[0] else v for i, v in enumerate(value)]
    return {**value, path[0]: _put(value.get(path[0], {}), path[1:], new)}
