"""The rows of BFCL v4 from its wheel: questions, functions and possible answers, put together.

Its files are only parsed. The wording of its prompts stands in `bfcl_prompt.txt`.
"""

import copy
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ....errors import ConfigError
from ....types import JsonObject
from ..row_texts import RowTexts
from .bfcl_gold import make_gold

ROOT = "bfcl_eval/data"

NAME = "BFCL_v4_{}.json"

SINGLE_TURN = (
    *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel"),
    *("parallel_multiple", "live_simple", "live_multiple", "live_parallel"),
    "live_parallel_multiple",
)

WITHOUT_ANSWERS = ("irrelevance", "live_irrelevance", "live_relevance")

MULTI_TURN = tuple(f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param"))
MULTI_TURN += ("multi_turn_long_context",)

DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""Program → the file that describes its functions."""

PROMPT = Path(__file__).with_name("bfcl_prompt.txt")

JSON_TYPES = {
    **{"integer": "integer", "number": "number", "float": "number", "string": "string"},
    **{"boolean": "boolean", "bool": "boolean", "array": "array", "list": "array"},
    **{"dict": "object", "object": "object", "tuple": "array", "any": "string"},
    **{"byte": "integer", "short": "integer", "long": "integer", "double": "number"},
    **{"char": "string", "ArrayList": "array", "Array": "array", "HashMap": "object"},
    **{"Hashtable": "object", "Queue": "array", "Stack": "array", "Any": "string"},
    **{"String": "string", "Bigint": "integer"},
}
"""BFCL's names of types → those of JSON schemas. Other names mean a text."""

SYNTAX = {"python": "Python 3", "java": "Java 8 SDK", "javascript": "JavaScript"}

WRITTEN = {"java": "Java", "javascript": "JavaScript"}
"""Languages whose values are written as texts."""


def read_bfcl(wheel: Path, mode: str) -> Iterator[JsonObject]:
    """The tasks of all categories but memory and web search, as `mode` asks for them: `fc` with
    tools, or `prompt` with functions in the text."""
    if mode not in ("fc", "prompt"):
        raise ConfigError(f"source.mode: {mode!r} is neither fc nor prompt")
    with zipfile.ZipFile(wheel) as archive, closing(RowTexts()) as texts:
        programs = {
            name: _read_lines(archive, f"multi_turn_func_doc/{file}.json")
            for name, file in DOCUMENTS.items()
        }
        for category in (*SINGLE_TURN, *WITHOUT_ANSWERS, *MULTI_TURN):
            file = NAME.format(category)
            answers: list[JsonObject] = []
            if category not in WITHOUT_ANSWERS:
                answers = _read_lines(archive, f"possible_answer/{file}")
            # a few possible answers have other ids than their questions; the order is the same
            for number, entry in enumerate(_read_lines(archive, file)):
                truth = answers[number]["ground_truth"] if answers else []
                if category in MULTI_TURN:
                    row = _make_conversation(entry, truth, category, mode, programs, texts)
                else:
                    row = _make_question(entry, truth, category, mode)
                yield {**row, "gold_items": make_gold(row)} if truth else row


def _read_lines(archive: zipfile.ZipFile, name: str) -> list[JsonObject]:
    return [json.loads(line) for line in archive.read(f"{ROOT}/{name}").splitlines() if line]


def _make_question(entry: JsonObject, truth: Any, category: str, mode: str) -> JsonObject:
    language = next((name for name in ("javascript", "java") if name in category), "python")
    kind = next((name for name in ("irrelevance", "relevance") if name in category), "single_turn")
    shown = _explain(entry["function"], language)
    answers = {"functions": _shorten(entry["function"]), "possible_answers": truth} if truth else {}
    return {
        "id": entry["id"],
        "category": category,
        "kind": kind,
        "mode": mode,
        "language": language,
        "responses_create_params": _ask(entry["question"][0], shown, mode),
        **answers,
    }


def _shorten(functions: list[JsonObject]) -> list[JsonObject]:
    """What the verdict needs of functions."""
    found = []
    for each in functions:
        parameters = each["parameters"]
        kinds = {
            name: {"type": about["type"]}
            | ({"items": about["items"]["type"]} if "items" in about else {})
            for name, about in parameters["properties"].items()
        }
        required = parameters.get("required", [])
        found.append({"name": each["name"], "parameters": kinds, "required": required})
    return found


def _make_conversation(
    entry: JsonObject,
    truth: list[list[str]],
    category: str,
    mode: str,
    programs: dict[str, list[JsonObject]],
    texts: RowTexts,
) -> JsonObject:
    functions = [each for name in entry["involved_classes"] for each in programs[name]]
    names = {each["name"]: [*each["parameters"]["properties"]] for each in functions}
    missed: dict[str, list[str]] = entry.get("missed_function", {})
    held = {name for each in missed.values() for name in each}
    offered = [each for each in _explain(functions, "python") if each["name"] not in held]
    more: JsonObject = {}
    known = offered
    for turn, added in missed.items():
        # their descriptions do not name the syntax, as in BFCL
        new = [each for name in added for each in functions if each["name"] == name]
        known = [*known, *new]
        more[turn] = make_tools(known) if mode == "fc" else new
    first, *later = entry["question"]
    return {
        "id": entry["id"],
        "category": category,
        "kind": "multi_turn",
        "mode": mode,
        "responses_create_params": _ask(first, offered, mode),
        "involved_classes": entry["involved_classes"],
        "initial_config": entry.get("initial_config", {}),
        "long_context": "long_context" in category,
        "ground_truth": [
            [_name_arguments(call, names[call[0]]) for call in texts.read_calls(turn)]
            for turn in truth
        ],
        "turns": later,
        **({"more_tools": more} if more else {}),
    }


def _name_arguments(call: tuple[str, list[Any], JsonObject], names: list[str]) -> JsonObject:
    """A right call, with a name for each argument."""
    name, values, named = call
    return {name: {**dict(zip(names, values, strict=False)), **named}}


def _ask(messages: list[JsonObject], functions: list[JsonObject], mode: str) -> JsonObject:
    if mode == "fc":
        tools = {"tools": make_tools(functions)} if functions else {}
        return {"input": messages, **tools}
    text = PROMPT.read_text().replace("{functions}", json.dumps(functions, indent=4))
    if messages[0]["role"] == "system":
        system = {"role": "system", "content": f"{text}\n\n{messages[0]['content']}"}
        return {"input": [system, *messages[1:]]}
    return {"input": [{"role": "system", "content": text}, *messages]}


def _explain(functions: list[JsonObject], language: str) -> list[JsonObject]:
    """The functions with what BFCL adds to their descriptions: the syntax, and how values of Java
    and JavaScript are written."""
    found = copy.deepcopy(functions)
    for each in found:
        each["description"] += f" Note that the provided function is in {SYNTAX[language]} syntax."
        if (own := WRITTEN.get(language)) is not None:
            for about in each["parameters"]["properties"].values():
                _write_as_text(about, own)
    return found


def _write_as_text(about: JsonObject, language: str) -> None:
    kind = about["type"]
    if kind == "any":
        what = f"parameter can be of any type of {language} object in string representation."
        about["description"] += f" This {what}"
    else:
        what = f"{language} {kind} type parameter in string representation."
        about["description"] += f" This is {what}"
    if kind in ("ArrayList", "Array", "array") and "items" in about:
        inner = about.pop("items")["type"]
        about["description"] += (
            f" The list elements are of type {inner}; they are not in string representation."
        )
    if kind == "dict" and language == "JavaScript" and "properties" in about:
        schema = json.dumps(about.pop("properties"))
        about["description"] += (
            " The dictionary entries have the following schema; they are not in string"
            f" representation. {schema}"
        )
    about["type"] = "string"


def make_tools(functions: list[JsonObject]) -> list[JsonObject]:
    """The functions as tools of a request."""
    tools = []
    for each in copy.deepcopy(functions):
        schema = each["parameters"]
        schema |= {"type": "object", "properties": _to_schema(schema["properties"])}
        if "response" in each:
            shown = json.dumps(each["response"])
            each["description"] += f" The response field has the following schema: {shown}"
        name = re.sub(r"\.", "_", each["name"])
        about = {"name": name, "description": each["description"], "parameters": schema}
        tools.append({"type": "function", **about})
    return tools


def _to_schema(properties: JsonObject) -> JsonObject:
    for about in properties.values():
        if about.get("type") == "float":
            about["format"] = "float"
            about["description"] = about.get("description", "") + " This is a float type value."
        about["type"] = JSON_TYPES.get(about.get("type", "string"), "string")
        if about["type"] in ("array", "object"):
            _to_inner_schema(about)
    return properties


def _to_inner_schema(about: JsonObject) -> None:
    """The types inside of an object, or of a list up to the second level."""
    if "properties" in about:
        about["properties"] = _to_schema(about["properties"])
    elif "items" in about:
        items = about["items"]
        items["type"] = JSON_TYPES[items["type"]]
        if items["type"] == "array" and "items" in items:
            items["items"]["type"] = JSON_TYPES[items["items"]["type"]]
        elif items["type"] == "object" and "properties" in items:
            items["properties"] = _to_schema(items["properties"])
