"""Traces as OTLP JSON, which collectors read from files: one request for each line."""

from collections.abc import Sequence
from typing import Any

from ..._version import __version__
from ...types import JsonObject
from .spans import Attributes, Span

KINDS = {"internal": 1, "client": 3}

ERROR = 2
"""Code of the status of a span with an error."""

SCOPE = {"name": "rollout_kit", "version": __version__}


def to_otlp(spans: Sequence[Span], service: str) -> JsonObject:
    """One `ExportTraceServiceRequest`."""
    resource = {"attributes": _attributes({"service.name": service})}
    scoped = {"scope": SCOPE, "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}]}


def _span(span: Span) -> JsonObject:
    end = str(span.end_ns)
    found: JsonObject = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": end,
        "attributes": _attributes(span.attributes),
        "events": [
            {"timeUnixNano": end, "name": event.name, "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "status": {"code": ERROR, "message": span.error} if span.error else {},
    }
    return {name: value for name, value in found.items() if value not in ("", [], {})}


def _attributes(attributes: Attributes) -> list[JsonObject]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Any) -> JsonObject:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {"stringValue": str(value)}
