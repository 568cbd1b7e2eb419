"""inspect's logs: `.eval` archives, read sample by sample, and `.json` documents."""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from ..errors import ConfigError
from ..responses import as_object
from ..trajectory import ModelCall
from ..types import JsonObject
from .archive import open_archive, read_member
from .chat_items import Items, as_tools
from .foreign import (
    Damaged,
    Foreign,
    count_in,
    number_in,
    read_safely,
    rest_of,
    seconds_between,
)
from .own_block import OURS, restore_own

NAME = "inspect"

VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""inspect's letters: correct, partially correct, incorrect, no answer."""

ATTACHMENT = "attachment://"

READ = (
    *("id", "epoch", "input", "messages", "output", "target", "choices", "model_usage"),
    *("events", "events_data", "attachments", "started_at", "total_time", "turn_count"),
    *("metadata", "completed_at"),
)
"""Fields of a sample that are read, or repeat what others say."""

OF_OURS = ("scores", "error")
"""Fields that repeat what the block of our exports has."""

FINISHES = {"max_tokens": "length", "model_length": "length"}

DEEPEST = 200
"""Levels of a sample in which attachments are looked for."""


def is_archive(names: frozenset[str]) -> bool:
    """Whether an archive with files of these names is a log."""
    return bool(names & {"header.json", "_journal/start.json"})


def is_document(document: JsonObject) -> bool:
    return isinstance(document.get("eval"), dict) and "version" in document


def read_archive(path: Path) -> Iterator[Foreign | Damaged]:
    """The samples of an `.eval` file. One of them is in memory at a time."""
    with open_archive(path) as archive:
        names = set(archive.namelist())
        head = "header.json" if "header.json" in names else "_journal/start.json"
        run = _parse(path, archive, archive.getinfo(head)).get("eval")
        for member in archive.infolist():
            if member.filename.startswith("samples/") and member.filename.endswith(".json"):
                sample = _parse(path, archive, member)
                yield read_safely(read_sample, sample, as_object(run))


