"""The keys `map` and `prompt`: how the rows of an input become tasks while they are read."""

from pathlib import Path

import orjson

from ...config.keys import CollectConfig
from ...errors import ConfigError
from ...reading import parse_line
from ...serving import registry
from ...store.arms.template import read_text
from ...store.input import number_lines
from ...types import JsonObject
from .mapping import Mapping, get_shape
from .row_texts import RowTexts

TEMPLATES = (".jinja", ".j2")
"""Ends of the name of a file with a template."""

ASKED = ("question", "input")
"""Fields that are asked as they are, without a prompt."""

FINAL_NUMBER = "#### "
"""In GSM8K's answers, before the number."""

FOUND_GSM8K = "rows have a question, and an answer with ####: they are read with +map=gsm8k"


class RowMap:
    """Adds fields to a row, and what is asked. `note` says what was found out without being asked
    for."""

    def __init__(
        self, mapping: Mapping, template: str | None, *, asks: bool = True, note: str = ""
    ) -> None:
        self._mapping, self._template, self._asks, self.note = mapping, template, asks, note
        self._texts = RowTexts()

    def apply(self, row: JsonObject) -> JsonObject:
        """The row as a task; ValueError if a field is missing, or a text takes too long."""
        made = self._mapping.build_task(row, self._texts)
        params: JsonObject = made["responses_create_params"]
        if self._template is not None:
            if "input" in params:
                raise ValueError("the row already has an input, which prompt would replace")
            params["input"] = _ask(self._texts.render(self._template, made))
        elif self._asks and "input" not in params:
            texts = [made[name] for name in ASKED if isinstance(made.get(name), str)]
            params |= {"input": _ask(texts[0])} if texts else {}
        if not params and "responses_create_params" not in row:
            del made["responses_create_params"]
        return made

    def settings(self) -> JsonObject:
        """What it adds to the settings that a rollout is generated with."""
        found = self._mapping.model_dump(by_alias=True, exclude_defaults=True, exclude={"keep"})
        return found | ({} if self._template is None else {"template": self._template})

    def __repr__(self) -> str:
        return orjson.dumps(self.settings(), option=orjson.OPT_SORT_KEYS).decode()


def _ask(text: str) -> list[JsonObject]:
    return [{"role": "user", "content": text}]


def find_row_map(command: CollectConfig, path: Path) -> RowMap | None:
    """What the keys `map` and `prompt` ask for. Rows of GSM8K are known without them. None if rows
    are tasks already; ConfigError if a key cannot be used."""
    if command.prompt is not None and command.prompt_config is not None:
        raise ConfigError("prompt and prompt_config both say what is asked: give one of the two")
    template = None if command.prompt is None else _read_template(command.prompt)
    given, note = command.map, ""
    if not given and _is_gsm8k(path):
        given, note = "gsm8k", FOUND_GSM8K
    if not given and template is None:
        return None
    is_named = isinstance(given, str)
    mapping = Mapping.model_validate(_find_shape(given) if is_named else {})
    own: JsonObject = {"keep": True} if is_named else {"keep": True, "fields": given}
    asks = command.prompt_config is None
    if template is not None or not asks:
        own["prompt"] = None
    return RowMap(mapping.model_copy(update=own), template, asks=asks, note=note)


def _find_shape(name: str) -> JsonObject:
    try:
        return get_shape(name)
    except ValueError as error:
        raise ConfigError(f"map: {error}; or name columns: +map.question=…") from None


def _read_template(given: str) -> str:
    if given.endswith(TEMPLATES):
        given = read_text(registry.resolve_path(given) or Path(given), "prompt")
    if "{{" not in given and "{%" not in given:
        raise ConfigError(
            f"prompt: {given!r:.80} names no field of a row, so all tasks would ask the same: write"
            " a field as {{ question }}"
        )
    return given


def _is_gsm8k(path: Path) -> bool:
    """Whether the first row has a question and a worked answer, and is no task yet."""
    if not path.exists():
        return False
    row = next((parse_line(raw) for _, raw in number_lines(path)), None) or {}
    texts = (row.get("question"), row.get("answer"))
    is_worked = all(isinstance(text, str) for text in texts) and FINAL_NUMBER in str(texts[1])
    return is_worked and not row.keys() & {"responses_create_params", "expected_answer"}
