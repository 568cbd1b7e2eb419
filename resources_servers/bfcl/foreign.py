"""Values of Java and JavaScript that answers write as texts; runs in a worker process.

A text that has not the form of its type stays a text, which is then of the wrong type.
"""

import re
from collections.abc import Callable
from typing import Any

NUMBER = r"-?\d+(\.\d+)?([eE][+-]?\d+)?"

FORMS: dict[str, dict[str, tuple[str, Callable[[str], Any]]]] = {
    "java": {
        **dict.fromkeys(("byte", "short", "integer"), (r"-?\d+", int)),
        "long": (r"-?\d+[lL]", lambda text: int(text[:-1])),
        "float": (rf"{NUMBER}[fF]", lambda text: float(text[:-1])),
        "double": (NUMBER, float),
        "boolean": ("true|false", lambda text: text == "true"),
    },
    "javascript": {
        "integer": (r"-?\d+", int),
        "float": (r"-?\d+(\.\d+)?", float),
        "Bigint": (r"-?\d+n", lambda text: int(text[:-1])),
        "Boolean": ("true|false", lambda text: text == "true"),
    },
}
"""Language → type → the form of its values, and how one is read."""


def _read_simple(language: str, text: str, kind: str) -> Any:
    form = FORMS[language].get(kind)
    # as `$` does, a newline at the end is let through
    return form[1](text) if form and re.fullmatch(f"(?:{form[0]})\n?", text) else text


def read_java(text: str, kind: str, inner: str | None = None) -> Any:
    """A value of Java."""
    if kind == "ArrayList":
        return _read_array_list(text, inner)
    if kind == "Array":
        found = re.search(r"new\s+\w+\[\]\s*\{(.*?)\}", text)
        if found is None:
            return text
        parts = [part.strip() for part in found[1].split(",") if part.strip()]
        return [read_java(part, inner) if inner else _guess_java(part) for part in parts]
    return _read_hash_map(text) if kind == "HashMap" else _read_simple("java", text, kind)


def _read_array_list(text: str, inner: str | None) -> Any:
    def read(part: str) -> Any:
        if inner in ("char", "String"):
            return part[1:-1]
        return read_java(part, inner) if inner else _guess_java(part)

    if found := re.search(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)", text):
        return [read(part.strip()) for part in found[1].split(",")]
    added = r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}"
    if found := re.search(added, text, re.DOTALL):
        return [read(part.strip()) for part in re.findall(r"add\((.+?)\)", found[1])]
    return [] if re.search(r"new\s+ArrayList<\w*>\(\)", text) else text


def _read_hash_map(text: str) -> Any:
    put = r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?\s*(.*?)\s*\}?\s*\}"
    if found := re.search(put, text, re.DOTALL):
        pairs = re.findall(r"put\(\"(.*?)\",\s*(.*?)\)", found[1])
        return {key: _guess_java(value.strip()) for key, value in pairs}
    return {} if re.search(r"new\s+HashMap<.*?>\s*\(\)", text) else text


def _guess_java(text: str) -> Any:
    """A value whose type is not known."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for kind in ("long", "float"):
        if (value := _read_simple("java", text, kind)) is not text:
            return value
    return _guess_number(text)


def _guess_number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _is_quoted(text: str) -> bool:
    return any(text.startswith(quote) and text.endswith(quote) for quote in "\"'")


def read_javascript(text: str, kind: str, inner: str | None = None) -> Any:
    """A value of JavaScript."""
    if kind == "String":
        return text[1:-1] if _is_quoted(text) else text
    if kind == "array":
        return _read_js_array(text.strip(), inner)
    return (
        _read_js_object(text.strip()) if kind == "dict" else _read_simple("javascript", text, kind)
    )


ARRAYS = re.compile(
    r"\[\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\]|\bnew\s+Array\(\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\)"
)


def _read_js_array(text: str, inner: str | None) -> Any:
    if found := ARRAYS.match(text):
        parts = [part.strip() for part in re.findall(r"\[(.*?)\]", found[0])]
        parts[:1] = [part.removeprefix("[") for part in parts[:1]]
        return [[_guess_js(each) for each in part.split(",")] for part in parts]
    found = re.match(r"\[(.*?)\]|\bnew\s+Array\((.*?)\)", text)
    if found is None:
        return text
    content = (found[1] if found[1] is not None else found[2]).strip()
    parts = [part.strip() for part in content.split(",")] if content else []
    return [read_javascript(part, inner) if inner else _guess_js(part) for part in parts]


def _read_js_object(text: str) -> Any:
    if text == "{}":
        return {}
    found = re.match(r"\{(.*?)\}", text)
    if found is None:
        return text
    read: dict[str, Any] = {}
    for key, value in re.findall(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)", found[1]):
        value, name = value.strip(), key.strip().strip("'\"")
        if value.startswith("[") and value.endswith("]"):
            read[name] = _read_js_array(value, None)
        elif value.startswith("{") and value.endswith("}"):
            read[name] = _read_js_object(value)
        else:
            read[name] = _guess_js(value.strip("'\""))
    return read


def _guess_js(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if _is_quoted(text) else _guess_number(text)


CONVERTERS = {"java": read_java, "javascript": read_javascript}
