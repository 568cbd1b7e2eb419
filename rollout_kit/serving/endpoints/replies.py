"""Chat completions as responses: what was said, thought and called, and how it ended.

`from_chat` makes a response that the OpenAI SDK's `Response` accepts. A completion that its sender
marks as failed is a ModelError, never an answer.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from ...errors import ModelError, TaskError, summary
from ...responses import (
    CUT_OFF,
    FILTERED,
    Item,
    as_object,
    count,
    function_call_item,
    is_count,
    make_response,
    message_item,
    quote_json,
    reasoning_item,
)
from ...session import note_repair
from ...types import JsonObject
from .chat import LOGPROBS, RAW
from .prices import read_cost
from .provider_data import OF_MESSAGE, call_data, find_attached, keep
from .refusals import read_status

log = logging.getLogger(__name__)

FAILED = "failed"

WORDS = {
    None: "stop end_turn end_of_turn stop_sequence eos eos_token complete completed done finish"
    " finished end tool_calls tool_call tool_use function_call function_calls",
    CUT_OFF: "length max_tokens model_length max_output_tokens max_completion_tokens"
    " max_new_tokens max_length token_limit max_tokens_reached model_context_window_exceeded",
    FILTERED: "content_filter content_filtered safety sensitive refusal recitation"
    " prohibited_content blocklist spii image_safety content_policy_violation"
    " data_inspection_failed guardrail_intervened guardrails",
    FAILED: "error failed failure abort aborted cancelled canceled interrupted timeout"
    " network_error server_error internal_error internal_server_error system_error"
    " insufficient_system_resource",
}
"""What a finish reason means → its names. None: the answer is whole. FAILED: the endpoint failed
while it answered."""

MEANINGS = {name: meaning for meaning, names in WORDS.items() for name in names.split()}

REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Fields of a message that may hold the model's reasoning; the first that has a text counts."""

THOUGHTS = ("thinking", "reasoning", "redacted_thinking", "summary_text", "reasoning_text")
"""Types of content parts that are no part of the answer."""

TEXTS = ("text", "thinking", "reasoning", "summary", "content", "refusal")
"""Fields of a part or of a reasoning object that may hold its text."""

THINK, END_THINK = "<think>", "</think>"

MENTIONS = tuple(" \t`\"'“”‘’«»([{<")
"""A closing tag behind one of these is mentioned, and closes nothing."""

Kind = Literal["text", "thought", "refusal"]


def from_chat(completion: Any, params: Mapping[str, Any], endpoint: str = "") -> JsonObject:
    """A chat completion as a response to `params`; ModelError if it is not a completion, or one
    that its sender marks as failed. With the name of its `endpoint`, items keep provider data."""
    choice = _only_choice(completion)
    _check_not_failed(choice, completion)
    message = choice.get("message")
    if message is None and MEANINGS.get(_finish(choice)):
        message = {}  # a filter leaves nothing
    if not isinstance(message, dict):
        raise _garbage("its choice has no message", completion)
    said = _read_message(message, completion, is_raw=bool(params.get(RAW)))
    calls = _calls(message, completion, endpoint)
    reason = _incomplete_reason(choice)
    if reason is None and calls and _is_at_limit(choice, completion, params):
        reason = CUT_OFF
    output: list[Item] = [reasoning_item(said.thought)] if said.thought else []
    if said.text or said.refusal or not (calls or reason):
        output.append(_message(said, message, reason))
    output += calls
    if LOGPROBS in (params.get("include") or ()) or params.get("top_logprobs") is not None:
        _put_log_probs(output, choice, said.text)
    if endpoint and output and len(message) > 2:
        _keep_attached(output[0], message, said, endpoint, has_calls=bool(calls))
    response = make_response(
        str(completion.get("model") or params.get("model") or ""),
        output,
        read_usage(completion.get("usage")),
        incomplete_reason=reason,
        params={key: value for key, value in params.items() if value is not None},
    )
    tier = completion.get("service_tier")
    return {**response, "service_tier": tier} if isinstance(tier, str) else response


