"""What a server process is given: its part of the plan, and its environment.

A resources server reads texts of models, so its process gets no key but those in its own settings:
a clean environment with its `env`, and how to reach the servers that its settings name. Models and
agents get the whole environment and plan.
"""

import os
import re
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..config.instances import RESOURCES, Instance
from ..errors import ConfigError
from ..secrets import mask
from ..serving import registry
from ..serving.fingerprint import list_sources
from ..serving.nemo_gym import handover
from ..serving.nemo_gym.environment_servers import TYPE as ENVIRONMENTS
from ..serving.process_tree import MARK
from ..serving.workers.environment import clean_environment
from ..types import JsonObject
from .processes import python_env

MIN_SECRET = 8
"""Shorter secrets, such as `none`, would mask other values of a configuration."""

READS, NAME = re.compile(r"\b(environ|getenv)\b"), re.compile(r"""["'](\w+)["']""")
"""Code that reads variables, and a text that may be the name of one."""

MIN_NAME = 4
"""Shorter variables, such as `_`, are the shell's own."""


def holds_no_key(instances: Iterable[Instance]) -> bool:
    """Whether a process that serves the instances gets a clean environment."""
    return all(each.type == RESOURCES for each in instances)


def environment_of(instances: list[Instance], mark: str) -> dict[str, str]:
    """The variables of a process that serves the instances."""
    inherited = clean_environment() if holds_no_key(instances) else os.environ
    own = dict(ChainMap({MARK: mark}, *(each.env for each in instances)))
    if instances[0].code:
        return handover.environment(inherited, own)
    return python_env(inherited, **own)


def plan_of(plan: JsonObject, instances: list[Instance]) -> JsonObject:
    """What a process needs of the run's plan to serve the instances and to call others."""
    own = {each.name for each in instances}
    names = set(plan["urls"])
    if holds_no_key(instances):
        names = own.union(*(find_named(each, names) for each in instances))
    part = {name: plan[name] for name in ("run_id", "tapes", "http") if name in plan}
    for name in ("urls", "timeouts_s", "types"):
        part[name] = {key: value for key, value in plan[name].items() if key in names | own}
    part["tokens"] = {key: plan["tokens"].get(key) for key in names - own if key in plan["tokens"]}
    part["by_rollout"] = [name for name in plan["by_rollout"] if name in names]
    return {**part, "instances": to_start(instances)}


def find_named(instance: Instance, known: Collection[str]) -> set[str]:
    """The servers that the settings of an instance name, as references or as plain texts; defaults
    count too."""
    settings: Any = instance.settings
    with suppress(ConfigError, ValidationError):  # of another interpreter: only what was given
        config = instance.load().Config
        settings = [settings, config.model_validate(settings).model_dump(mode="json")]
    return set(known).intersection(_texts(settings))


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for part in [*tree, *tree.values()] if isinstance(tree, dict) else tree:
            yield from _texts(part)


def to_start(instances: Iterable[Instance]) -> list[JsonObject]:
    """What a process needs to start the instances, secrets included."""
    return [
        {
            "name": each.name,
            "type": each.type,
            "implementation": each.implementation,
            "settings": each.settings,
            "private": list(each.secrets),
        }
        for each in instances
    ]


def config_for_gym(
    own: Instance, instances: list[Instance], values: JsonObject, secrets: frozenset[str], urls: Any
) -> JsonObject:
    """The configuration for a server of NeMo Gym: the settings of all, but only its own secrets.
    Models and agents also get the `secrets` that no server has in its settings."""
    known = frozenset[str]().union(*(each.secrets for each in instances))
    if own.type == RESOURCES:
        known |= secrets
    known -= own.secrets
    if spell_type(own) == ENVIRONMENTS:  # its code asks their endpoints itself, as for embeddings
        named = _texts(own.settings)
        known -= frozenset[str]().union(*(e.secrets for e in instances if e.name in set(named)))
    others = frozenset(text for text in known if len(text) >= MIN_SECRET)
    blocks = {
        each.name: (spell_type(each), each.implementation, mask(each.settings, others))
        for each in instances
    }
    return handover.config_for(mask(values, others), blocks, urls)


def spell_type(instance: Instance) -> str:
    """The type of a server in NeMo Gym's configuration."""
    return instance.code.type if instance.code else instance.type


def warn_of_variables(instances: list[Instance]) -> Iterator[str]:
    """A line for each variable of this process that the code of a resources server names, and that
    its process does not get."""
    if not holds_no_key(instances):
        return
    known = clean_environment()
    for each in instances:
        texts = [text for path in sources_of(each) if READS.search(text := _read(path))]
        named = {name for text in texts for name in NAME.findall(text)}
        for name in sorted((named & {*os.environ}) - {*known, *each.env}):
            if len(name) >= MIN_NAME:
                yield (
                    f"warning: {each.name} names the environment variable {name}, which the process"
                    f" of a resources server does not get; if it needs it, add to its keys:"
                    f"  env: {{{name}: '${{oc.env:{name}}}'}}"
                )


def sources_of(instance: Instance) -> list[Path]:
    """The files of a server's code."""
    folder = registry.find(instance.type, instance.implementation)
    folder = instance.code.folder if instance.code else folder
    return list(list_sources(folder / "app.py")) if folder else []


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
