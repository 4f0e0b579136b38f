"""OpenTelemetry traces: one span for each request that generates, and in it its wait, its prefill and its decoding.

The spans are made when a request has ended, from the times on its record, so that they cost its tokens nothing. Attributes have the names
of OpenTelemetry's semantic conventions for generative AI. Prompts and answers are in none of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from engine.errors import ConfigError
from octavo import __version__
from server.observability.record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
# Seconds for one batch of spans to reach the collector. At the end of the server the last one is waited for.
_EXPORT_SECONDS = 3.0


class Tracer:
    """Sends spans to an OTLP collector over HTTP, in batches from a thread of its own.

    Raises ConfigError when the endpoint is no URL, or OpenTelemetry is not installed. A collector that is away costs spans, and a line in
    the log.
    """

    def __init__(self, endpoint: str, model: str) -> None:
        """`endpoint`: as http://localhost:4318; without a path, the standard one is added. `model`: as answers name it."""
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"otlp_traces_endpoint must be a URL such as http://localhost:4318, but is {endpoint!r}")
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError("traces need OpenTelemetry: pip install 'octavo[otel]'") from error
        url = endpoint if parts.path.strip("/") else endpoint.rstrip("/") + "/v1/traces"
        resource = Resource({"service.name": "octavo", "service.version": __version__}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=_EXPORT_SECONDS)))
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._model = model
        self._extract = TraceContextTextMapPropagator().extract
        self._trace = trace

    def request_ended(self, record: RequestRecord, ended: float) -> None:
        """Trace a request of one of the generating endpoints; `ended` as of `time.perf_counter`."""
        operation = _OPERATIONS.get(record.path)
        if operation is None or record.method != "POST":
            return
        # Wall-clock times are made from one look at that clock, so that a jump of it cannot turn a span around.
        offset = time.time_ns() - int(time.perf_counter() * 1e9)

        def at(moment: float) -> int:
            return offset + int(moment * 1e9)

        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._extract(record.trace_context),
            kind=self._trace.SpanKind.SERVER,
            attributes=_attributes(record, operation, self._model),
            start_time=at(record.started),
        )
        inside = self._trace.set_span_in_context(span)
        for name, start, end in _phases(record, ended):
            self._tracer.start_span(name, context=inside, start_time=at(start)).end(at(end))
        self._set_outcome(span, record)
        span.end(at(ended))

    def shutdown(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _set_outcome(self, span: Span, record: RequestRecord) -> None:
        if record.client_left:
            span.set_attribute("error.type", "client_left")
        elif record.error is not None:
            span.set_attribute("error.type", str(record.status))
            if record.status is None or record.status >= 500 or record.status == 200:  # 200: after the first byte of a stream
                span.set_status(self._trace.StatusCode.ERROR, record.error)


def _phases(record: RequestRecord, ended: float) -> list[tuple[str, float, float]]:
    """Name, start and end of each phase that the request has reached."""
    if record.submitted is None:
        return []
    if record.queue_seconds is None:
        return [("queue", record.submitted, ended)]
    scheduled = record.submitted + record.queue_seconds
    if record.first_token is None:
        return [("queue", record.submitted, scheduled), ("prefill", scheduled, ended)]
    first_token = max(scheduled, record.first_token)
    return [("queue", record.submitted, scheduled), ("prefill", scheduled, first_token), ("decode", first_token, ended)]


def _attributes(record: RequestRecord, operation: str, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": record.finish_reasons,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "http.request.method": record.method,
        "http.response.status_code": record.status,
        "url.path": record.path,
        "octavo.request_id": record.request_id,
        "octavo.key": record.caller.name or None,
    }
    if record.first_token is not None:
        found["octavo.time_to_first_token"] = record.first_token - record.started
    if (params := record.params) is not None:
        found |= {
            "gen_ai.request.choice.count": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.frequency_penalty": params.frequency_penalty,
            "gen_ai.request.presence_penalty": params.presence_penalty,
        }
    return {name: value for name, value in found.items() if value is not None}
