"""The command line's grammar: `+key=value`, `++a.b=value`, `key=value`, `~key`.

Hydra parses the values. But if the key's declared type is a string or a path, the text after the
first `=` is the value: Hydra's lexer refuses a second `=`, `~/x`, `(`, `#` and non-ASCII, and reads
`a,b` as a sweep. This module knows no keys; the caller provides their types.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

from ..errors import ConfigError

CONFIG_PATHS = "config_paths"

FLAGS = {
    "agent": "agent_name",
    "a": "agent_name",
    "input": "input_jsonl_fpath",
    "i": "input_jsonl_fpath",
    "output": "output_jsonl_fpath",
    "o": "output_jsonl_fpath",
    "config": CONFIG_PATHS,
    "concurrency": "num_samples_in_parallel",
    "resume": "resume",
    "model": "policy_model_name",
    "m": "policy_model_name",
    "model_url": "policy_base_url",
    "model_api_key": "policy_api_key",
    "temperature": "responses_create_params.temperature",
    "top_p": "responses_create_params.top_p",
    "max_output_tokens": "responses_create_params.max_output_tokens",
    "max_tokens": "responses_create_params.max_output_tokens",
    "seed": "responses_create_params.seed",
    "reasoning_effort": "responses_create_params.reasoning.effort",
    "model_name": "policy_model_name",
    "base_model": "policy_model_name",
    "base_url": "policy_base_url",
    "api_key": "policy_api_key",
    "num_parallel": "num_samples_in_parallel",
    "num_samples": "num_repeats",
    "parallelism": "num_samples_in_parallel",
    "n_repeats": "num_repeats",
}
"""Names that other tools, and NeMo Gym's newer `--flags`, have → our key, for suggestions."""

OPTIONS = {
    "ng_collect_rollouts": {
        "model_path": "policy_model_path",
        "data_path": "input_jsonl_fpath",
        "out_path": "output_jsonl_fpath",
        "n_samples": "limit",
    },
    "ng_merge_lora": {"base_model": "base", "lora_path": "adapter", "output_path": "output"},
    "ng_reverify": {
        "input": "input_jsonl_fpath",
        "output": "output_jsonl_fpath",
        "parallelism": "num_samples_in_parallel",
    },
}
"""Command → options as the scripts before it spelled them → our keys."""

OPENING = {"[": "]", "{": "}"}

CONSTANTS = {"true": True, "false": False, "null": None, "inf": inf, "nan": nan}

WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)")
NUMBER = re.compile(rf"{WHOLE.pattern}(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORD = re.compile(r"[A-Za-z_][\w./:-]*", re.ASCII)

QUOTE_IT = "in a shell, quote the whole argument where it has a space or a brace: '+key=[a, b]'"

SPELLING = re.compile(r"(?P<sign>\+\+|\+|~|)(?P<key>[^\s=+~\-][^\s=]*)(?P<value>=.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Override:
    """One argument: sets `value` at `path`, or deletes what is at `path`."""

    path: tuple[str, ...]
    value: Any
    delete: bool
    text: str

    @property
    def key(self) -> str:
        return ".".join(self.path)


def parse(words: Sequence[str], is_text: Callable[[str, str], bool]) -> list[Override]:
    """The arguments in order; `is_text(key, raw)` decides whether the raw text is the value."""
    overrides = []
    for position, argument in enumerate(words):
        match = SPELLING.fullmatch(argument)
        if match is None:
            raise ConfigError(_not_an_override(argument, words[position + 1 : position + 2]))
        sign, key, value = match["sign"], match["key"], match["value"]
        path = tuple(key.split("."))
        if "" in path:
            raise ConfigError(f"{argument}: the key '{key}' has an empty part")
        if sign == "~":
            if value is not None:
                raise ConfigError(
                    f"{argument}: removing takes no value: write {_quoted('~' + key)}"
                )
            overrides.append(Override(path, None, True, argument))
        elif value is None:
            raise ConfigError(_not_an_override(argument, words[position + 1 : position + 2]))
        else:
            parsed = _value(argument, key, value[1:], is_text)
            overrides.append(Override(path, parsed, False, argument))
    return overrides


def take_options(name: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of a command with our keys in place of `--option value`, `--option=value` and
    `+option=value` of the scripts before it, and a line that says what was written."""
    known, found, spelled = OPTIONS.get(name, {}), list[str](), dict[str, str]()
    left = iter(words)
    for word in left:
        match = re.fullmatch(r"(?:--|\+{1,2})([\w-]+)(=.*)?", word, re.DOTALL)
        key = known.get(match[1].replace("-", "_")) if match else None
        value = match[2] if match else None
        if match is None or key is None or (value is None and word.startswith("+")):
            found.append(word)
            continue
        if value is None and (following := next(left, None)) is not None:
            value = f"={following}"
        if value is None:
            raise ConfigError(f"{word}: a value is missing: +{key}=<value>")
        spelled[f"+{key}{value}"] = word.partition("=")[0]
        found.append(f"+{key}{value}")
    notes = [f"{old} is written {_quoted(new)}" for new, old in spelled.items()]
    return found, notes


def config_paths(words: Sequence[str]) -> list[str]:
    """The files in all `config_paths` arguments, each once."""
    paths: list[str] = []
    for argument in words:
        match = SPELLING.fullmatch(argument)
        if match and match["key"] == CONFIG_PATHS and match["value"] and match["sign"] != "~":
            _check_brackets(argument, match["value"][1:])
            paths += _split_paths(match["value"][1:])
    return list(dict.fromkeys(paths))


def text_of(words: Sequence[str], key: str) -> str | None:
    """The text that the last argument sets for a key."""
    found = [match for each in words if (match := SPELLING.fullmatch(each)) and match["key"] == key]
    return _text(found[-1]["value"][1:]) if found and found[-1]["value"] else None


def key_of(word: str) -> str | None:
    """The key that an argument gives; None if it gives none."""
    match = SPELLING.fullmatch(word)
    return match["key"] if match else None


def key_of_word(word: str) -> str:
    """The top-level key that a word of the command line sets."""
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


def _value(argument: str, key: str, raw: str, is_text: Callable[[str, str], bool]) -> Any:
    if key == CONFIG_PATHS:
        return _split_paths(raw)
    if is_text(key, raw):
        return _text(raw)
    _check_brackets(argument, raw)
    try:
        return _plain(raw)
    except ValueError:
        return _parse_by_hydra(argument, key, raw)


def _check_brackets(argument: str, raw: str) -> None:
    """Raise ConfigError if a bracket is not closed; usually the shell split the value at a
    space."""
    if raw[:1] not in OPENING and raw[-1:] not in OPENING.values():
        return
    missing: list[str] = []
    for each in re.sub(r"""\\.|"[^"]*"|'[^']*'""", "", raw):
        if each in OPENING:
            missing.append(OPENING[each])
        elif each in OPENING.values() and (not missing or missing.pop() != each):
            raise ConfigError(f"{argument}: this '{each}' closes nothing; {QUOTE_IT}")
    if missing:
        raise ConfigError(f"{argument}: a '{missing[-1]}' is missing; {QUOTE_IT}")


def _text(raw: str) -> str | None:
    if len(raw) >= 2 and raw[0] == raw[-1] and raw[0] in "'\"":
        return raw[1:-1]
    if raw == "null":
        return None
    return str(Path(raw).expanduser()) if re.match(r"~(/|$)", raw) else raw


def _split_paths(raw: str) -> list[str]:
    """Split `[a.yaml,b.yaml]`, `a.yaml,b.yaml` or `a.yaml`, except at commas in quotes."""
    inner = raw.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    if inner in ("", "null"):
        return []
    parts = re.findall(r"""\s*("[^"]*"|'[^']*'|[^,]*)\s*(?:,|$)""", inner)
    texts = [_text(part.strip()) for part in parts]
    return [text for text in texts if text]


def _plain(raw: str) -> Any:
    """A number, a word or a list of them as Hydra reads it, without Hydra, whose import takes
    longer than all else here; ValueError for any other text."""
    if raw[:1] == "[" and raw[-1:] == "]":
        return [_plain(item) for item in raw[1:-1].split(",")] if raw != "[]" else []
    if (name := raw.lower()) in CONSTANTS:
        return CONSTANTS[name]
    if NUMBER.fullmatch(raw):
        return int(raw) if WHOLE.fullmatch(raw) else float(raw)
    if WORD.fullmatch(raw):
        return raw
    raise ValueError(raw)


def _parse_by_hydra(argument: str, key: str, raw: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        # Hydra parses only the value, because its keys allow fewer characters than ours
        parsed = OverridesParser.create().parse_override(f"key={raw}")
        if not parsed.is_sweep_override():
            return parsed.value()
        reason = "a comma outside quotes means a sweep, which is not supported; as one text"
        if not re.search(r"[,]", raw) or "(" in raw:
            reason = "sweeps are not supported; as text"
    except HydraException as error:
        reason = f"not a value ({str(error).splitlines()[0].split(' expecting ')[0]}); as text"
    escaped = raw.strip("\"'").replace('"', '\\"')
    hint = _quoted(f'+{key}="{escaped}"')
    as_list = (
        f", as a list: {_quoted(f'+{key}=[{raw}]')}" if re.fullmatch(r"[^()]+,.*", raw) else ""
    )
    raise ConfigError(f"{argument}: {reason}: {hint}{as_list if 'sweep' in reason else ''}")


def _not_an_override(argument: str, following: Sequence[str]) -> str:
    if argument.startswith("-"):
        name, _, value = argument.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not value and following and not re.match(r"[-+~]|[^\s=]+=", following[0]):
            value = following[0]
        meant = f"+{FLAGS.get(name, name)}={value or '<value>'}"
        return f"{argument}: options are written +key=value: {_quoted(meant)}"
    if argument.endswith((".yaml", ".yml")):
        meant = _quoted(f"+{CONFIG_PATHS}=[{argument.lstrip('+~ ')}]")
        return f"{argument}: a configuration file is given as {meant}"
    key = argument.lstrip("+~ ")
    if re.fullmatch(r"[\w.]+", key):
        return f"{argument}: a value is missing: {_quoted(f'+{key}=<value>')}"
    return f"{argument!r} is not an override: write +key=value, without spaces around the ="


def _quoted(text: str) -> str:
    """`text` quoted for a shell; a placeholder stays unquoted."""
    return text if "<" in text else shlex.quote(text)
