"""The steps of a rollout: what each model call said, which tools it called, what they returned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..responses import as_object, content_texts
from ..trajectory import ModelCall, read_turns
from ..types import JsonObject

NEAR = 4000
"""Characters of the beginning and of the end of an output in which an error is looked for."""

MAX_PARSED = 1 << 16
"""Characters of arguments or of an output that are parsed as JSON."""

MAX_SHORT = 160
"""Characters of an argument or a text in the head of a step."""

MAX_NAME = 60
"""Characters of the name of a tool there."""

RETURNED = ("output", "outputs", "results", "result", "error", "reason")
"""Fields of an item that hold what a tool returned."""

BEGINNINGS = (
    *("error:", "error ", "exception:", "fatal:", "traceback (most recent call last)"),
    *("timeout:", "timed out"),
)
"""How an output begins, in small letters, that reports an error."""

MAX_BEGINNING = max(map(len, BEGINNINGS))

FREQUENT = frozenset(b" \netaoinsrhldcu")
"""Characters that most texts have many of."""


class Marks:
    """Fixed texts that are looked for in many others, of which most have none. A mark is first
    looked for in a short copy of the text, which has only the rare characters of the marks. The
    text itself is searched only if the copy has the mark."""

    def __init__(self, marks: Iterable[str]) -> None:
        encoded = [(mark, mark.encode()) for mark in marks]
        kept = frozenset(b"".join(raw for _, raw in encoded)) - FREQUENT
        self._left_out = bytes(set(range(256)) - kept)
        self._marks = [(mark, raw.translate(None, self._left_out)) for mark, raw in encoded]

    def are_in(self, text: str) -> bool:
        """Whether a text has one of the marks."""
        rest = text.encode(errors="surrogatepass").translate(None, self._left_out)
        return any(raw[0] in rest and raw in rest and mark in text for mark, raw in self._marks)


SIGNS = Marks(
    [
        "Traceback (most recent call last)",
        *("command not found", "No such file or directory", "Permission denied"),
        *("Connection refused", "Connection reset by peer", "Segmentation fault"),
        *("503 Service Unavailable", "502 Bad Gateway", "504 Gateway Timeout"),
        *("500 Internal Server Error", "SyntaxError:", "ModuleNotFoundError:"),
        "No replacement was performed",
    ]
)
"""Texts that report an error in the beginning or the end of an output."""

ENDINGS = ("exit code:", "exit code", "exit status", "exited with code", "returned non-zero", "rc=")
"""What stands in front of the status with which a command ended."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool, and what came of it."""

    name: str
    arguments: str
    item: int
    """The number of its item in the output."""
    output: str | None = None
    """None if nothing was returned."""
    output_item: int | None = None
    is_error: bool = False


@dataclass(slots=True)
class TurnStep:
    """One model call with what its tools returned, numbered from 1."""

    number: int
    begin: int
    end: int
    """Its items in the output: from `begin` up to, and without, `end`."""
    call: ModelCall
    """What the line knows of it: times, tokens and how it ended."""
    text: str = ""
    """What the model said."""
    reasons: bool = False
    tools: list[ToolUse] = field(default_factory=list)

    @property
    def is_error(self) -> bool:
        return any(tool.is_error for tool in self.tools)


def is_call(item: Any) -> bool:
    """Whether an item calls a tool."""
    kind = as_object(item).get("type") or ""
    return isinstance(kind, str) and (
        kind.endswith("_call") or kind in ("mcp_list_tools", "mcp_approval_request")
    )


def is_returned(item: Any) -> bool:
    """Whether an item is what a tool has returned."""
    kind = as_object(item).get("type") or ""
    return isinstance(kind, str) and (
        kind.endswith("_call_output") or kind in ("tool_search_output", "mcp_approval_response")
    )


def read_steps(line: Mapping[str, Any]) -> list[TurnStep]:
    """The steps of a line; none if it has no response."""
    output = as_object(line.get("response")).get("output")
    items = output if isinstance(output, list) else []
    return divide(items, read_turns(as_object(line.get("rollout")).get("turns")))


def divide(items: Sequence[Any], calls: Sequence[ModelCall] = ()) -> list[TurnStep]:
    """The steps of the items: as the model calls end, or, where these are not known, before each
    item of the model that follows what a tool returned."""
    outputs = _join(items)
    return [
        _step_of(number, begin, end, call, items, outputs)
        for number, (begin, end, call) in enumerate(_bounds(items, calls), 1)
    ]


def _bounds(
    items: Sequence[Any], calls: Sequence[ModelCall]
) -> Iterator[tuple[int, int, ModelCall]]:
    known = [call for call in calls if not call.chain and call.to is not None]
    begin = 0
    if known and all(call.by in (None, "policy", "user") for call in known):
        for call in known:
            end = min(len(items), call.to or 0)
            while end < len(items) and is_returned(items[end]):
                end += 1
            if end > begin:
                yield begin, end, call
                begin = end
    for at in range(begin + 1, len(items) + 1):
        if at == len(items) or (is_returned(items[at - 1]) and not is_returned(items[at])):
            yield begin, at, ModelCall()
            begin = at


