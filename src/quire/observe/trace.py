"""Traces: a span for each request that a server has answered, and below it one for each stage. OpenTelemetry's.

`Traces` is an observer: it hears of a request once, when that has ended, and its spans get the times of the record.
Names are those of OpenTelemetry's conventions for HTTP and for generative models; what these lack begins with `quire`.
No span holds a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from quire import __version__
from quire.config import BadSetting
from quire.observe.access_log import QUIET
from quire.observe.record import Observer, Record
from quire.types.request import SamplingParams

PATH = "/v1/traces"  # where a collector takes spans
SEND_SECONDS = 5.0  # that a collector may take for some of them
MAX_WAITING = 16_384  # spans that have not been sent yet; the SDK drops what is more, and says so


class Stage(NamedTuple):
    """A part of a request's time, on the record's clock."""

    name: str
    start: float
    end: float


class Traces:
    """An observer. A thread of the SDK's sends what it has to tell, now and then; `close` sends the rest."""

    def __init__(self, exporter: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        own = Resource.create({"service.name": "quire", "service.version": __version__})
        resource = own.merge(OTELResourceDetector().detect())  # what the operator calls it goes before
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING))
        self._tracer = self._provider.get_tracer("quire", __version__)
        self._parent_of = TraceContextTextMapPropagator().extract
        self._otel = trace

    def __call__(self, record: Record) -> None:
        """Tell of a request that has ended."""
        if record.path in QUIET:
            return
        otel = self._otel
        caller = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        span = self._tracer.start_span(
            _name(record),
            self._parent_of(caller),
            otel.SpanKind.SERVER,
            attributes_of(record),
            start_time=_nanoseconds(record, record.arrived),
        )
        if span.is_recording():  # else the caller does not want it
            if record.error is not None and not 400 <= record.status < 500:  # those are the client's own
                span.set_status(otel.StatusCode.ERROR, record.error)
            if record.first_token is not None:
                span.add_event("first_token", timestamp=_nanoseconds(record, record.first_token))
            inside = otel.set_span_in_context(span)
            for name, start, end in stages_of(record):
                stage = self._tracer.start_span(name, inside, start_time=_nanoseconds(record, start))
                stage.end(_nanoseconds(record, end))
        span.end(_nanoseconds(record, _end(record)))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


@contextmanager
def traces_to(endpoint: str | None) -> Iterator[tuple[Observer, ...]]:
    """The observers that this setting asks for: one, or none."""
    if endpoint is None:
        yield ()
        return
    traces = Traces(_exporter(endpoint))
    try:
        yield (traces,)
    finally:
        traces.close()


def stages_of(record: Record) -> Iterator[Stage]:
    """What a request did, one after another: prepare, queue, prompt, output. None if it did not come to the engine."""
    if record.submitted is None:
        return
    end = _end(record)
    computed = end if record.first_token is None else record.first_token
    began = min(record.submitted + record.waited, computed)
    yield Stage("prepare", record.arrived, record.submitted)
    yield Stage("queue", record.submitted, began)
    yield Stage("prompt", began, computed)
    if record.first_token is not None:
        yield Stage("output", computed, end)


def attributes_of(record: Record) -> dict[str, Any]:
    """All that is known of a request, by the names of the conventions."""
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
        facts |= _asked(record, record.sampling)
    if record.submitted is not None:
        facts |= _answered(record)
    return {name: fact for name, fact in facts.items() if fact is not None}


def _asked(record: Record, sampling: SamplingParams) -> Mapping[str, Any]:
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


def _answered(record: Record) -> Mapping[str, Any]:
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
        "quire.queue_seconds": record.waited,
    }


def _name(record: Record) -> str:
    """One of few: nobody can make new ones by asking for paths or models that are not there."""
    if record.operation is not None:
        return f"{record.operation} {record.model}" if record.model else record.operation
    return record.method if record.status == 404 else f"{record.method} {record.path}"


def _end(record: Record) -> float:
    return record.arrived if record.ended is None else record.ended


def _nanoseconds(record: Record, moment: float) -> int:
    """A moment of the record's clock on that of the wall."""
    return int((record.at + moment - record.arrived) * 1e9)


def _exporter(endpoint: str) -> Any:
    """Sends spans to a collector, in OpenTelemetry's own protocol over HTTP."""
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
