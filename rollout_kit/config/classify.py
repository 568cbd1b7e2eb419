"""What each top-level key is: one of the command, a server, a value for others, or a mistake."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import suggest
from ..serving import registry
from ..serving.endpoints.params import TYPO, find_problems
from ..serving.fingerprint import read_sources
from ..serving.nemo_gym.checkout import Gym
from ..serving.nemo_gym.environment_servers import ROUTES
from ..serving.nemo_gym.environment_servers import TYPE as ENVIRONMENTS
from ..types import JsonObject
from . import environments, fields, instances, interpolation
from .commands import COMMANDS, OLD_KEYS, explain_old_key, known_keys
from .instances import Block
from .keys import Command
from .overrides import CONFIG_PATHS, FLAGS
from .sources import COMMAND_LINE, ENV_FILE, Merged

PARAMS = "responses_create_params"

NEMO_GYM_KEYS = frozenset({"head_server_deps", "disallowed_ports", "token_id_capture"})
"""Top-level lists and mappings of NeMo Gym that are ignored."""


SANDBOX = "sandbox"
"""The top-level mapping that only NeMo Gym's own servers read."""


def classify(
    values: JsonObject, merged: Merged, command: type[Command], cwd: Path
) -> tuple[list[Block], list[str], list[str]]:
    """The instances among the top-level keys, one line for each problem, and the warnings."""
    blocks: list[Block] = []
    problems: list[str] = []
    warnings: list[str] = []
    for_servers: JsonObject = {}
    for_code: list[str] = []
    gym = environments.prefer_agents(values, Gym.of(values, cwd))
    used = interpolation.users(merged.tree)
    filed = [key for key in values if not merged.set_by(key, COMMAND_LINE)]
    own, anyones = set(fields.keys(command)), known_keys()
    problems += _check_params(values.get(PARAMS) or {}, merged)
    for key, value in values.items():
        typed = merged.set_by(key, COMMAND_LINE)
        if key in own or key == ROUTES or (key in anyones and not typed):
            continue
        if key in anyones:
            problems.append(f"'{key}' on the command line is a key of {_owners(key)} only")
            continue
        block = instances.find_block(key, value, cwd)
        known = not typed or key in merged.overridden
        if isinstance(block, Block) and not known and (close := suggest(key, filed)):
            problems.append(f"no instance is called '{key}' in the files{close}")
        elif isinstance(block, Block) and block.type == ENVIRONMENTS:
            blocks.append(environments.run_code(block, gym))
        elif isinstance(block, Block):
            adopted, wrong = instances.adopt(block, gym)
            blocks.append(adopted)
            problems += [f"{line} [{merged.origin(*block.path)}]" for line in wrong]
        elif key in used or (key in merged.released and not typed):
            continue
        elif key in OLD_KEYS:
            warnings.append(explain_old_key(key))
        elif block is not None:
            problems.append(f"{key}: {block.reason} [{merged.origin(*block.path)}]")
        elif typed and not known and not isinstance(value, dict | list):
            for_servers[key] = value
        elif typed or (isinstance(value, dict | list) and merged.origin(key) != ENV_FILE):
            unknown = describe_unknown(key, typed, merged, [*own, *filed, *used], cwd)
            if typed:
                problems.append(unknown)
            elif key not in NEMO_GYM_KEYS:
                for_code.append(unknown)
        elif close := get_close_matches(key, anyones - values.keys(), n=1, cutoff=TYPO):
            origin = merged.origin(key)
            problems.append(f"unknown key '{key}' in {origin} (did you mean '{close[0]}'?)")
        elif merged.origin(key) != ENV_FILE:
            like = [other for other in fields.keys(command) if key in other.split("_")]
            hint = f" (did you mean {' or '.join(like)}?)" if like else ""
            warnings.append(f"'{key}' in {merged.origin(key)} has no effect: nothing uses it{hint}")
    warnings += _tell_shadowed(blocks, gym)
    if not any(block.code for block in blocks):  # NeMo Gym's code may read any part of the whole
        problems += for_code
    for key, value in for_servers.items():
        are_set = [_set_for(block, key, value, cwd) for block in blocks]
        if not any(are_set):
            problems.append(describe_unknown(key, True, merged, [*own, *filed, *used], cwd))
    return blocks, problems, warnings


