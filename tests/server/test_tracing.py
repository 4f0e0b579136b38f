"""Traces, as a collector receives them."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from live_server import running_server
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from engine.errors import ConfigError
from server.observability.tracing import Tracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(BaseHTTPRequestHandler):
    """What an OTLP collector does at its door."""

    received: ClassVar[list[ExportTraceServiceRequest]] = []
    paths: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.received.append(ExportTraceServiceRequest.FromString(body))
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> list[Span]:
    """All that a server has sent by its end: three requests, one of them refused, one in a client's trace."""
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    with running_server(tmp_path_factory.mktemp("traced"), "--otlp-traces-endpoint", f"http://127.0.0.1:{collector.server_port}") as server:
        server.wait_until_ready()
        body = {"prompt": "A private matter", "max_tokens": 5, "ignore_eos": True, "temperature": 0.5}
        httpx.post(f"{server.url}/v1/completions", json=body, headers={"traceparent": PARENT}).raise_for_status()
        httpx.post(f"{server.url}/v1/chat/completions", json={"messages": []})
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda _: httpx.get(f"{server.url}/health"), range(3)))
        assert server.stop() == 0
    collector.shutdown()
    assert set(Collector.paths) == {"/v1/traces"}
    return [span for request in Collector.received for r in request.resource_spans for s in r.scope_spans for span in s.spans]


def attributes(span: Span) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_each_generating_request_is_a_span_with_its_phases_inside(spans: list[Span]) -> None:
    by_name = {span.name: span for span in spans}
    root = by_name["text_completion SmolLM2-135M-Instruct"]
    phases = [by_name[name] for name in ("queue", "prefill", "decode")]
    assert all(phase.parent_span_id == root.span_id for phase in phases)
    times = [t for phase in phases for t in (phase.start_time_unix_nano, phase.end_time_unix_nano)]
    assert [root.start_time_unix_nano, *times, root.end_time_unix_nano] == sorted(
        [root.start_time_unix_nano, *times, root.end_time_unix_nano]
    )
    assert len(spans) == 5, "probes and other requests are not traced"


def test_a_span_belongs_to_the_trace_that_the_client_is_in(spans: list[Span]) -> None:
    root = next(span for span in spans if span.name.startswith("text_completion"))
    assert root.trace_id.hex() == PARENT.split("-")[1]
    assert root.parent_span_id.hex() == PARENT.split("-")[2]


def test_attributes_have_the_names_of_the_conventions_and_hold_no_text(spans: list[Span]) -> None:
    found = attributes(next(span for span in spans if span.name.startswith("text_completion")))
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.max_tokens"] == found["gen_ai.usage.output_tokens"] == 5
    assert found["gen_ai.usage.input_tokens"] == 3
    assert found["http.response.status_code"] == 200
    assert not any(b"private" in span.SerializeToString() for span in spans)


def test_a_refused_request_is_a_span_without_phases_and_says_why(spans: list[Span]) -> None:
    refused = next(span for span in spans if span.name.startswith("chat"))
    assert attributes(refused)["error.type"] == "400"
    assert not [span for span in spans if span.parent_span_id == refused.span_id]


def test_an_endpoint_that_is_no_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="localhost:4318"):
        Tracer("localhost:4318", "m")
