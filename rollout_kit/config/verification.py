"""The instances that verification needs: resources servers and what they refer to.

Neither the policy model nor the agents are among them: an agent only names the resources server
that verifies its rollouts.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..errors import ConfigError
from .instances import AGENTS, MODELS, POLICY, Block, Instance, references


def without_policy(blocks: list[Block]) -> list[Block]:
    """All blocks except the policy model's, so that its key and address may be missing."""
    models = [block.name for block in blocks if block.type == MODELS]
    asked = {POLICY, *(_model_of(block) for block in blocks if block.type == AGENTS)}
    if len(models) == 1:
        asked |= set(models)  # `policy_model` then means the only model server
    kept = []
    for block in blocks:
        others = (one for one in blocks if one.type != AGENTS and one is not block)
        texts = {text for one in others for text in _texts(one.given)}
        is_judge = block.name in texts or (len(models) == 1 and POLICY in texts)
        if block.type != MODELS or block.name not in asked or is_judge:
            kept.append(block)
    return kept


def verifier_of(agent: Instance) -> str | None:
    """The resources server that verifies an agent's rollouts."""
    if named := _find_references(agent, "resources_server"):
        return named[0]
    given = agent.settings.get("resources_server")
    return given.get("name") if isinstance(given, dict) else None


def select_needed(instances: Mapping[str, Instance], names: Iterable[str]) -> dict[str, Instance]:
    """The instances with these names and all that they refer to, directly or indirectly."""
    found: dict[str, Instance] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and name in instances:
            found[name] = instances[name]
            waiting += _find_references(instances[name])
    return {name: one for name, one in instances.items() if name in found}


def _find_references(instance: Instance, key: str | None = None) -> list[str]:
    validated = None
    if instance.code is None:
        with suppress(ConfigError):  # a server elsewhere, whose code is not installed here
            validated = instance.load().Config.model_validate(instance.settings)
    found = references(instance.settings, validated)
    return [ref.name for ref in found if key is None or ref.path[-1] == key]


def _model_of(agent: Block) -> str | None:
    ref = agent.given.get("model_server")
    return ref.get("name") if isinstance(ref, dict) else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
