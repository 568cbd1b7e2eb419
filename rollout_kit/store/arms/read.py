"""Reads arms from YAML: a list, or `{defaults: …, arms: […]}`, in a run's configuration or in a
file of its own.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from ...errors import ConfigError, suggest
from ...serving.endpoints.params import CREATE_PARAMS, RENAMED, find_problems, merge
from ...types import JsonObject
from ..scope import ARM_ID
from .arm import DERIVED, Arm
from .template import Prompt, read_text, read_yaml

SHORTHANDS = CREATE_PARAMS - {"input", "seed", "raw_prompt"}
"""Create params that an arm may name directly."""

OWN = frozenset({"prompt", "repeats", "tags", "seed", "responses_create_params"})

MAX_ARMS = 1000

A_FILE = re.compile(r"\S+\.(txt|md|ya?ml)")
"""A text of this form is the path of a template file; any other is the template."""

A_SUM = re.compile(r"\s*[+-]?\s*\d+(\s*[+-]\s*\d+)*\s*")


Resolve = Callable[[str], Path | None]
"""The existing file for a path that a user gave, if there is one."""


def read_arms(given: Any, resolve: Resolve) -> list[Arm]:
    """The arms that the key `arms` asks for, in their order; none if it is null. ConfigError names
    what is wrong, and where."""
    if given is None:
        return []
    if not isinstance(given, str | Path):
        return _Reader("arms", Path.cwd(), resolve).read(given)
    path = resolve(str(given)) or Path(given).expanduser()
    return _Reader(str(given), path.parent, resolve).read(read_yaml(path, "arms"))


@dataclass(frozen=True, slots=True)
class _Reader:
    """`where` is the file or key that errors name; templates are looked for in `folder` too."""

    where: str
    folder: Path
    resolve: Resolve

    def read(self, content: Any) -> list[Arm]:
        defaults: JsonObject = {}
        if isinstance(content, dict):
            if unknown := set(map(str, content)) - {"arms", "defaults"}:
                raise self.error(
                    f"unknown key '{min(unknown)}'{suggest(min(unknown), ('arms', 'defaults'))};"
                    " it has arms (a list) and defaults"
                )
            defaults, content = content.get("defaults") or {}, content.get("arms")
        if not isinstance(content, list) or not content:
            raise self.error("expected a list of arms, such as [{id: plain, temperature: 0.5}]")
        self.check_keys(defaults, "defaults", OWN)
        arms = [
            arm for number, one in enumerate(content, 1) for arm in self.arms(one, number, defaults)
        ]
        if len(arms) > MAX_ARMS:
            raise self.error(f"{len(arms):,} arms: at most {MAX_ARMS:,} are possible")
        for number, arm in enumerate(arms):
            if any(arm.id == other.id for other in arms[:number]):
                raise self.error(f"two arms are called '{arm.id}': give one of them another id")
        return arms

    def arms(self, given: Any, number: int, defaults: JsonObject) -> Iterator[Arm]:
        """The arms of one entry: one, or one for each combination of its `vary`."""
        name = given.get("id") if isinstance(given, dict) else None
        if not isinstance(name, str) or not name:
            raise self.error(f"entry {number}: needs an id (text), such as {{id: plain, …}}")
        where = f"arm '{name}'"
        self.check_keys(given, where, OWN | {"id", "vary"})
        vary = given.get("vary") or {}
        if not isinstance(vary, dict) or not all(
            isinstance(each, list) and each for each in vary.values()
        ):
            raise self.error(f"{where}: vary: expected lists, as in {{temperature: [0.2, 0.5]}}")
        self.check_keys(vary, f"{where}: vary", OWN - {"responses_create_params", "tags"})
        if both := vary.keys() & given.keys():
            raise self.error(f"{where}: {min(both)} is given twice: in the arm and in its vary")
        own = {key: value for key, value in given.items() if key != "vary"}
        for i, values in enumerate(itertools.product(*vary.values())):
            varied = dict(zip(vary, values, strict=True))
            fields = {**varied, "i": i}
            arm = self.arm(_merge_defaults(defaults, {**own, **varied}), where, fields)
            if i and arm.id == self.text(name, {**fields, "i": 0}, where) and "{" not in name:
                raise self.error(
                    f"{where}: its vary makes several arms of this id: write id: {name}_{{i}}"
                )
            yield arm

    def arm(self, given: JsonObject, where: str, fields: Mapping[str, Any]) -> Arm:
        """One arm, its placeholders replaced."""
        name = self.text(given["id"], fields, where)
        if not ARM_ID.fullmatch(name):
            raise self.error(
                f"{where}: the id '{name}' may have letters, digits, '_', '.' and '-', begin with a"
                " letter or digit, and have up to 100 characters"
            )
        where = f"arm '{name}'"
        repeats = given.get("repeats")
        if repeats is not None and (type(repeats) is not int or repeats < 1):
            raise self.error(f"{where}: repeats: expected an int from 1, got {repeats!r:.80}")
        tags = given.get("tags") or {}
        if not isinstance(tags, dict):
            raise self.error(f"{where}: tags: expected a mapping, got {tags!r:.80}")
        return Arm(
            name,
            self.prompt(given.get("prompt"), where),
            self.params(given, where),
            repeats,
            {
                str(key): self.text(value, fields, where) if isinstance(value, str) else value
                for key, value in tags.items()
            },
            self.seed(given.get("seed"), fields, where),
        )

    def params(self, given: JsonObject, where: str) -> JsonObject:
        """The create params of an arm; ConfigError if one of them cannot be meant."""
        params = given.get("responses_create_params") or {}
        if not isinstance(params, dict):
            raise self.error(f"{where}: responses_create_params: expected a mapping")
        for name in ("input", "seed"):
            if name in params:
                raise self.error(
                    f"{where}: responses_create_params.{name}: give it as the arm's"
                    f" {'prompt' if name == 'input' else name}"
                )
        short = {name: given[name] for name in given if name in SHORTHANDS}
        params = merge(params, short)
        for name, reason in find_problems(params):
            raise self.error(f"{where}: {name}: {reason}")
        return params

    def prompt(self, given: Any, where: str) -> Prompt | None:
        """The templates of an arm: a text, a mapping of texts, or the path of a file."""
        if given is None:
            return None
        place = f"arm's prompt in {self.where}: {where}"
        content = self.template(given, place) if isinstance(given, str) else given
        if isinstance(content, dict):
            content = {
                name: self.template(text, place) if isinstance(text, str) else text
                for name, text in content.items()
            }
        elif isinstance(content, str):
            content = {"user": content}
        else:
            raise self.error(
                f"{where}: prompt: expected a template, or the path of a file, or"
                " {user: …, system: …}, or {completion: …}"
            )
        found = Prompt.of(content, f"{self.where}: {where}: prompt")
        return Prompt(found.user, found.system, found.completion, name="its prompt")

    def template(self, text: str, place: str) -> Any:
        """The template itself, or the content of the file that it names."""
        if not A_FILE.fullmatch(text):
            return text
        beside = self.folder / text
        path = beside if beside.exists() else self.resolve(text) or beside
        read = read_yaml if path.suffix in (".yaml", ".yml") else read_text
        found = read(path, place)
        return found.removesuffix("\n") if isinstance(found, str) else found

    def seed(self, given: Any, fields: Mapping[str, Any], where: str) -> Any:
        """An int, `derived`, or None."""
        if given in (None, "none"):
            return None
        if given == DERIVED or type(given) is int:
            return given
        text = self.text(given, fields, where) if isinstance(given, str) else ""
        if not A_SUM.fullmatch(text):
            raise self.error(
                f'{where}: seed: expected an int, a sum such as "42+{{i}}", derived or none, got'
                f" {given!r:.80}"
            )
        return sum(int(part.replace(" ", "")) for part in re.findall(r"[+-]?\s*\d+", text))

    def text(self, template: str, fields: Mapping[str, Any], where: str) -> str:
        """A text with the position `{i}` and the varied values filled in."""
        try:
            names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
            return template.format_map({name: fields[name] for name in names})
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            known = ", ".join(f"{{{name}}}" for name in fields)
            raise self.error(
                f"{where}: '{template}': {error} is not known here; there are: {known}"
            ) from None

    def check_keys(self, given: Any, where: str, own: frozenset[str]) -> None:
        if not isinstance(given, dict):
            raise self.error(f"{where}: expected a mapping, got {given!r:.80}")
        for key in map(str, given):
            if key in own or key in SHORTHANDS:
                continue
            if key in RENAMED and key != "prompt":
                raise self.error(f"{where}: {key}: the Responses API calls this {RENAMED[key]}")
            hint = suggest(key, own | SHORTHANDS)
            more = "" if hint else "; parameters of an engine go into responses_create_params"
            raise self.error(f"{where}: unknown key '{key}'{hint}{more}")

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"{self.where}: {message}")


def _merge_defaults(defaults: JsonObject, own: JsonObject) -> JsonObject:
    """An arm over the defaults. Its tags and create params are added to theirs."""
    under = {key: value for key, value in defaults.items() if key != "prompt"}
    prompt = {"prompt": defaults["prompt"]} if "prompt" in defaults else {}
    return {**prompt, **merge(under, own)}
