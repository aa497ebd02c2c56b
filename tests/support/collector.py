"""A receiver of traces: the protocol of an OpenTelemetry collector (OTLP over HTTP), decoded with its own classes.

with TraceCollector() as collector:
    ...                              # something sends to collector.url
    (span,) = collector.named("upload")

with otel_collector(collector.url) as url:      # the real one, which sends on what it has received
    ...
"""

import json
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from benchmarks.lab.processes import free_port
from tests.support.tools import otelcol
from tests.support.waiting import wait_until

SERVER, CLIENT = 2, 3
"""Kinds of spans."""
STOP_TIMEOUT_S = 30
POLL_S = 0.01
"""Interval at which its thread looks whether it is to end."""


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as the collector has received it. Ids are in hex; empty: there is none."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    """Ids of the spans linked to."""
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    is_failed: bool


class TraceCollector:
    """A collector on a free port of this machine. `refuses` makes it answer 400, with which nothing is repeated."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.bodies: list[bytes] = []
        """Bodies of the requests, decompressed."""
        self.headers: list[dict[str, str]] = []
        """Headers of the requests, with names in lower case."""
        self.refuses = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> Sequence[ReceivedSpan]:
        """Spans of that name, in the order of their beginnings."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_ns)

    def children(self, parent: ReceivedSpan) -> Sequence[ReceivedSpan]:
        """Children of a span, in the order of their beginnings."""
        return sorted(
            (span for span in self.spans if span.parent_id == parent.span_id and span.trace_id == parent.trace_id),
            key=lambda span: span.start_ns,
        )

    def forget(self) -> None:
        """Drop what was received."""
        self.spans.clear()
        self.bodies.clear()
        self.headers.clear()

    def _receive(self, body: bytes, headers: dict[str, str]) -> None:
        self.bodies.append(body)
        self.headers.append(headers)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_received(span, about) for span in scope.spans]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = decompress(body)
                is_known = self.path == "/v1/traces" and not collector.refuses
                if is_known:
                    collector._receive(body, {name.lower(): value for name, value in self.headers.items()})
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if is_known else 400)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def otel_collector(target: str) -> Iterator[str]:
    """Run an OpenTelemetry Collector that sends what it receives to `target` at once; gives its base URL."""
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": address}}}},
        "exporters": {"otlp_http": {"endpoint": target, "sending_queue": {"enabled": False}}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]}},
        },
    }
    with subprocess.Popen([otelcol(), f"--config=yaml:{json.dumps(settings)}"]) as process:
        try:
            wait_until(lambda: process.poll() is not None or _listens(address), "the collector listens")
            assert process.poll() is None, "the collector has ended"
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _received(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        resource=resource,
        is_failed=span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
