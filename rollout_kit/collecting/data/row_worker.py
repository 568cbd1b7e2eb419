"""Run in a worker process by path: regular expressions, templates and calls in texts of rows."""

import ast
import re
from functools import lru_cache
from typing import Any

GROUP = "answer"
"""The named group that is taken where an expression has it."""


def work(name: str, *arguments: Any) -> Any:
    known = {"search": search, "render": render, "read_calls": read_calls, "read_list": read_list}
    return known[name](*arguments)


def search(pattern: str, text: str) -> str | None:
    """The group of the first match; None if nothing matches, or the group is not in the match."""
    found = re.search(pattern, text)
    if found is None:
        return None
    return found[GROUP] if GROUP in found.re.groupindex else found[1]


def render(template: str, row: dict[str, Any]) -> str:
    """The template with the row's fields, which are values and never templates themselves."""
    return compile_template(template).render(row)


def read_calls(texts: list[str]) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Name, positional and named arguments of each call; ValueError for what is none."""
    found = []
    for text in texts:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(f"no call: {text:.80}")
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        found.append((call.func.id, [ast.literal_eval(each) for each in call.args], named))
    return found


def read_list(text: str) -> list[Any]:
    """A literal list; ValueError for anything else."""
    found = ast.literal_eval(text)
    if not isinstance(found, list):
        raise ValueError(f"no list: {text:.80}")
    return found


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
