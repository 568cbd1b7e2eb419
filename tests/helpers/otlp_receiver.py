"""A small OTLP receiver: it decodes what it is sent, with OpenTelemetry's own messages."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What came in; `status` is what it answers, and `gate` holds its answers up."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self.headers: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self.spans: list[Any] = []

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def roots(self) -> list[Any]:
        return [span for span in self.spans if not span.parent_span_id]


def attributes(of: Any) -> dict[str, Any]:
    """Name → value of a span's or an event's attributes."""
    found = {}
    for each in of.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        is_list = kind == "array_value"
        found[each.key] = [one.string_value for one in value.values] if is_list else value
    return found


@contextmanager
def receiving() -> Iterator[Receiver]:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as wire

    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            found.asked.set()
            found.gate.wait()
            if found.status == 200:
                request = wire.ExportTraceServiceRequest.FromString(raw)
                found.raw.append(raw)
                found.headers.append({k.lower(): v for k, v in self.headers.items()})
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        found.spans += scope.spans
            self.send_response(found.status)
            self.end_headers()
            self.wfile.write(wire.ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            found.gate.set()
            server.shutdown()
            thread.join()
