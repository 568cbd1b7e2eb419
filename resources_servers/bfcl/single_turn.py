"""Calls of one turn against the possible answers of a row; runs in a worker process.

These are the rules of BFCL's evaluation of syntax trees. A possible answer names a function, and
for each parameter the values that are right. The empty text among them means that the parameter may
be left out. Texts are compared without case, spaces and some punctuation.
"""

import re
from typing import Any

from foreign import CONVERTERS

TYPES: dict[str, dict[str, type]] = {
    "python": {
        **{"string": str, "integer": int, "float": float, "boolean": bool, "array": list},
        **{"tuple": list, "dict": dict, "any": str},
    },
    "java": {
        **{"byte": int, "short": int, "integer": int, "float": float, "double": float},
        **{"long": int, "boolean": bool, "char": str, "Array": list, "ArrayList": list},
        **{"HashMap": dict, "String": str, "any": str},
    },
    "javascript": {
        **{"String": str, "integer": int, "float": float, "Bigint": int, "Boolean": bool},
        **{"dict": dict, "array": list, "any": str},
    },
}
"""Language → type of a parameter → type of its value."""

LISTS = ("array", "tuple", "Array", "ArrayList")

IGNORED = re.compile(r"[ \,\.\/\-\_\*\^]")

OPTIONAL = ""
"""Among the values of a parameter: it may be left out."""

Json = dict[str, Any]


def judge(task: Json, calls: list[Json]) -> str:
    """What is wrong with the calls; empty if nothing is."""
    answers = task["possible_answers"]
    if len(calls) != len(answers):
        return "wrong number of calls"
    functions = {each["name"]: each for each in reversed(task["functions"])}
    left = list(calls)
    for answer in answers:
        name = next(iter(answer))
        function = functions.get(name, task["functions"][0])
        found = [_judge_call(task, function, call, answer[name]) for call in left]
        if all(found):
            return found[-1]
        left.pop(found.index(""))
    return ""


def _judge_call(task: Json, function: Json, call: Json, possible: Json) -> str:
    name = function["name"].replace(".", "_") if task["mode"] == "fc" else function["name"]
    if name not in call:
        return f"no call of {name}"
    given, known = call[name], function["parameters"]
    if missing := [each for each in function["required"] if each not in given]:
        return f"{missing[0]} is missing"
    for parameter, value in given.items():
        if parameter not in known or parameter not in possible:
            return f"unexpected parameter {parameter}"
        if problem := _judge_value(task["language"], known[parameter], value, possible[parameter]):
            return f"{parameter}: {problem}"
    for parameter, values in possible.items():
        if parameter not in given and OPTIONAL not in values:
            return f"{parameter} is missing"
    return ""


def _judge_value(language: str, about: Json, value: Any, possible: list[Any]) -> str:
    kind, inner, types = about["type"], None, TYPES[language]
    wanted = types[kind]
    if kind in LISTS:
        inner = types[about["items"]]
    if language != "python":
        if type(value) is not str:
            return "no text"
        value = CONVERTERS[language](value, kind, about.get("items"))
    elif kind == "tuple" and type(value) is tuple:
        value = list(value)
    elif kind == "float" and type(value) is int:
        value = float(value)
    is_variable = _find_type(value, possible, wanted, inner)
    if is_variable is None:
        return "wrong type"
    if not is_variable:
        if wanted is dict:
            return _judge_object(value, possible)
        if wanted is list and inner is dict:
            return _judge_objects(value, possible)
        if wanted is str:
            texts = [_plain(each) for each in possible if type(each) is str]
            return "" if _plain(value) in texts else "wrong text"
        if wanted is list:
            lists = [[_plain(each) for each in values] for values in possible]
            return "" if [_plain(each) for each in value] in lists else "wrong list"
    return "" if value in possible else "wrong value"


def _find_type(value: Any, possible: list[Any], wanted: type, inner: type | None) -> bool | None:
    """Whether a value is the name of a variable; None if it has the wrong type. The type of the
    possible values counts too, because they may be names of variables."""
    found = next((type(each) for each in possible if each != OPTIONAL), None)
    if type(value) is wanted:
        is_right = inner is None or any(_has_types(value, each, inner) for each in possible)
        return (found is not None and found is not wanted) if is_right else None
    return True if found is not None and type(value) is found else None


def _has_types(value: list[Any], possible: Any, inner: type) -> bool:
    if type(possible) is not list:
        return True
    return all(_find_type(each, possible, inner, None) is not None for each in value)


def _plain(value: Any) -> Any:
    """A text in the form in which it is compared; any other value as it is."""
    return IGNORED.sub("", value).lower().replace("'", '"') if type(value) is str else value


def _judge_object(value: Json, possible: list[Any]) -> str:
    """An object against the possible ones, whose fields list what is right."""
    for each in possible:
        if each == OPTIONAL:
            continue
        are_right = all(
            key in each and _plain(own) in [_plain(right) for right in each[key]]
            for key, own in value.items()
        )
        if are_right and all(key in value or OPTIONAL in right for key, right in each.items()):
            return ""
    return "wrong object"


def _judge_objects(value: list[Any], possible: list[Any]) -> str:
    for each in possible:
        pairs = [*zip(value, each, strict=False)]
        is_as_long = len(value) == len(each)
        if is_as_long and not any(_judge_object(own, [right]) for own, right in pairs):
            return ""
    return "wrong objects"
