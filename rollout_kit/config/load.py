"""Load the command line, `config_paths` and `env.yaml` into one validated, resolved Config.

Every error that is detectable before a server starts is a ConfigError here: unknown keys, wrong
types, dangling references, missing values. Nothing is printed; there is no global state.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from ..errors import ConfigError, suggest
from ..secrets import find_used, is_secret_key, mask, private_values, secret_values
from ..serving.endpoints.params import TEXT_PARAMS
from ..serving.given_server import GivenServer
from ..serving.imported import look_again
from ..serving.nemo_gym.adoption import place_data
from ..serving.nemo_gym.checkout import Gym
from ..serving.transport.network import proxy_urls
from ..types import JsonObject
from . import (
    batching_models,
    classify,
    environments,
    fields,
    front,
    idle,
    instances,
    interpolation,
    overrides,
    sources,
    verification,
)
from .benchmarks.asked import Asked, with_output
from .benchmarks.training import check_name, name_as_benchmark, with_benchmark
from .classify import PARAMS
from .commands import known_keys
from .inputs import with_dataset
from .instance_keys import CommonKeys
from .instances import AGENTS, BLOCK_TYPES, RESOURCES, Block, Instance
from .keys import Command, HttpClientConfig, RunConfig
from .overrides import Override
from .replaced import Replaced, Targets, is_target, name_source
from .sources import COMMAND_LINE, ENV_FILE, Merged

__all__ = ["Config", "Instance", "Sources", "load", "read"]
CLIENT = "GlobalAIOHTTPAsyncClientConfig"
"""NeMo Gym's name for the limits of the HTTP client."""

INPUT, DATA_FILES = "input_jsonl_fpath", (".jsonl", ".jsonl.gz", ".jsonl.zst")

CommandT = TypeVar("CommandT", bound=Command, covariant=True)


