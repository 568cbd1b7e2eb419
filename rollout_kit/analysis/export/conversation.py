"""A rollout as chat messages: what trainers' formats are made of.

`prompt` is the task's input, `completion` all that followed: the model's messages, the outputs of
its tools, observations. Nothing is invented and nothing is dropped: what chat messages cannot say
is `Unfit`, with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import orjson

from ...errors import TaskError
from ...responses import content_texts, find_offered_tools, output_items
from ...serving.endpoints.chat import RAW, to_chat
from ...store.lines import row_of
from ...types import JsonObject, Rollout
from ..withheld import WHY, is_withheld

Arguments = Literal["text", "object"]
"""How the arguments of a tool call are written: as sampled, or parsed."""

LABELS = ("expected_answer", "ground_truth", "gold_answer", "answer", "label", "solution")
"""Fields of a row that may hold its right answer, the first that is present counts."""

OF_MALFORMED = (AttributeError, KeyError, TypeError)
"""What is raised where an item is no object, or lacks what it must have."""

MALFORMED = "an item of its input or output is malformed"


class Unfit(Exception):
    """This format cannot express the rollout; the text is the reason. Nothing is approximated,
    because a trainer would drop or distort it silently."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One rollout. `tools` are chat's function tools, those of the row and those that the agent has
    added."""

    rollout: Rollout
    prompt: list[JsonObject]
    completion: list[JsonObject]
    tools: list[JsonObject]
    row: JsonObject
    """The fields of the input row that are the verifier's."""

    @property
    def is_raw(self) -> bool:
        """Whether the model continued one text, without a chat template."""
        return bool((self.rollout.line.get("responses_create_params") or {}).get(RAW))

    @property
    def messages(self) -> list[JsonObject]:
        return [*self.prompt, *self.completion]

    @property
    def answer(self) -> JsonObject:
        """The completion as one assistant message; Unfit if it is more."""
        if len(self.completion) != 1 or self.completion[0]["role"] != "assistant":
            raise Unfit("its completion is not one assistant message")
        if "tool_calls" in self.completion[0]:
            raise Unfit("its completion calls tools")
        return self.completion[0]

    def label(self, key: str | None) -> Any:
        """The task's right answer; None if the row has none."""
        names = LABELS if key is None else (key,)
        return next((self.row[name] for name in names if name in self.row), None)


def read_conversation(
    rollout: Rollout,
    arguments: Arguments = "text",
    *,
    is_answered: bool = True,
    takes_images: bool = False,
) -> Conversation:
    """The rollout as messages; Unfit if they cannot express it. The completion is empty unless
    `is_answered`. With `takes_images`, a message with images has its `parts`, in their order."""
    if is_withheld(rollout.line):
        raise Unfit(WHY)
    params = rollout.line.get("responses_create_params") or {}
    if is_answered and any("chain" in each for each in _compactions(rollout)):
        raise Unfit(
            "its conversation was shortened on the way: use a format with token ids, as trl_rollout"
        )
    output = output_items(rollout.response) if is_answered else []
    harness = rollout.line["rollout"].get("gateway")
    if isinstance(harness, dict) and is_answered:
        if "chains" in harness:
            raise Unfit("its harness had several conversations: use a format with token ids")
        opening, output = _split_opening(output)
        params = {**params, "input": opening, "instructions": None}
    try:
        sent = {**params, "n": 1, "tools": find_offered_tools(params, rollout.response)}
        asked = to_chat(sent, reasoning_field=_REASONING)
        said = to_chat({"input": output}, reasoning_field=_REASONING)
    except TaskError as error:
        raise Unfit(error.message) from None
    except OF_MALFORMED:
        raise Unfit(MALFORMED) from None
    prompt, completion = asked["messages"], said["messages"]
    if not prompt:
        raise Unfit("it has no prompt")
    if is_answered and not completion:
        raise Unfit("its response is empty")
    if not all(isinstance(message["role"], str) for message in (*prompt, *completion)):
        raise Unfit("a message of its input or output has no role")
    row = {k: v for k, v in row_of(rollout.line).items() if k != "responses_create_params"}
    return Conversation(
        rollout,
        [_plain(message, arguments, takes_images) for message in prompt],
        [_plain(message, arguments, takes_images) for message in completion],
        asked.get("tools", []),
        row,
    )


