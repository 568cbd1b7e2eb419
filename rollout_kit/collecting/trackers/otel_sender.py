"""Sends traces to an OTLP receiver over HTTP, by OpenTelemetry's own exporter."""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..._version import __version__
from ...analysis.export.spans import Span

PATH = "/v1/traces"
"""Path of a receiver, after its base URL."""

TRY_S = 10.0
"""Time limit of one request with its repetitions."""


AROUND = re.compile(
    r"^Transient error | encountered while exporting .*$|^Failed to export .*?: ", re.DOTALL
)
"""The words around a reason that the exporter logs."""


class NotSent(Exception):
    """The receiver did not take the spans; the text says why."""


class SpanSender:
    """Sends to one receiver. `headers` are added to those of `OTEL_EXPORTER_OTLP_HEADERS`."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        url = endpoint if endpoint.endswith(PATH) else endpoint.rstrip("/") + PATH
        self._exporter = trace_exporter.OTLPSpanExporter(
            endpoint=url, headers=dict(headers), timeout=TRY_S
        )
        self._resource = Resource.create({"service.name": service})
        self._scope = InstrumentationScope("rollout_kit", __version__)
        self._heard = _Heard()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._heard)
        logger.propagate = False

    def send(self, spans: Iterable[Span]) -> None:
        """Send all at once; NotSent if they were not accepted."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._heard.text = ""
        found = self._exporter.export([self._readable(span) for span in spans])
        if found is not SpanExportResult.SUCCESS:
            raise NotSent(AROUND.sub("", self._heard.text) or "it was refused")

    def _readable(self, span: Span) -> Any:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import Event, ReadableSpan

        status = trace.Status()
        if span.error:
            status = trace.Status(trace.StatusCode.ERROR, span.error)
        return ReadableSpan(
            span.name,
            _context(span.trace_id, span.span_id),
            _context(span.trace_id, span.parent_id) if span.parent_id else None,
            self._resource,
            span.attributes,
            [Event(event.name, event.attributes, span.end_ns) for event in span.events],
            kind=trace.SpanKind[span.kind.upper()],
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


class _Heard(logging.Handler):
    """The first message that the exporter logs about a request: it returns no reason."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


def _context(trace_id: str, span_id: str) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=sampled)