class UnknownFinishes:
    """Logs each unknown finish reason once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._named: set[Any] = {None, CUT_OFF, FILTERED}

    def look(self, response: Mapping[str, Any]) -> None:
        reason = as_object(response.get("incomplete_details")).get("reason")
        if reason not in self._named:
            self._named.add(reason)
            log.warning(
                "%s: an answer ended with the unknown finish reason '%s'. Such rollouts are kept as"
                " incomplete, with this reason",
                self._name,
                reason,
            )


def _only_choice(completion: Any) -> JsonObject:
    choices = completion.get("choices") if isinstance(completion, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _garbage("it has no choices", completion)
    if len(choices) > 1:
        raise TaskError(f"n: the model answered {len(choices)} times; a rollout has one response")
    return choices[0]


def _check_not_failed(choice: JsonObject, completion: JsonObject) -> None:
    """Raise ModelError if the sender says that it failed; what it had sent is no answer."""
    if error := choice.get("error"):
        told = {"error": error}
        status, what = read_status(told), f"an error: {summary(told, quote_json(error))}"
    elif "finish_reason" in choice and choice["finish_reason"] is None:
        status, what = 502, "no finish_reason, so the answer is not over"
    elif MEANINGS.get(named := _finish(choice)) == FAILED:
        status, what = 502, f"the finish_reason '{named}'"
    else:
        return
    raise ModelError(
        f"the endpoint failed while it answered, as its choice has {what}",
        status=status,
        body=_quote(completion),
        retryable=True,
    )


def _quote(completion: Any) -> str:
    """A completion for an error, without what only its endpoint can read."""
    shown = dict(as_object(completion))
    if not isinstance(choices := shown.get("choices"), list):
        return quote_json(completion)
    shown["choices"] = [
        {**choice, "message": _known_fields(choice["message"])}
        if isinstance(as_object(choice).get("message"), dict)
        else choice
        for choice in choices
    ]
    return quote_json(shown)


def _known_fields(message: JsonObject) -> JsonObject:
    known = {name: message[name] for name in OF_MESSAGE & message.keys()}
    if isinstance(calls := known.get("tool_calls"), list):
        known["tool_calls"] = [as_object(call).get("function") for call in calls]
    return known


def _finish(choice: JsonObject) -> str:
    """The finish reason in small letters; empty if there is none."""
    return str(choice.get("finish_reason") or "").lower()


def _incomplete_reason(choice: JsonObject) -> str | None:
    """Why the answer is not whole. An unknown finish reason is kept as it is."""
    named = _finish(choice)
    return MEANINGS.get(named, str(choice["finish_reason"])) if named else None


def _is_at_limit(choice: JsonObject, completion: JsonObject, params: Mapping[str, Any]) -> bool:
    """Whether the answer used up its tokens: some endpoints report `tool_calls` then. A `stop` is
    believed."""
    limit = params.get("max_output_tokens")
    used = count(completion.get("usage"), "completion_tokens")
    return _finish(choice) != "stop" and is_count(limit) and 0 < limit <= used


@dataclass(slots=True)
class _Said:
    """What a message says, and which of its fields had the thought."""

    text: str = ""
    refusal: str = ""
    thought: str = ""
    text_in: list[str] = field(default_factory=list)
    is_plain: bool = True
    """Whether the content is only text."""


def _read_message(message: JsonObject, completion: JsonObject, *, is_raw: bool) -> _Said:
    content = message.get("content")
    if is_raw:  # one text, in which nothing has a meaning
        return _Said("".join(text for _, text in _parts(content)))
    said = _Said(refusal="".join(_texts(message.get("refusal"))))
    if isinstance(content, str):
        said.text = content
    elif content is not None:
        _read_content(said, content, completion)
    if not said.text and (audio := message.get("audio")):
        said.text = "".join(_texts(as_object(audio).get("transcript")))
    for name in REASONING if len(message) > 2 else ():
        if name in message and (thought := "\n".join(_texts(message[name]))):
            said.thought = thought
            said.text_in = [each for each in REASONING if message.get(each) == thought]
            return said
    if not said.thought and "<" in said.text:
        said.text, said.thought = _split_thought(said.text)
    return said


def _read_content(said: _Said, content: Any, completion: JsonObject) -> None:
    """A content in parts. ModelError if none of them has a text: the answer would be lost."""
    if not isinstance(content, list):
        raise _garbage("its content is no text", completion)
    found: dict[Kind, list[str]] = {"text": [], "thought": [], "refusal": []}
    for kind, text in _parts(content):
        found[kind].append(text)
    said.text, said.thought = "".join(found["text"]), "".join(found["thought"])
    said.refusal += "".join(found["refusal"])
    unread = sorted(set(_unread(content)))
    said.is_plain = not (unread or found["thought"])
    if unread and not any(found.values()):
        what = f"not a chat completion: its content has no text, but {', '.join(unread)}"
        raise ModelError(what, body=_quote(completion), retryable=False)


def _parts(content: Any) -> Iterator[tuple[Kind, str]]:
    """The texts of a content, which may be nested lists of parts."""
    if isinstance(content, list):
        for part in content:
            yield from _parts(part)
        return
    kind = content.get("type") if isinstance(content, dict) else None
    of = "thought" if kind in THOUGHTS else "refusal" if kind == "refusal" else "text"
    for text in _texts(content):
        yield of, text


def _texts(value: Any) -> Iterator[str]:
    """The texts in a part or in a reasoning, which may be a text, a list or an object."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        yield from _texts(next((value[name] for name in TEXTS if value.get(name)), None))