@dataclass(frozen=True, slots=True)
class Config(Generic[CommandT]):
    """The configuration of one command.

    `command.responses_create_params` comes from the command line, `default_params` from the files.
    `values` is the merged, resolved tree, `origins` the source of each of its leaves.
    """

    command: CommandT
    instances: dict[str, Instance]
    default_params: JsonObject
    values: JsonObject
    origins: dict[str, str]
    secrets: frozenset[str]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What people should know, and need not change."""
    replaced: Mapping[str, Replaced] = field(default_factory=dict)
    """Dotted path of a value → what `env.yaml` or the command line has replaced there."""
    targets: Mapping[str, Targets] = field(default_factory=dict)
    """Where each server of the files comes from, and what says which model it asks."""

    def of_type(self, type_: str) -> list[Instance]:
        return [one for one in self.instances.values() if one.type == type_]


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources, merged but not yet interpreted."""

    merged: Merged
    overrides: list[Override] = field(default_factory=list)
    made: Mapping[str, GivenServer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """What a program gives as objects, where a command has files and words."""

    config_paths: Sequence[str] = ()
    values: JsonObject = field(default_factory=dict)
    """As in a YAML file that is merged last: keys, and blocks of servers."""
    made: Mapping[str, GivenServer] = field(default_factory=dict)
    """Servers by name, in place of those of that name in the files."""
    files: Mapping[str, JsonObject] = field(default_factory=dict)
    """Path of a file → its content as the program has changed it, merged first."""


def load(
    words: Sequence[str],
    command: type[CommandT],
    cwd: Path | None = None,
    program: Program = Program(),
) -> Config[CommandT]:
    """The configuration of a command started with `words`; ConfigError names every problem."""
    cwd = cwd or Path.cwd()
    look_again()
    given = read(words, command, cwd, program)
    resolved = interpolation.resolve(given.merged.tree)
    secrets = _find_secrets(given.merged, resolved.values)
    try:
        return _check(given, resolved, secrets, command, cwd)
    except ConfigError as error:
        raise ConfigError(mask(str(error), secrets)) from None


def _find_secrets(merged: Merged, values: JsonObject) -> frozenset[str]:
    private = {
        key: value
        for key, value in values.items()
        if merged.set_by(key, ENV_FILE) and key not in known_keys() and not _is_block(value)
    }
    variables = interpolation.variables(merged.tree)
    known = [values, variables, proxy_urls()]
    return private_values(private).union(*map(secret_values, known))


def _is_block(value: Any) -> bool:
    """Whether it configures a server."""
    return isinstance(value, dict) and not {*BLOCK_TYPES}.isdisjoint(value)


def _check(
    given: Sources,
    resolved: interpolation.Resolved,
    secrets: frozenset[str],
    command: type[CommandT],
    cwd: Path,
) -> Config[CommandT]:
    merged = given.merged
    blocks, problems, warnings = classify.classify(resolved.values, merged, command, cwd)
    blocks = front.with_mcp(blocks + instances.made_blocks(given.made), resolved, command, cwd)
    if not command.asks_policy:
        blocks = verification.without_policy(blocks)
    used = [*fields.keys(command), PARAMS, *(block.name for block in blocks)]
    unresolved = [one for key in used for one in resolved.under(key)]
    problems += interpolation.messages(unresolved, merged.tree)
    if problems:
        raise ConfigError("\n".join(problems))
    wired = environments.wire(blocks, resolved.values, merged)
    problems += wired.problems
    found, validated = {}, None
    try:
        found = instances.check_all(wired.blocks, merged, cwd, with_policy=command.asks_policy)
    except ConfigError as error:
        problems.append(str(error))
    try:
        validated = _validate(resolved.values, given, command)
    except ConfigError as error:
        problems.append(str(error))
    if problems or validated is None:
        raise ConfigError("\n".join(problems))
    if getattr(validated, "unsafe_code", False):
        found = instances.with_unsafe_code(found, cwd)
    for key in filter(lambda key: getattr(validated, key, False), batching_models.FOR_ALL):
        found = batching_models.set_for_all(key, found, cwd)
        warnings += batching_models.explain_none(key, found, is_error=command is not RunConfig)
    found = front.with_openenv(found, cwd) if getattr(validated, front.OPENENV, False) else found
    batching_models.check_batches(found)
    return Config(
        command=with_output(with_dataset(validated, resolved.values), found),
        instances={
            name: replace(one, secrets=find_used(secrets, [one.settings, one.env]))
            for name, one in found.items()
        },
        default_params=_choose(resolved.values.get(PARAMS), merged, (PARAMS,), False),
        values=resolved.values,
        origins=dict(merged.origins),
        secrets=secrets,
        warnings=(
            *warnings,
            *wired.warnings,
            *instances.explain_missing_agent(wired.blocks),
            *instances.explain_old_keys(wired.blocks, cwd),
            *instances.explain_unused_paces(wired.blocks, cwd),
            *idle.find_of_others(merged, command),
            *_warnings(given.overrides, secrets),
        ),
        notes=(*map(str, merged.exchanged), *instances.explain_unasked(found)),
        replaced=merged.find_beaten(),
        targets={block.name: _find_targets(block, merged) for block in wired.blocks},
    )


def _find_targets(block: Block, merged: Merged) -> Targets:
    """Where a server comes from, and those of its keys that decide which model is asked."""
    keys = [key for key, value in block.given.items() if is_target(key) and value is not None]
    return Targets(
        block.implementation,
        name_source(merged.origin(*block.path) or sources.PROGRAM),
        {key: name_source(merged.find_source((*block.path, key))) for key in keys},
    )


def read(
    words: Sequence[str],
    command: type[Command],
    cwd: Path | None = None,
    program: Program = Program(),
) -> Sources:
    """All sources merged, lowest first, with `${…}` unresolved."""
    cwd = cwd or Path.cwd()
    _check_for_names(words, command)
    words = name_as_benchmark(words, cwd)
    program = replace(program, values=with_benchmark(program.values, cwd))
    merged = Merged(cwd=cwd)
    paths = list(dict.fromkeys([*program.config_paths, *overrides.config_paths(words)]))
    checkout = overrides.text_of(words, sources.CHECKOUT) or program.values.get(sources.CHECKOUT)
    asked_by = sources.PROGRAM if program.config_paths else COMMAND_LINE
    benchmark = Asked.of(words, program.values, command, checkout, cwd)
    paths = [*benchmark.config_paths, *paths]
    changed = [sources.Layer(path, tree) for path, tree in program.files.items()]
    changed = [*benchmark.layers, *changed]
    for layer in changed + sources.read_layers(paths, cwd, checkout, asked_by):
        merged.add(layer)
    merged.replace_servers(program.values, program.made)
    parsed = overrides.parse(words, _text_keys(merged.tree, command, cwd))
    for override in parsed:
        if override.path != (overrides.CONFIG_PATHS,):
            merged.apply(override)
    benchmark.complete(merged)
    if not _has_environment(merged):
        check_name(merged.tree.get("dataset"), cwd)
    merged.inherit()
    place_data(merged.tree, Gym.of(merged.tree, cwd))
    _spread_client_keys(merged)
    if paths:
        merged.add(sources.Layer(COMMAND_LINE, {overrides.CONFIG_PATHS: paths}))
    return Sources(merged, parsed, program.made)


def _has_environment(merged: Merged) -> bool:
    """Whether there is a server besides those of models, which could list a dataset."""
    blocks = [each for each in merged.tree.values() if isinstance(each, dict)]
    return any(kind in block for block in blocks for kind in (AGENTS, RESOURCES))


def _spread_client_keys(merged: Merged) -> None:
    """Set the keys of a `GlobalAIOHTTPAsyncClientConfig` mapping at the top level."""
    given = merged.tree.get(CLIENT)
    if isinstance(given, dict):
        origin = merged.origin(CLIENT)
        known = fields.keys(HttpClientConfig)
        for key in given:
            if key not in known:
                hint = suggest(key, known) or f"; it has {', '.join(known)}"
                raise ConfigError(f"{CLIENT}: unknown key '{key}'{hint} [{origin}]")
        del merged.tree[CLIENT]
        unset = {key: value for key, value in given.items() if key not in merged.tree}
        merged.add(sources.Layer(origin, unset))


def parse_keys(words: Sequence[str], command: type[CommandT]) -> CommandT:
    """Parse the keys of a command that reads neither files nor `env.yaml`."""
    merged = Merged()
    _check_for_names(words, command)
    known, is_text = fields.keys(command), _text_keys({}, command, Path())
    # the value of an unknown key is not parsed, so that the key is what is named
    parsed = overrides.parse(
        words, lambda key, raw: key.split(".")[0] not in known or is_text(key, raw)
    )
    for override in parsed:
        merged.apply(override)
    for key in merged.tree:
        if key not in known:
            hint = suggest(key, known) or "; --help lists the keys"
            raise ConfigError(f"unknown key '{key}' on the command line{hint}")
    if "config_paths" in merged.tree and not command.has_servers:
        raise ConfigError(
            "config_paths: this command reads no configuration, so it would be ignored; give its"
            " keys on the command line (--help lists them)"
        )
    return _validate(merged.tree, Sources(merged, parsed), command)


def _check_for_names(words: Sequence[str], command: type[Command]) -> None:
    """Raise ConfigError if a word is the name of a server or a file, without its key."""
    known = fields.keys(command)
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    for before, word, following in around:
        is_name = re.fullmatch(r"\w[\w./-]*", word) and word not in known
        if not is_name or before.startswith("-") or following.startswith("="):
            continue
        is_data = word.endswith(DATA_FILES)
        if "entrypoint" in known and not is_data:
            folder = word.rstrip("/") if "/" in word else f"resources_servers/{word}"
            raise ConfigError(f"{word}: name the server's folder: +entrypoint={folder}")
        if INPUT in known and is_data:
            raise ConfigError(f"{word}: name the file as the input: +{INPUT}={word}")


def _text_keys(tree: JsonObject, command: type[Command], cwd: Path) -> Callable[[str, str], bool]:
    """A function that decides whether a raw value is text, by the type of its field or of the
    fields that interpolate it."""
    users = interpolation.users(tree)

    def takes_text(annotation: Any, raw: str) -> bool:
        bracketed = raw.startswith(("[", "{"))
        return fields.is_text(annotation) or (fields.is_text_or_list(annotation) and not bracketed)

    def is_text(key: str, raw: str, seen: frozenset[str] = frozenset()) -> bool:
        path = key.split(".")
        if path[0] == PARAMS:
            return len(path) == 2 and path[1] in TEXT_PARAMS
        if path[0] in fields.keys(command):
            return takes_text(fields.field_at(command, path), raw)
        block = instances.find_block(path[0], _with(tree, path), cwd)
        if isinstance(block, Block):
            inner = path[len(block.path) :]
            model = CommonKeys
            if inner[:1] and inner[0] not in model.model_fields:
                model = instances.config_of(block, cwd)
            declared = fields.field_at(model, inner) if model and inner else None
            if declared is not None and declared is not Any:
                return takes_text(declared, raw)
        if is_secret_key(path[-1]):
            return True
        if key in seen or len(path) > 1:
            return False
        return any(is_text_use(place, key, raw, seen) for place in users.get(key, []))

    def is_text_use(place: tuple[str, ...], key: str, raw: str, seen: frozenset[str]) -> bool:
        text: Any = tree
        for part in place:
            text = text[int(part)] if isinstance(text, list) else text[part]
        return text.strip() != f"${{{key}}}" or is_text(".".join(place), raw, seen | {key})

    return is_text


def _with(tree: JsonObject, path: list[str]) -> Any:
    """The top-level value as it will be after something is set at `path`."""
    value = tree.get(path[0])
    if isinstance(value, dict) and len(path) > 2 and path[1] in BLOCK_TYPES:
        named = value.get(path[1])
        if isinstance(named, dict) and path[2] not in named:
            value = None  # another implementation replaces this one
    if isinstance(value, dict) or len(path) < 2:
        return value
    inner: Any = {}
    for key in reversed(path[1:]):
        inner = {key: inner}
    return inner


def _validate(values: JsonObject, given: Sources, command: type[CommandT]) -> CommandT:
    known = fields.keys(command)
    own = {key: value for key, value in values.items() if key in known}
    if PARAMS in own:
        own[PARAMS] = _choose(own[PARAMS], given.merged, (PARAMS,), True)
    problems = [*fields.find_misplaced_booleans(command, own)]
    try:
        validated = command.model_validate(own)
    except ValidationError as error:
        problems += fields.problems(error, command)
    else:
        if not problems:
            return validated
    raise ConfigError("\n".join(_line(one, given) for one in problems))


def _choose(value: Any, merged: Merged, path: tuple[str, ...], typed: bool) -> Any:
    """The part of a mapping that the command line set (`typed`), or the other part."""
    if not isinstance(value, dict):
        return {}
    chosen = {}
    for key, child in value.items():
        place = (*path, key)
        if isinstance(child, dict) and child:
            if inner := _choose(child, merged, place, typed):
                chosen[key] = inner
        elif (merged.origin(*place) == COMMAND_LINE) == typed:
            chosen[key] = child
    return chosen


def _line(problem: fields.Problem, given: Sources) -> str:
    if not problem.path:  # of all keys together: the reason names them
        return problem.reason
    place = ".".join(problem.path)
    for override in given.overrides:
        if override.path == problem.path[: len(override.path)] and not override.delete:
            inside = place if override.path != problem.path else ""
            return f"{override.text}: {inside + ': ' if inside else ''}{problem.reason}"
    got = (
        ""
        if problem.value is None or problem.is_unknown
        else f" (got {fields.show_value(problem)})"
    )
    origin = given.merged.origin(*problem.path)
    return f"{place}: {problem.reason}{got}" + (f" [{origin}]" if origin else f": +{place}=…")


def _warnings(parsed: list[Override], secrets: frozenset[str]) -> list[str]:
    return [
        f"{override.key} was typed on the command line, where every user of this machine can see "
        "it: put it in env.yaml"
        for override in parsed
        if isinstance(override.value, str) and override.value in secrets
    ]
