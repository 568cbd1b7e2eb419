"""Run in a worker process by path: regular expressions and templates over the texts of rows."""

import re
from functools import lru_cache
from typing import Any

GROUP = "answer"
"""The named group that is taken where an expression has it."""


def work(name: str, *arguments: Any) -> Any:
    return {"search": search, "render": render}[name](*arguments)


def search(pattern: str, text: str) -> str | None:
    """The group of the first match; None if nothing matches, or the group is not in the match."""
    found = re.search(pattern, text)
    if found is None:
        return None
    return found[GROUP] if GROUP in found.re.groupindex else found[1]


def render(template: str, row: dict[str, Any]) -> str:
    """The template with the row's fields, which are values and never templates themselves."""
    return compile_template(template).render(row)


def check_text(value: Any) -> Any:
    """What an expression gives; ValueError for a list or an object, which is no text."""
    if isinstance(value, (list, dict)):
        kind = "a list" if isinstance(value, list) else "an object"
        raise ValueError(f"an expression is {kind}: write it with | join(', ') or | tojson")
    return value


@lru_cache
def compile_template(template: str) -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, finalize=check_text
    )
    return environment.from_string(template)
