"""A decision as bytes on a connection: their content and time, and the end of the connection."""

from dataclasses import dataclass
from typing import Literal

import orjson

from rollout_kit.serving.transport import bare_http

from . import bodies
from .simulation import Decision, Refusal

JSON, SSE, HTML = "application/json", "text/event-stream; charset=utf-8", "text/html"

PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"

GARBAGE = b'{"output": [{"type": \x00\xff\xfe NaN,,}'

NUM_DRIPS = 20
"""Pieces of a slow body."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """`pieces` are written evenly over `over_s`; `then` says how the connection goes on."""

    outcome: str
    pieces: list[bytes]
    over_s: float = 0.0
    then: Literal["done", "close", "reset", "hang"] = "done"


def starts_s(decision: Decision) -> float:
    """Time of the first byte: the first token of a stream, else the end of the answer."""
    streams = decision.answer is not None and bool(decision.asked.body.get("stream"))
    return decision.first_s if streams else decision.end_s


def deliver_refusal(refusal: Refusal, headers: bare_http.Headers = ()) -> Delivery:
    return _json(refusal.status, orjson.dumps(refusal.body()), headers + retry_after(refusal))


def retry_after(refusal: Refusal) -> bare_http.Headers:
    wait_s = refusal.retry_after_s
    if wait_s is None:
        return ()
    whole_s = -int(-wait_s // 1)
    return ("retry-after", str(whole_s)), ("retry-after-ms", f"{wait_s * 1000:.0f}")


def deliver(decision: Decision, model: str, *, in_full: bool = True) -> Delivery:
    """The delivery to an OpenAI client, which gets all fields of a response, or to a peer."""
    kind = decision.fault.kind if decision.fault else None
    if kind == "hang":
        return Delivery("none", [], then="hang")
    if decision.refusal:
        return deliver_refusal(decision.refusal, decision.headers)
    if kind == "wrong_content_type":
        return Delivery("200", [bare_http.head(200, HTML, length=len(PAGE)) + PAGE])
    if decision.asked.body.get("stream"):
        return _stream(decision, model, in_full)
    assert decision.answer
    made = bodies.whole(decision.asked, decision.answer, model, in_full=in_full)
    return _whole(decision, orjson.dumps(made))


def _json(status: int, body: bytes, headers: bare_http.Headers) -> Delivery:
    return Delivery(str(status), [bare_http.head(status, JSON, headers, len(body)) + body])


def _whole(decision: Decision, body: bytes) -> Delivery:
    fault = decision.fault
    half = body[: len(body) // 2]
    match fault and fault.kind:
        case "reset":
            return Delivery("none", [], then="reset")
        case "half_body":
            head = bare_http.head(200, JSON, decision.headers, len(body))
            return Delivery("200", [head + half], then="close")
        case "garbage":
            return _json(200, half + GARBAGE, decision.headers)
        case "slow_drip":
            assert fault
            size = -(-len(body) // NUM_DRIPS)
            drips = [body[start : start + size] for start in range(0, len(body), size)]
            head = bare_http.head(200, JSON, decision.headers, len(body))
            return Delivery("200", [head, *drips], over_s=fault.duration_s)
    return _json(200, body, decision.headers)


def _stream(decision: Decision, model: str, in_full: bool) -> Delivery:
    assert decision.answer
    events = bodies.events(decision.asked, decision.answer, model, in_full=in_full)
    over_s, fault = decision.end_s - decision.first_s, decision.fault
    head = bare_http.head(200, SSE, decision.headers)
    half = [bare_http.chunk(event) for event in events[: len(events) // 2]]
    match fault and fault.kind:
        case "reset":
            return Delivery("200", [head, *half], over_s / 2, "reset")
        case "half_body":
            return Delivery("200", [head, *half], over_s / 2, "close")
        case "garbage":
            spoilt = bare_http.chunk(b"data: " + GARBAGE + b"\n\n")
            return Delivery("200", [head, *half, spoilt, bare_http.LAST_CHUNK], over_s)
        case "slow_drip":
            assert fault
            over_s += fault.duration_s
    chunks = [bare_http.chunk(event) for event in events]
    return Delivery("200", [head, *chunks, bare_http.LAST_CHUNK], over_s)