def _unread(content: Any) -> Iterator[str]:
    """The types of the parts that have no text."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, list):
            yield from _unread(part)
        elif isinstance(part, dict) and not any(name in part for name in TEXTS):
            yield str(part.get("type"))
        elif not isinstance(part, str | dict):
            yield type(part).__name__


def _split_thought(text: str) -> tuple[str, str]:
    """The answer and the thought, where the endpoint has not separated them. The thought stands at
    the start; a chat template may have written its opening tag into the prompt."""
    start = text.lstrip()
    thought, closed, said = start.removeprefix(THINK).partition(END_THINK)
    if not start.startswith(THINK):
        is_mentioned = THINK in thought or thought.count("`") % 2 or thought.endswith(MENTIONS)
        if not closed or is_mentioned:
            return text, ""
    return said.lstrip("\n") if closed else "", thought.strip("\n")


def _message(said: _Said, message: JsonObject, reason: str | None) -> Item:
    item = message_item(said.text)
    [part] = item["content"]
    if reason is not None:
        item["status"] = "incomplete"
    if isinstance(cited := message.get("annotations"), list) and cited:
        part["annotations"] = [_annotation(each) for each in cited if isinstance(each, dict)]
    if said.refusal:
        parts = item["content"] if said.text else []
        item["content"] = [*parts, {"type": "refusal", "refusal": said.refusal}]
    return item


def _put_log_probs(output: list[Item], choice: JsonObject, text: str) -> None:
    """Put the log-probs of the answer's tokens on its text. Those of thoughts and calls have no
    place in a response."""
    listed = as_object(choice.get("logprobs")).get("content") or []
    if not listed:
        note_repair("log-probs that the endpoint did not send → none")
        return
    if len(output) == 1 or "".join(str(as_object(each).get("token")) for each in listed) == text:
        for item in output:
            if item["type"] == "message" and "text" in item["content"][0]:
                item["content"][0]["logprobs"] = listed
                return
    note_repair("log-probs of tokens that are not the answer's text → left out")


def _annotation(given: JsonObject) -> JsonObject:
    """A citation as Responses writes it: without an object of its own."""
    kind = given.get("type")
    inner = given.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **inner} if isinstance(inner, dict) else given


def _keep_attached(
    item: Item, message: JsonObject, said: _Said, endpoint: str, *, has_calls: bool
) -> None:
    fields = find_attached(message, {*OF_MESSAGE, *said.text_in})
    if has_calls:  # some endpoints want an empty thought back as well
        fields |= {name: "" for name in REASONING if message.get(name) == ""}
    if not said.is_plain:
        fields["content"] = message["content"]
    keep(item, endpoint, text_in=said.text_in, message=fields)


def _calls(message: JsonObject, completion: JsonObject, endpoint: str) -> list[Item]:
    asked = message.get("tool_calls") or []
    if not isinstance(asked, list):
        raise _garbage("its tool calls are no list", completion)
    if not asked and message.get("function_call"):  # the name that it had before tools
        asked = [{"function": message["function_call"]}]
    return [_function_call(call, completion, endpoint) for call in asked]


def _function_call(call: Any, completion: JsonObject, endpoint: str) -> Item:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _garbage("one of its tool calls names no function", completion)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some endpoints return an object
        arguments = orjson.dumps(arguments or {}).decode()
    call_id = call.get("id")
    item = function_call_item(function["name"], arguments, str(call_id) if call_id else None)
    if endpoint and (len(call) > 3 or len(function) > 2):
        keep(item, endpoint, call=call_data(call))
    return item


def read_usage(given: Any) -> JsonObject | None:
    """The usage of a chat completion as that of a response; None if it is unknown."""
    usage = as_object(given)
    if not usage:
        return None
    read, written = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    cached = count(usage.get("prompt_tokens_details"), "cached_tokens")
    thought = count(usage.get("completion_tokens_details"), "reasoning_tokens")
    made = {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": cached or count(usage, "prompt_cache_hit_tokens"),
            "cache_write_tokens": 0,
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": count(usage, "total_tokens") or read + written,
    }
    cost = read_cost(usage)
    return made if cost is None else {**made, "cost": cost}


def _garbage(what: str, completion: Any) -> ModelError:
    return ModelError(f"not a chat completion: {what}", body=_quote(completion), retryable=True)
