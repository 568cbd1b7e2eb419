"""Registry of instruction kinds, with their arguments and checks."""

import inspect
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


Text = Annotated[str, Field(min_length=1)]
Pattern = Annotated[Text, AfterValidator(_compiles)]
"""A regular expression, as in IFEval."""
Words = Annotated[list[Pattern], Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Place = Annotated[int, Field(ge=1)]
Relation = Literal["at least", "less than"]
Word = Text | Annotated[list[Text], Field(min_length=1, max_length=1)]


class Kind(NamedTuple):
    check: Callable[..., bool]
    arguments: type[BaseModel]
    by_nltk: bool


KINDS: dict[str, Kind] = {}
"""Id → kind."""


def kind(*ids: str, by_nltk: bool = False) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a check. Its first parameter is the response; the others are its arguments."""

    def register(check: Callable[..., bool]) -> Callable[..., bool]:
        parameters = list(inspect.signature(check).parameters.values())[1:]
        fields: Any = {each.name: (each.annotation, ...) for each in parameters}
        model = create_model(check.__name__, __config__=ConfigDict(extra="forbid"), **fields)
        KINDS.update(dict.fromkeys(ids, Kind(check, model, by_nltk)))
        return check

    return register


def find_problems(instructions: list[list[Any]]) -> list[str]:
    """Return what is wrong with instructions, each an id and its arguments."""
    return [problem for each in instructions if (problem := _find_problem(*each))]


def check_all(instructions: list[list[Any]], text: str, *, by_nltk: bool) -> list[bool | None]:
    """Whether `text` follows each instruction; None for kinds of the other worker."""
    return [
        _is_followed(text, id, arguments) if KINDS[id].by_nltk == by_nltk else None
        for id, arguments in instructions
    ]


def _find_problem(id: str, arguments: dict[str, Any]) -> str | None:
    if id not in KINDS:
        close = get_close_matches(id, KINDS, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        return f"unknown instruction '{id}'{hint}"
    try:
        KINDS[id].arguments.model_validate(arguments)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{id}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None


def _is_followed(text: str, id: str, arguments: dict[str, Any]) -> bool:
    try:
        given = KINDS[id].arguments.model_validate(arguments)
        return bool(text.strip()) and KINDS[id].check(text, **dict(given))
    except Exception:  # an unusual text follows no instruction that cannot be checked on it
        return False


def compare(found: int, relation: Relation, wanted: int) -> bool:
    return found >= wanted if relation == "at least" else found < wanted


def count_matches(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.IGNORECASE))


def get_only(word: Word) -> str:
    return (word if isinstance(word, str) else word[0]).strip()
