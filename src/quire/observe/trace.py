"""OpenTelemetry traces: a span for each request, with a child span for each stage.

`Traces` is an observer: it is called once, when a request has ended, and makes spans with the times of the record.
Attribute names follow OpenTelemetry's conventions for HTTP and generative models; other names begin with `quire`. No
span contains a prompt or an answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from quire import __version__
from quire.config import BadSetting
from quire.observe.access_log import PROBE_PATHS
from quire.observe.record import Observer, Record
from quire.types.request import SamplingParams

PATH = "/v1/traces"  # of a collector
SEND_SECONDS = 5.0  # timeout of a request to the collector
MAX_WAITING = 16_384  # unsent spans; the SDK drops more, and logs that


class Stage(NamedTuple):
    """A part of a request's time, on the record's clock."""

    name: str
    start: float
    end: float


class Traces:
    """An observer that makes spans. A thread of the SDK sends them in batches; `close` sends the rest."""

    def __init__(self, exporter: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        default = Resource.create({"service.name": "quire", "service.version": __version__})
        resource = default.merge(OTELResourceDetector().detect())  # the operator's names take precedence
        self._ids = _Ids()
        # The package is optional, so `_Ids` cannot have its class as a base.
        ids: Any = self._ids
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ids)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING))
        self._tracer = self._provider.get_tracer("quire", __version__)
        self._parent_of = TraceContextTextMapPropagator().extract
        self._otel = trace

    def __call__(self, record: Record) -> None:
        """Make the spans of a request that has ended."""
        if record.path in PROBE_PATHS:
            return
        otel = self._otel
        caller = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        self._ids.next = record.span
        span = self._tracer.start_span(
            _span_name(record),
            self._parent_of(caller),
            otel.SpanKind.SERVER,
            attributes_of(record),
            start_time=_nanoseconds(record, record.arrived),
        )
        if span.is_recording():  # the caller's sampling decision
            if record.error is not None and not 400 <= record.status < 500:  # errors of the client are not ours
                span.set_status(otel.StatusCode.ERROR, record.error)
            if record.first_token is not None:
                span.add_event("first_token", timestamp=_nanoseconds(record, record.first_token))
            context = otel.set_span_in_context(span)
            for name, start, end in stages_of(record):
                stage = self._tracer.start_span(name, context, start_time=_nanoseconds(record, start))
                stage.end(_nanoseconds(record, end))
        span.end(_nanoseconds(record, _end(record)))

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


class _Ids:
    """Makes ids of traces and spans: random ones, or those of a span that other servers have as a parent already."""

    def __init__(self) -> None:
        self.next: tuple[str, str] | None = None  # of the next span, in hex

    def generate_span_id(self) -> int:
        """The id of the next span."""
        span, self.next = self.next, None
        return int(span[1], 16) if span else secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        """The id of the next trace."""
        return int(self.next[0], 16) if self.next else secrets.randbits(128) or 1

    def is_trace_id_random(self) -> bool:
        """Are its trace ids random?"""
        return True


@contextmanager
def open_traces(endpoint: str | None) -> Iterator[tuple[Observer, ...]]:
    """The observer that sends spans to this endpoint; none without an endpoint."""
    if endpoint is None:
        yield ()
        return
    traces = Traces(_exporter(endpoint))
    try:
        yield (traces,)
    finally:
        traces.close()


def stages_of(record: Record) -> Iterator[Stage]:
    """The stages of a request in order: prepare, queue, prompt, output. None if it did not reach the engine."""
    if record.submitted is None:
        return
    end = _end(record)
    prompt_end = end if record.first_token is None else record.first_token
    queue_end = min(record.submitted + record.waited, prompt_end)
    yield Stage("prepare", record.arrived, record.submitted)
    yield Stage("queue", record.submitted, queue_end)
    yield Stage("prompt", queue_end, prompt_end)
    if record.first_token is not None:
        yield Stage("output", prompt_end, end)


def attributes_of(record: Record) -> dict[str, Any]:
    """The attributes of a request's span, by the names of the conventions."""
    facts: dict[str, Any] = {
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status or None,
        "error.type": record.error,
        "quire.request_id": record.request_id,
        "quire.client_id": record.client_id,
        "quire.dialect": record.dialect,
        "quire.key": record.key or None,
    }
    if record.sampling is not None:
        facts |= _request_attributes(record, record.sampling)
    if record.submitted is not None:
        facts |= _response_attributes(record)
    return {name: fact for name, fact in facts.items() if fact is not None}


def _request_attributes(record: Record, sampling: SamplingParams) -> Mapping[str, Any]:
    return {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.streams,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.choice.count": sampling.n if sampling.n != 1 else None,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.seed": sampling.seed,
    }


def _response_attributes(record: Record) -> Mapping[str, Any]:
    first = record.first_token
    return {
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": tuple(record.endings) or None,
        "gen_ai.response.time_to_first_chunk": None if first is None else first - record.arrived,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens or None,
        "quire.usage.forced_tokens": record.forced_tokens,
        "quire.usage.drafted_tokens": record.drafted_tokens,
        "quire.usage.accepted_drafts": record.accepted_drafts,
        "quire.queue_seconds": record.waited,
    }


def _span_name(record: Record) -> str:
    """The span's name. Clients cannot create new names by requesting unknown paths or models."""
    if record.operation is not None:
        return f"{record.operation} {record.model}" if record.model else record.operation
    return record.method if record.status == 404 else f"{record.method} {record.path}"


def _end(record: Record) -> float:
    return record.arrived if record.ended is None else record.ended


def _nanoseconds(record: Record, moment: float) -> int:
    """A moment of the monotonic clock as nanoseconds of the wall clock."""
    return int((record.at + moment - record.arrived) * 1e9)


def _exporter(endpoint: str) -> Any:
    """An exporter that sends spans to a collector with OTLP over HTTP."""
    if not endpoint.startswith(("http://", "https://")):
        raise BadSetting(
            f"otlp_endpoint is {endpoint!r}; it must be a URL such as http://localhost:4318.", field="otlp_endpoint"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise BadSetting(
            "otlp_endpoint needs the packages of the extra otel: run "
            f'`pip install ".[otel]"` in the folder of Quire\'s source ({error}).',
            field="otlp_endpoint",
        ) from None
    return OTLPSpanExporter(endpoint.rstrip("/").removesuffix(PATH) + PATH, timeout=SEND_SECONDS)
