"""Blocks of NeMo Gym's `environment_servers`: check them, and wire their agents.

A block of a known kind becomes no server: `nemo_gym.environment_servers` says what its name means.
One of another kind is an agent whose code is NeMo Gym's or the user's.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import suggest
from ..serving.nemo_gym.checkout import Gym
from ..serving.nemo_gym.environment_servers import (
    AGENT,
    KINDS,
    ROUTES,
    TYPE,
    LegacyAgent,
    SingleAgentTurn,
    implementations,
)
from ..serving.service import ServerRef
from ..types import JsonObject
from . import fields
from .instance_keys import APP, CommonKeys
from .instances import AGENTS, IGNORED, RESOURCES, Block, describe_problem
from .sources import Merged

LIMITS = {"max_concurrent_episodes": None, "default_episode_timeout_seconds": 21600}
"""Limits of an environment server, with the values that NeMo Gym's own YAML files give."""

OF_RUN = {
    "max_concurrent_episodes": "leave it out: num_samples_in_parallel limits the rollouts in flight"
}
"""Limits of a `single_agent_turn` that belong to the run here → what to write."""

OWN = (
    f"there is no code for it, {TYPE}/{{kind}}/app.py: name a checkout of NeMo Gym that has it,"
    " +nemo_gym=<folder>, or the agent's /run with legacy_agent, or one turn of an agent with"
    f" single_agent_turn; known are {', '.join(KINDS)}"
)
"""What to do with another kind."""


def run_code(block: Block, gym: Gym) -> Block:
    """The block as an agent, if its kind has code and no counterpart here."""
    code = None if block.implementation in KINDS else gym.find(TYPE, block.implementation)
    return block._replace(type=AGENTS, code=code) if code else block


def prefer_agents(values: JsonObject, gym: Gym) -> Gym:
    """The same, with NeMo Gym's code for the agents of such blocks: only these agents have the
    sessions that it opens."""
    named = {
        reference["name"]
        for block in values.values()
        for kind, settings in implementations(block, TYPE)
        if kind not in KINDS and gym.has(TYPE, kind)
        for reference in settings.values()
        if isinstance(reference, dict) and reference.get("type") == AGENTS and "name" in reference
    }
    return replace(gym, preferred=gym.preferred | named) if named else gym


class Wired(NamedTuple):
    """The servers of a configuration, and one line for each problem and warning."""

    blocks: list[Block]
    problems: list[str]
    warnings: list[str]


def wire(blocks: list[Block], values: JsonObject, merged: Merged) -> Wired:
    """The blocks that are servers; an agent without a resources server gets the one that its
    environment server names."""
    wired = Wired([block for block in blocks if block.type != TYPE], [], [])
    types = {block.name: block.type for block in wired.blocks}
    own = [block for block in blocks if block.type == TYPE]
    for block in own:
        found = _check(block, merged)
        wired.problems.extend(found.lines)
        if found.settings is None:
            continue
        if lines := list(_find_dangling(block, found.settings, types, merged)):
            wired.problems.extend(lines)
            continue
        wired.warnings.extend(_tell_unused(block, found.settings, merged))
        if isinstance(found.settings, SingleAgentTurn):
            _connect(block, found.settings, wired.blocks)
    coded = {each.name for each in blocks if each.code and each.code.type == TYPE}
    names = {block.name for block in own} | coded
    wired.problems.extend(_check_routes(values.get(ROUTES), names, merged))
    return wired


class _Checked(NamedTuple):
    settings: LegacyAgent | None
    lines: list[str]