def _check_params(params: Any, merged: Merged) -> list[str]:
    if not isinstance(params, dict):
        return [f"{PARAMS}: expected a mapping [{merged.origin(PARAMS)}]"]
    return [
        f"{PARAMS}.{key}: {reason} [{merged.origin(PARAMS, key.partition('[')[0])}]"
        for key, reason in find_problems(params)
    ]


def _has_versions(kind: str, roots: Iterable[Path]) -> bool:
    """Whether several folders have a server of this name, with different code."""
    files = [file for root in roots if (file := root / kind / "app.py").is_file()]
    return any(read_sources(file) != read_sources(files[0]) for file in files[1:])


def _tell_shadowed(blocks: list[Block], gym: Gym) -> list[str]:
    """Which of two folders is used for servers that have two."""
    kinds = sorted({f"{block.type}/{block.implementation}" for block in blocks if not block.code})
    found = [
        f"{kind} of this folder is used, not the one that rollout_kit ships"
        for kind in kinds
        if _has_versions(kind, registry.roots(gym.cwd)) and gym.find(*kind.split("/")) is None
    ]
    both = {block.path[-1] for block in blocks if not block.code and gym.has(*block.path[1:])}
    if names := ",".join(sorted(both)):
        found.append(
            f"{names}: rollout_kit's own code runs, not that of NeMo Gym; +nemo_gym_code=[{names}]"
            " takes that"
        )
    return found


def _set_for(block: Block, key: str, value: Any, cwd: Path) -> bool:
    """Set a key of the command line for a server whose code mentions it; whether it does."""
    config = instances.config_of(block, cwd)
    folder = registry.find(block.type, block.implementation, cwd)
    if config is None or folder is None or block.type == registry.TYPES[0]:
        return False
    if key not in fields.keys(config) and config.model_config.get("extra") != "allow":
        return False
    code = (path.read_text(errors="replace") for path in Path(folder).glob("*.py"))
    if is_known := any(re.search(rf"\b{re.escape(key)}\b", text) for text in code):
        block.given[key] = value
    return is_known


def describe_unknown(key: str, typed: bool, merged: Merged, known: list[str], cwd: Path) -> str:
    if not typed:
        where = f"in {merged.origin(key)}"
    elif key in merged.overridden:
        block = instances.find_block(key, merged.replaced.get(key), cwd)
        if not isinstance(block, Block):
            return f"'{key}' on the command line has no effect: nothing uses it"
        place = ".".join(block.path)
        return f"'{key}' is a server, and no key: set one of its keys, as in +{place}.<key>=<value>"
    else:
        where = "on the command line"
    if key == SANDBOX:
        return (
            f"'{key}' {where} configures NeMo Gym's sandboxes, and no server here runs NeMo Gym's"
            " code: add the file of the agent that works in one to config_paths, or leave it out"
        )
    if key == "defaults" and "arms" in merged.tree:
        return f"unknown key 'defaults' {where}: write  arms: {{defaults: …, arms: […]}}"
    words = [word for word in known if word != key]
    if isinstance(merged.tree.get(key), dict):
        words += [name for type_ in registry.TYPES for name in registry.implementations(type_, cwd)]
    if not typed:
        return f"unknown key '{key}' {where}{suggest(key, words)}"
    if (meant := FLAGS.get(key)) and meant not in merged.tree:
        value = merged.tree.get(key)
        return f"unknown key '{key}' {where}: write +{meant}={value}{_explain_flag(meant, merged)}"
    return f"unknown key '{key}' {where}{suggest(key, words) or _explain_unused(key, merged)}"


def _explain_flag(meant: str, merged: Merged) -> str:
    """What else a suggested key needs, as a clause."""
    first = meant.partition(".")[0]
    if first in {PARAMS, *known_keys(), *interpolation.users(merged.tree)}:
        return ""
    if not _has_servers(merged):
        return " for the ng_run, whose YAML has the model"
    return f"; it is for a YAML with ${{{first}}}, such as those of responses_api_models"


def _explain_unused(key: str, merged: Merged) -> str:
    if _has_servers(merged):
        return f" (no server has it, and no ${{{key}}} in the files uses it)"
    return (
        ": a key of a server belongs to the ng_run that starts it, or here together with its"
        " config_paths"
    )


def _has_servers(merged: Merged) -> bool:
    return CONFIG_PATHS in merged.tree


def _owners(key: str) -> str:
    names = [name for name, entry in COMMANDS.items() if key in fields.keys(entry.keys)]
    return " and ".join(names)
