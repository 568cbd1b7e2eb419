"""The verdict on one rollout: the request type of `verify`, and what it may return."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel

from ..errors import VerifyError
from ..responses import is_too_deep
from ..types import (
    LARGEST,
    METADATA,
    JsonObject,
    VerifyRequest,
    VerifyResponse,
    given_fields,
    is_countable,
    splice,
)
from .transport.encoding import show
from .transport.wire import parse_json, parse_leniently

METADATA_KEY = f'"{METADATA}"'.encode()

AnyRequest = TypeVar("AnyRequest", bound=VerifyRequest)


def find_request_type(verify: Callable[..., Any], owner: str) -> type[VerifyRequest] | None:
    """The request type of a class's `verify`; None for the short form `verify(self, task,
    response)`."""
    parameters = list(inspect.signature(verify).parameters)[1:]
    if len(parameters) == 2:
        return None
    annotation = get_type_hints(verify).get(parameters[0], VerifyRequest)
    if not (isinstance(annotation, type) and issubclass(annotation, VerifyRequest)):
        raise TypeError(f"{owner}.verify must take a VerifyRequest, not {annotation!r}")
    return annotation


def parse_request(raw: bytes, wanted: type[AnyRequest]) -> AnyRequest:
    """A request of `/verify`; ValueError if it is none.

    It takes half of the time of pydantic's parser, which knows other rules for JSON: for strict
    fields, bytes, and deep nesting.
    """
    if METADATA_KEY in raw:
        raw = parse_leniently(lambda given: _splice(given, wanted), raw)
    if wanted.model_config.get("val_json_bytes", "utf8") == "utf8":
        try:
            if not is_too_deep(raw, row := parse_json(raw)):
                return wanted.model_validate(row)
        except ValueError:
            pass
    return parse_leniently(wanted.model_validate_json, raw)


def _splice(raw: bytes, wanted: type[VerifyRequest]) -> bytes:
    """The row with the fields of `splice_metadata`. They are added to its text: a deep response
    could not be written again."""
    row = orjson.loads(raw)
    spliced = splice_metadata(row, wanted)
    if spliced is row:
        return raw
    found = {name: spliced[name] for name in spliced.keys() - row.keys()}
    return raw.rstrip()[:-1] + b"," + orjson.dumps(found)[1:] if found else raw


def splice_metadata(row: JsonObject, wanted: type[VerifyRequest]) -> JsonObject:
    """The row with those fields of `wanted` that lie in its `verifier_metadata`; ValueError for a
    field that has another value at the top."""
    inner = row.get(METADATA) if isinstance(row, dict) else None
    if not isinstance(inner, dict) or wanted.reads_metadata or METADATA in wanted.model_fields:
        return row
    found = {name: inner[name] for name in wanted.model_fields if name in inner}
    return splice(row, found, METADATA) if found else row


def as_verdict(request: VerifyRequest, found: Any) -> VerifyResponse:
    """What `verify` returned, as a response; VerifyError without a finite reward."""
    if isinstance(found, VerifyResponse):
        if (reward := finite_reward(found.reward)) is not found.reward:
            found.reward = reward
        return found
    if isinstance(found, BaseModel):
        fields = given_fields(found)
    elif isinstance(found, Mapping):
        fields = dict(found)
    else:
        fields = {"reward": found}
    fields = {name: as_plain(value) for name, value in fields.items()}
    if "reward" not in fields:
        raise VerifyError("verify returned no 'reward'", retryable=False)
    return VerifyResponse.of(request, {**fields, "reward": finite_reward(fields["reward"])})


def finite_reward(value: Any) -> float:
    """`value` as a reward; VerifyError if it is not a countable number."""
    if is_countable(value):
        return float(value)
    what = f"a finite number of at most {LARGEST:g}"
    raise VerifyError(
        f"reward must be {what}, got {show(value)} ({type(value).__name__})", retryable=False
    )


def as_plain(value: Any) -> Any:
    """A numpy scalar, or a tensor with one number, as a Python number."""
    is_foreign = not isinstance(value, str | bytes | int | float | list | dict)
    return value.item() if is_foreign and getattr(value, "ndim", None) == 0 else value


def check_judge(scores: JsonObject, server: str) -> None:
    """VerifyError if a verifier of NeMo Gym says that its judge gave no verdict."""
    if scores.get("invalid_judge_response"):
        is_final = scores.get("invalid_judge_retryable") is False
        error = VerifyError("invalid_judge_response", server=server, retryable=not is_final)
        error.failure_kind = "judge_unparseable"
        raise error