def _parse(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> JsonObject:
    try:
        found = orjson.loads(read_member(path, archive, member))
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: {member.filename} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {member.filename} is no JSON object")
    return found


def read_document(document: JsonObject) -> Iterator[Foreign | Damaged]:
    """The samples of a `.json` log."""
    for sample in document.get("samples") or []:
        yield read_safely(read_sample, as_object(sample), document["eval"])


def read_sample(sample: Mapping[str, Any], run: Mapping[str, Any]) -> Foreign:
    """One sample of a run; Damaged if it is malformed."""
    attached = as_object(sample.get("attachments"))
    given = sample.get("input")
    asked = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = _with_attached(sample.get("messages") or asked, attached, DEEPEST)
    if not isinstance(messages, list):
        raise Damaged("a sample has no list of messages")
    first = next((at for at, each in enumerate(messages) if _is_sampled(each)), len(messages))
    before, after = _read_items(messages[:first]), _read_items(messages[first:])
    events = [each for each in sample.get("events") or [] if isinstance(each, dict)]
    sampled = [each for each in events if _is_call(each)]
    places = {as_object(each).get("id"): at for at, each in enumerate(messages[first:])}
    times = {each.get("id"): number_in(each.get("working_time")) for each in events}
    start = sample.get("started_at")
    offered = sampled[0].get("tools") if sampled else None
    calls = [_call(each, places, after, times, start) for each in sampled]
    model = str(run.get("model") or "")
    reward, scores = read_scores(as_object(sample.get("scores")))
    target, id = sample.get("target"), sample.get("id")
    fields = {"expected_answer": target}
    metadata = dict(as_object(sample.get("metadata")))
    ours = as_object(metadata.pop(OURS, None))
    given = {"choices": sample.get("choices"), "metadata": metadata}
    fields |= {name: value for name, value in given.items() if value}
    error = as_object(sample.get("error")).get("message")
    found = Foreign(
        str(run.get("solver") or NAME),
        before.items,
        after.items,
        name=id if isinstance(id, str) else None,
        fields={name: value for name, value in fields.items() if value not in (None, "")},
        tools=as_tools(ours.get("tools", offered)),
        params={"temperature": value} if (value := _temperature(run)) is not None else {},
        model=model,
        calls=calls,
        reward=reward,
        scores=scores,
        index=epoch - 1 if type(epoch := sample.get("epoch")) is int and epoch > 0 else None,
        usage=None
        if calls and not ours
        else _usage(as_object(sample.get("model_usage")).get(model)),
        known={
            "started_at": sample.get("started_at"),
            "duration_s": number_in(sample.get("total_time")),
        },
        error=str(error) if error is not None else None,
    )
    restore_own(found, ours)
    more = OF_OURS if ours else ()
    found.kept = {"id": id, "task": run.get("task"), **rest_of(sample, *READ, *more)}
    if unread := [*before.unread, *after.unread]:
        found.kept["messages"] = unread
    if not ours and (
        others := [each for each in events if each.get("event") != "tool" and each not in sampled]
    ):
        found.kept["events"] = others
    return found


def _read_items(messages: list[Any]) -> Items:
    """The items of messages, with what our exports have kept of them."""
    found = Items()
    for message in messages:
        before = len(found.items)
        found.add(_as_chat(message))
        own = as_object(as_object(as_object(message).get("metadata")).get(OURS))
        written = as_object(own.get("arguments"))
        for item in found.items[before:]:
            if item.get("call_id") in written:
                item["arguments"] = written[item["call_id"]]
        if len(found.items) > before:
            found.items[-1].update(as_object(own.get("item")))
    return found


def _is_call(event: Mapping[str, Any]) -> bool:
    """Whether the policy answered; calls of graders have a role."""
    is_model = event.get("event") == "model"
    return is_model and event.get("role") is None and not event.get("error")


def _is_sampled(message: Any) -> bool:
    told = as_object(message)
    return told.get("role") == "assistant" and told.get("source") != "input"


def _with_attached(value: Any, attached: Mapping[str, Any], levels: int) -> Any:
    """The value with the texts that inspect has put aside; Damaged if one is missing."""
    if isinstance(value, str) and value.startswith(ATTACHMENT):
        name = value.removeprefix(ATTACHMENT)
        if name not in attached:
            raise Damaged(f"the attachment {name[:40]} is missing")
        return attached[name]
    if levels and isinstance(value, dict):
        return {name: _with_attached(each, attached, levels - 1) for name, each in value.items()}
    if levels and isinstance(value, list):
        return [_with_attached(each, attached, levels - 1) for each in value]
    return value


OF_INSPECT = ("id", "source", "model", "function", "metadata", "tool_call_id")
"""Fields of a message that say nothing to a model, or have a place of their own."""


def _as_chat(message: Any) -> JsonObject:
    """A message of inspect as one of Chat."""
    told = dict(as_object(message))
    chat = {name: value for name, value in told.items() if name not in OF_INSPECT}
    if more := rest_of(as_object(told.get("metadata")), OURS):
        chat["metadata"] = more
    if told.get("role") == "tool":
        chat["tool_call_id"] = told.get("tool_call_id")
        if failed := as_object(told.get("error")):
            chat["content"] = told.get("content") or str(failed.get("message", ""))
    if isinstance(content := told.get("content"), list):
        chat["content"] = [part for each in content if (part := _as_part(each, chat)) is not None]
    return chat


def _as_part(part: Any, chat: JsonObject) -> Any:
    match part:
        case {"type": "image", "image": str(url)}:
            detail = part.get("detail") or "auto"
            return {"type": "input_image", "image_url": url, "detail": detail}
        case {"type": "reasoning", "reasoning": str(text)}:
            said = text or str(part.get("summary") or "")
            before = chat.get("reasoning_content")
            chat["reasoning_content"] = f"{before}\n{said}" if before else said
            if more := rest_of(part, "type", "reasoning", "redacted", "summary"):
                chat.setdefault("reasoning_signature", []).append(more)
            return None
    return part


def _call(
    event: Mapping[str, Any],
    places: Mapping[Any, int],
    said: Items,
    times: Mapping[Any, float | None],
    start: Any,
) -> ModelCall:
    output = as_object(event.get("output"))
    choices = output.get("choices") or [{}]
    choice = as_object(choices[0])
    message = as_object(choice.get("message"))
    place = places.get(message.get("id"))
    of_tools = [times.get(as_object(each).get("id")) for each in message.get("tool_calls") or []]
    usage = _usage(output.get("usage")) or {}
    finish = choice.get("stop_reason")
    return ModelCall(
        to=None if place is None else said.end_of_turn(place),
        start_s=seconds_between(start, event.get("timestamp")),
        model_s=number_in(output.get("time")),
        tool_s=sum(each for each in of_tools if each is not None) if None not in of_tools else None,
        input=usage.get("input_tokens"),
        cached=as_object(usage.get("input_tokens_details")).get("cached_tokens"),
        output=usage.get("output_tokens"),
        finish=FINISHES.get(finish, finish) if isinstance(finish, str) else None,
        cost_usd=number_in(as_object(output.get("usage")).get("total_cost")),
        tries=1 + retries if (retries := count_in(event.get("retries"))) is not None else None,
    )


def _usage(given: Any) -> JsonObject | None:
    """Tokens of a call. inspect's input tokens are without cached ones if the total says so."""
    usage = as_object(given)
    asked, said = (count_in(usage.get(name)) for name in ("input_tokens", "output_tokens"))
    if asked is None or said is None:
        return None
    read, made = (count_in(usage.get(f"input_tokens_cache_{name}")) for name in ("read", "write"))
    total = count_in(usage.get("total_tokens"))
    if asked + (read or 0) + (made or 0) + said == total:
        asked += (read or 0) + (made or 0)
    found: JsonObject = {
        "input_tokens": asked,
        "output_tokens": said,
        "total_tokens": asked + said,
    }
    if read is not None:
        found["input_tokens_details"] = {"cached_tokens": read}
    if (thought := count_in(usage.get("reasoning_tokens"))) is not None:
        found["output_tokens_details"] = {"reasoning_tokens": thought}
    return found


def read_scores(scores: Mapping[str, Any]) -> tuple[float | None, JsonObject]:
    """The reward, which is the first score that is one number, and all numbers by name."""
    found: dict[str, float] = {}
    reward = None
    for name, score in scores.items():
        value = as_object(score).get("value")
        if isinstance(value, dict):
            for part, inner in value.items():
                if (number := _value(inner)) is not None:
                    found[f"{name}_{part}"] = number
        elif (number := _value(value)) is not None:
            found[name] = number
            reward = number if reward is None else reward
    return reward, found


def _value(value: Any) -> float | None:
    return VALUES.get(value) if isinstance(value, str) else number_in(value)


def _temperature(run: Mapping[str, Any]) -> float | None:
    return number_in(as_object(run.get("model_generate_config")).get("temperature"))