def _split_opening(output: list[JsonObject]) -> tuple[list[JsonObject], list[JsonObject]]:
    """The prompts with which a harness began, and all that followed."""
    number = 0
    for item in output:
        if item.get("type", "message") != "message" or item.get("role") == "assistant":
            break
        number += 1
    return output[:number], output[number:]


def _compactions(rollout: Rollout) -> list[JsonObject]:
    """What the line says of how its conversation was shortened."""
    found = rollout.line["rollout"].get("compactions")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


_REASONING = "reasoning_content"


def as_texts(row: JsonObject) -> JsonObject:
    """The row with each list of messages joined to one text: what a raw prompt and its completion
    are to a trainer. A whole conversation is its `text`."""
    found = {}
    for name, value in row.items():
        is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
        if is_chat and "role" in value[0]:
            text = "".join(message["content"] for message in value)
            found["text" if name == "messages" else name] = text
        elif name != "tools":
            found[name] = value
    return found


def _plain(message: Mapping[str, Any], arguments: Arguments, takes_images: bool) -> JsonObject:
    """The message with text as content. Templates join an absent content as the word None."""
    content, parts = message.get("content"), {}
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            parts = {"parts": _read_parts(content)} if takes_images else {}
        if not parts and any(part.get("type") != "text" for part in content):
            raise Unfit("it has content that is not text")
        content = "".join(content_texts(content))
    plain = {**message, "content": content or "", **parts}
    if "tool_calls" in plain and arguments == "object":
        plain["tool_calls"] = [_with_object(call) for call in plain["tool_calls"]]
    return plain


def _read_parts(content: list[Any]) -> list[JsonObject]:
    """Texts and images, each with the same fields; Unfit for any other part."""
    found = []
    for part in content:
        image = part.get("image_url") if part.get("type") == "image_url" else None
        url = image.get("url") if isinstance(image, dict) else image
        if part.get("type") != "text" and not isinstance(url, str):
            raise Unfit("it has content that is neither text nor an image")
        found.append({"type": part["type"], "text": part.get("text"), "image_url": url})
    return found


def _with_object(call: JsonObject) -> JsonObject:
    function = call["function"]
    try:
        parsed = orjson.loads(function["arguments"] or b"{}")
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise Unfit("the arguments of a tool call are not a JSON object")
    return {**call, "function": {**function, "arguments": parsed}}


def text_of(value: Any) -> str:
    """A value as text: texts as they are, everything else as JSON; None is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def is_cut_off(rollout: Rollout) -> bool:
    """Whether the response ended before the model did."""
    response = rollout.response
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return bool(reason) or response.get("status") == "incomplete"


def said_by(rollout: Rollout) -> list[tuple[Any, ...]]:
    """What a response says, without ids: equal for rollouts that read the same."""
    return [
        (
            item.get("type", "message"),
            item.get("role"),
            *("".join(content_texts(item.get(name))) for name in ("content", "summary")),
            *(text_of(item.get(name)) for name in OF_TOOLS),
        )
        for item in output_items(rollout.response)
    ]


OF_TOOLS = (
    *("name", "arguments", "input", "code", "queries", "action", "operation", "server_label"),
    *("output", "outputs", "results", "result", "error"),
)
"""Fields that hold what a tool is asked and returns, of functions and of an endpoint's own."""


def digest(value: Any) -> bytes:
    """Equal for equal values. What a long rollout says is never copied as a whole."""
    made = blake2b(digest_size=8)
    for each in value if isinstance(value, list) else [value]:
        made.update(repr(each).encode("utf-8", "surrogatepass"))
    return made.digest()