def _join(items: Sequence[Any]) -> dict[int, int]:
    """The number of a call's item → that of what it returned. Several calls may have one id: the
    nth of them has the nth output."""
    waiting: dict[Any, list[int]] = {}
    for at, item in enumerate(items):
        if is_returned(item):
            name = item.get("call_id") or item.get("approval_request_id") or item.get("id")
            waiting.setdefault(str(name), []).append(at)
    found: dict[int, int] = {}
    for at, item in enumerate(items):
        if is_call(item):
            ids = [str(item.get("call_id")), str(item.get("id"))]
            held = next((waiting[each] for each in ids if waiting.get(each)), None)
            if held:
                found[at] = held.pop(0)
    return found


def _step_of(
    number: int,
    begin: int,
    end: int,
    call: ModelCall,
    items: Sequence[Any],
    outputs: Mapping[int, int],
) -> TurnStep:
    step = TurnStep(number, begin, end, call)
    texts = []
    for at in range(begin, end):
        item = as_object(items[at])
        if is_call(item):
            other = outputs.get(at)
            step.tools.append(_use_of(at, item, other, items[other] if other is not None else None))
        elif item.get("type") == "reasoning":
            step.reasons = True
        elif item.get("role", "assistant") == "assistant" and not is_returned(item):
            texts += content_texts(item.get("content"))
    step.text = "\n".join(texts)
    return step


def _use_of(at: int, item: Mapping[str, Any], other: int | None, returned: Any) -> ToolUse:
    label, name = item.get("server_label"), item.get("name") or item.get("type")
    results = [each for each in (item, as_object(returned)) if _has_result(each)]
    output = "\n".join(map(text_of_result, results)) if results else None
    return ToolUse(
        f"{label} / {name}" if label else str(name),
        text_of_arguments(item),
        at,
        output,
        other,
        any(map(is_error, results)),
    )


def _has_result(item: Mapping[str, Any]) -> bool:
    return any(item.get(name) is not None for name in RETURNED)


def text_of_arguments(item: Mapping[str, Any]) -> str:
    """What a call asks for, as text."""
    given = next((item[name] for name in ("arguments", "input", "code") if item.get(name)), None)
    if given is None:
        given = item.get("action") or item.get("operation") or item.get("queries") or ""
    return given if isinstance(given, str) else orjson.dumps(given).decode()


def text_of_result(item: Mapping[str, Any]) -> str:
    """What a tool returned, as text."""
    found = []
    for name in RETURNED:
        value = item.get(name)
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            found += content_texts(value) or [
                str(each.get("stdout", "")) + str(each.get("stderr", ""))
                for each in value
                if isinstance(each, dict)
            ]
        elif value is not None:
            found.append(orjson.dumps(value).decode())
    return "\n".join(found)


def is_error(item: Mapping[str, Any]) -> bool:
    """Whether an item says that its tool has failed."""
    if item.get("error") or item.get("is_error") or item.get("status") == "failed":
        return True
    values = item.get("output")
    for each in values if isinstance(values, list) else ():
        code = as_object(as_object(each).get("outcome")).get("exit_code")
        if isinstance(code, int) and code:
            return True
    return reports_error(text_of_result(item))


def reports_error(text: str) -> bool:
    """Whether a text that a tool returned reports an error: in its beginning, its end, or as the
    fields of a JSON object."""
    text = text.strip()
    if len(text) <= MAX_PARSED and text.startswith("{"):
        found = as_object(parse_json(text))
        codes = [found.get(name) for name in ("exit_code", "returncode", "return_code", "status")]
        if any(isinstance(code, int) and code and not 200 <= code < 400 for code in codes):
            return True
        if found:
            return bool(found.get("error") or found.get("is_error")) or _shows_error(
                "\n".join(str(found.get(name) or "") for name in ("stderr", "output", "stdout"))
            )
    return _shows_error(text)


def _shows_error(text: str) -> bool:
    head, tail = text[:NEAR], text[-NEAR:]
    start = head.lstrip()
    if start[:MAX_BEGINNING].lower().startswith(BEGINNINGS):
        return True
    near = text if len(text) <= 2 * NEAR else f"{head}\n{tail}"
    if SIGNS.are_in(near):
        return True
    first = start.split("\n", 1)[0].split(":", 1)
    last = tail.rstrip().rsplit("\n", 1)[-1].split(":", 1)
    if any(len(each) > 1 and each[0].endswith(("Error", "Exception")) for each in (first, last)):
        return True
    return any(_ends_with_status(each.lower()) for each in (head[:200], tail[-200:]))


def _ends_with_status(text: str) -> bool:
    for ending in ENDINGS:
        _, found, rest = text.partition(ending)
        digits = rest.lstrip(" :=").lstrip("-")[:1]
        if found and digits.isdigit() and digits != "0":
            return True
    return False


def parse_json(text: str) -> Any:
    """The value of a JSON text; None if it is none."""
    if len(text) > MAX_PARSED:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def describe_use(tool: ToolUse) -> JsonObject:
    """What the head of a step shows of a call."""
    return {
        "name": shorten(tool.name, MAX_NAME),
        "argument": first_argument(tool.arguments),
        "is_error": tool.is_error,
        "has_output": tool.output is not None,
    }


def first_argument(text: str) -> str:
    """The first argument of a call, on one line."""
    found = parse_json(text)
    if isinstance(found, dict):
        found = next(iter(found.values()), "")
    if found is None:
        found = text
    short = found if isinstance(found, str) else orjson.dumps(found).decode()
    return shorten(short)


def shorten(text: str, most: int = MAX_SHORT) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
