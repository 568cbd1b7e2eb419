"""Prompts with `{field}` placeholders that are filled from a row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from ...errors import ConfigError, suggest
from ...reading import read_whole
from ...responses import input_items
from ...serving.endpoints.chat import RAW
from ...types import JsonObject

TWICE = "write a literal brace twice: {{"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Templates of a chat, or of a raw text that the model continues (`completion`).

    With `system` alone the row's own input follows the system message. `name` says in errors where
    the templates come from.
    """

    user: str | None = None
    system: str | None = None
    completion: str | None = None
    name: str = "prompt_config"

    @classmethod
    def load(cls, path: Path, key: str = "prompt_config") -> "Prompt":
        """The prompt of a YAML file that a key names; ConfigError if it is not `{user: …, system:
        …}`."""
        return cls.of(read_yaml(path, key), f"{key} {path}", needs_question=True)

    @classmethod
    def of(cls, content: Any, where: str, *, needs_question: bool = False) -> "Prompt":
        """The prompt of a mapping; ConfigError starts with `where`."""
        content = content if isinstance(content, dict) else {}
        given = {name: text for name, text in content.items() if text is not None}
        if needs_question and not isinstance(given.get("user", given.get("completion")), str):
            raise ConfigError(f"{where}: needs a text 'user' ('system' is optional)")
        if unknown := set(map(str, given)) - PARTS:
            raise ConfigError(
                f"{where}: unknown {', '.join(sorted(unknown))}{suggest(min(unknown), PARTS)};"
                " a prompt has user and system, or completion"
            )
        if not given or ("completion" in given and len(given) > 1):
            raise ConfigError(f"{where}: needs user, system or both; or completion alone")
        for name, template in given.items():
            if not isinstance(template, str):
                raise ConfigError(f"{where}: {name}: expected text, got {template!r:.80}")
            try:
                list(TEMPLATES.parse(_escape(template)))
            except ValueError as error:
                raise ConfigError(f"{where}: {name}: {error} ({TWICE})") from None
        return cls(**given, name=where.partition(" ")[0])

    @property
    def has_question(self) -> bool:
        """Whether it needs no input of the row."""
        return self.user is not None or self.completion is not None

    def settings(self) -> JsonObject:
        """What it adds to the settings that a rollout is generated with."""
        texts = {"user": self.user, "system": self.system, "completion": self.completion}
        return {name: text for name, text in texts.items() if text is not None or name == "system"}

    def apply(self, params: JsonObject, row: Mapping[str, Any]) -> JsonObject:
        """The params with an input; ValueError if they have one already, or a field is missing."""
        if "input" in params:
            raise ValueError("the row already has an input, which prompt_config would replace")
        return {**params, **self.fill(params, row)}

    def fill(self, params: Mapping[str, Any], row: Mapping[str, Any]) -> JsonObject:
        """The params that the prompt sets; ValueError if the row lacks a field."""
        if self.completion is not None:
            return {"input": self.fill_text(self.completion, row), RAW: True}
        items = list(input_items(params)) if self.user is None else []
        if self.user is not None:
            items = [{"role": "user", "content": self.fill_text(self.user, row)}]
        if self.system is not None:
            kept = [item for item in items if item.get("role") not in ("system", "developer")]
            items = [{"role": "system", "content": self.fill_text(self.system, row)}, *kept]
        return {"input": items}

    def fill_text(self, template: str, row: Mapping[str, Any]) -> str:
        """A template with the fields of a row; ValueError if it lacks one."""
        try:
            return TEMPLATES.vformat(_escape(template), (), row)
        except KeyError as error:
            raise ValueError(
                f"{self.name} needs the field {error}, which the row lacks ({TWICE})"
            ) from None
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{self.name} cannot be filled: {error} ({TWICE})") from None


PARTS = frozenset({"user", "system", "completion"})


class _Templates(Formatter):
    """Looks up each field by name in the row, even if the name is a number."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs[str(key)]


TEMPLATES = _Templates()


def _escape(template: str) -> str:
    """Keep `{}` literal, as in `\\boxed{}`: it names no field."""
    return re.sub(r"(?<!\{)\{\}(?!\})", "{{}}", template)


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML file; ConfigError if it cannot be read."""
    text = read_text(path, what)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{what} {path}: not YAML: {reason}") from None


def read_text(path: Path, what: str) -> str:
    """The text of a file; ConfigError if it cannot be read."""
    try:
        return read_whole(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path}: not UTF-8 text") from None
    except OSError as error:
        near = [each.name for each in path.parent.glob("*")]
        raise ConfigError(f"{what} {path}: {error.strerror}{suggest(path.name, near)}") from None