def _check(block: Block, merged: Merged) -> _Checked:
    title = f"{block.name} ({block.implementation})"
    model = KINDS.get(block.implementation)
    if model is None:
        why = OWN.format(kind=block.implementation)
        return _Checked(None, [f"{title}: {TYPE}: {why} [{merged.origin(*block.path)}]"])
    given = {key: value for key, value in block.given.items() if key not in IGNORED}
    problems = [
        fields.Problem((key,), f"is no server here, but a name of its agent: leave out {key}")
        for key in CommonKeys.model_fields
        if (value := given.pop(key, None)) is not None and key != "datasets"
        if (key, value) != ("entrypoint", APP)
    ]
    settings = None
    try:
        settings = model.model_validate(given)
    except ValidationError as error:
        problems += fields.problems(error, model, ["datasets"])
    if isinstance(settings, SingleAgentTurn):
        problems += [
            fields.Problem((key,), reason, value)
            for key, reason in OF_RUN.items()
            if (value := getattr(settings, key)) is not None
        ]
    lines = [
        describe_problem(title, problem, merged.origin(*block.path, *problem.path))
        for problem in problems
    ]
    return _Checked(None if lines else settings, lines)


def _find_dangling(
    block: Block, settings: LegacyAgent, types: Mapping[str, str], merged: Merged
) -> Iterator[str]:
    """A line for each reference to no server, or to one of another type."""
    for key, wanted in ((AGENT, AGENTS), ("resources_server", RESOURCES)):
        reference = getattr(settings, key, None)
        if not isinstance(reference, ServerRef) or "${" in reference.name:
            continue
        title = f"{block.name} ({block.implementation}): {key}"
        origin = merged.origin(*block.path, key, "name")
        actual = types.get(reference.name)
        if reference.name == "???" and actual is None:
            continue
        if actual is None:
            of_type = [name for name, type_ in types.items() if type_ == wanted]
            hint = suggest(reference.name, of_type)
            known = ", ".join(of_type) or "none"
            yield f"{title}: no instance '{reference.name}'{hint}; {wanted}: {known} [{origin}]"
        elif actual != wanted or reference.type not in ("", wanted):
            said = actual if actual != wanted else reference.type
            what = f"'{reference.name}' is one of the {said}, not of the {wanted}"
            yield f"{title}: {what} [{origin}]"


def _tell_unused(block: Block, settings: LegacyAgent, merged: Merged) -> Iterator[str]:
    """A warning for limits that have no effect, as in NeMo Gym's own `legacy_agent`."""
    if isinstance(settings, SingleAgentTurn):
        return
    changed = [
        key
        for key, usual in LIMITS.items()
        if (value := getattr(settings, key)) is not None and value != usual
    ]
    if changed:
        has = "have" if len(changed) > 1 else "has"
        yield (
            f"{block.name} (legacy_agent): {', '.join(changed)} {has} no effect: the agent keeps"
            " its own limits. Give rollout_timeout_s and num_samples_in_parallel to the command"
            f" [{merged.origin(*block.path)}]"
        )


def _connect(block: Block, settings: SingleAgentTurn, blocks: list[Block]) -> None:
    """Give the agent its resources server. An agent that has another one keeps it, and the
    environment server becomes an agent of its own that is like it."""
    at = next(index for index, each in enumerate(blocks) if each.name == settings.agent_server.name)
    agent, wanted = blocks[at], settings.resources_server.name
    own = agent.given.get("resources_server")
    reference = {"type": RESOURCES, "name": wanted}
    if not own:
        blocks[at] = agent._replace(given={**agent.given, "resources_server": reference})
    elif isinstance(own, dict) and own.get("name") != wanted:
        given: JsonObject = {**agent.given, "resources_server": reference}
        given.pop("datasets", None)
        blocks.append(agent._replace(name=block.name, given=given, path=agent.path))


def _check_routes(routes: Any, names: Iterable[str], merged: Merged) -> Iterator[str]:
    if routes is None:
        return
    origin = merged.origin(ROUTES)
    if not isinstance(routes, dict):
        yield f"{ROUTES}: expected a mapping, taskset: environment server [{origin}]"
        return
    for taskset, name in routes.items():
        if name not in names:
            known = ", ".join(names) or "none"
            hint = suggest(str(name), list(names))
            yield (
                f"{ROUTES}.{taskset}: no environment server is called '{name}'{hint}; there are:"
                f" {known} [{origin}]"
            )
