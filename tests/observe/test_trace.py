"""Traces: a request is a span with child spans for its stages, in its caller's trace."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from quire.config import BadSetting
from quire.observe.record import Record
from quire.observe.trace import Stage, Traces, attributes_of, open_traces, stages_of
from tests.serve.running import Running, running

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ["prepare", "queue", "prompt", "output"]
WORDS = "Once upon a time there was"
ASK = {"prompts": [WORDS], "max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(model_file) -> Iterator[Running]:
    with running(model_file) as started:
        yield started


@contextmanager
def traced(server: Running) -> Iterator[list[ReadableSpan]]:
    """The spans of the requests made inside, filled in at the end."""
    exporter, spans = InMemorySpanExporter(), []
    traces = Traces(exporter)
    server.records.clear()
    server.service.observers = (traces, server.records.append)
    yield spans
    deadline = time.monotonic() + 10
    while not server.records and time.monotonic() < deadline:
        time.sleep(0.01)
    server.service.observers = (server.records.append,)
    traces.close()
    spans += exporter.get_finished_spans()


def by_name(spans: list[ReadableSpan]) -> dict[str, ReadableSpan]:
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


@pytest.mark.e2e
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_in_its_callers_trace_with_child_spans_for_stages(server, stream):
    head = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "x-request-id": "mine"}
    with traced(server) as spans:
        assert server.http.post("/plain/complete", json=ASK | {"stream": stream}, headers=head).status_code == 200
    whole = by_name(spans).pop("text_completion toy")
    assert {format(span.context.trace_id, "032x") for span in spans} == {TRACE}
    assert (format(whole.parent.span_id, "016x"), whole.kind) == (SPAN, SpanKind.SERVER)
    assert whole.context.trace_state.get("vendor") == "1" and whole.status.status_code is StatusCode.UNSET
    stages = [by_name(spans)[name] for name in STAGES]
    assert {stage.parent.span_id for stage in stages} == {whole.context.span_id} and len(spans) == 5
    edges = [stages[0].start_time, *(stage.end_time for stage in stages)]
    assert edges == sorted(edges) and [stage.start_time for stage in stages] == edges[:-1]
    assert (whole.start_time, whole.end_time) == (edges[0], edges[-1])
    (first,) = whole.events
    assert (first.name, first.timestamp) == ("first_token", stages[-1].start_time)
    assert abs(whole.end_time / 1e9 - time.time()) < 60


@pytest.mark.e2e
def test_a_span_has_parameters_and_token_counts_and_no_text(server):
    server.http.post("/plain/complete", json=ASK)  # now the prompt is cached
    with traced(server) as spans:
        server.http.post("/plain/complete", json=ASK | {"seed": 7, "top_k": 3}, headers={"x-request-id": "mine"})
    attributes = dict(by_name(spans)["text_completion toy"].attributes)
    cached, waited = attributes.pop("gen_ai.usage.cache_read.input_tokens"), attributes.pop("quire.queue_seconds")
    assert 0 < cached < attributes.pop("gen_ai.usage.input_tokens") and waited >= 0
    assert 0 < attributes.pop("gen_ai.response.time_to_first_chunk") < 60
    accepted, drafted = (attributes.pop(f"quire.usage.{name}") for name in ("accepted_drafts", "drafted_tokens"))
    assert 0 <= accepted <= drafted
    assert attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/plain/complete",
        "quire.request_id": "mine",
        "quire.dialect": "plain",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "toy",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.seed": 7,
        "gen_ai.response.model": "toy",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.output_tokens": 5,
        "quire.usage.forced_tokens": 0,
    }
    assert not any("Once upon" in span.to_json() for span in spans)


@pytest.mark.e2e
def test_an_unsampled_caller_gets_no_spans_and_an_invalid_traceparent_a_new_trace(server):
    with traced(server) as spans:
        server.http.post("/plain/complete", json=ASK, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    assert spans == []
    with traced(server) as spans:
        server.http.post("/plain/complete", json=ASK, headers={"traceparent": "00-nonsense"})
    assert by_name(spans)["text_completion toy"].parent is None and len(spans) == 5


@pytest.mark.e2e
@pytest.mark.parametrize(
    "method, path, name, error",
    [
        ("POST", "/plain/complete", "POST /plain/complete", "invalid_request"),
        ("GET", "/plain/one-of-many", "GET", "not_found"),
        ("GET", "/version", "GET /version", None),
    ],
)
def test_a_request_without_a_model_is_one_span_and_a_client_error_is_not_an_error_of_the_span(
    server, method, path, name, error
):
    with traced(server) as spans:
        server.http.request(method, path)
    (span,) = spans
    assert (span.name, span.attributes.get("error.type")) == (name, error)
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.e2e
def test_probes_make_no_spans(server):
    with traced(server) as spans:
        assert server.http.get("/health").status_code == server.http.get("/metrics").status_code == 200
    assert spans == []


def record(**facts: object) -> Record:
    made = Record("id", "POST", "/p", "plain", at=1e9, arrived=10.0, status=200)
    for name, fact in facts.items():
        setattr(made, name, fact)
    return made


@pytest.mark.pure
def test_the_stages_of_a_request_fill_its_time():
    whole = record(submitted=10.5, waited=1.0, first_token=13.0, ended=15.0)
    assert list(stages_of(whole)) == [
        Stage("prepare", 10.0, 10.5),
        Stage("queue", 10.5, 11.5),
        Stage("prompt", 11.5, 13.0),
        Stage("output", 13.0, 15.0),
    ]
    silent = list(stages_of(record(submitted=10.5, waited=9.0, ended=12.0)))
    assert silent[1:] == [Stage("queue", 10.5, 12.0), Stage("prompt", 12.0, 12.0)]
    assert list(stages_of(record(ended=12.0))) == []


@pytest.mark.pure
@pytest.mark.parametrize("status, error", [(503, "overloaded"), (200, "engine_died")])
def test_a_server_error_sets_the_spans_status_even_during_a_stream(status, error):
    exporter = InMemorySpanExporter()
    traces = Traces(exporter)
    traces(record(status=status, error=error, ended=11.0))
    traces.close()
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, error)
    assert (span.start_time, span.end_time) == (10**18, 10**18 + 10**9)


@pytest.mark.pure
def test_a_client_that_disconnected_has_no_status():
    assert "http.response.status_code" not in attributes_of(record(status=0))


class Collector(BaseHTTPRequestHandler):
    """Accepts spans like a collector, and keeps them."""

    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.pure
@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_spans_are_sent_to_a_collector(path):
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    assert exporter.OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    handler = type("Kept", (Collector,), {"received": []})
    with HTTPServer(("127.0.0.1", 0), handler) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            with open_traces(f"http://127.0.0.1:{collector.server_port}{path}") as (traces,):
                traces(record(ended=11.0, status=500, error="internal_error"))
        finally:
            collector.shutdown()
            thread.join()
    ((where, body),) = handler.received
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert where == "/v1/traces" and named["service.name"] == "quire"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["POST /p"]


@pytest.mark.pure
def test_without_an_endpoint_there_is_no_observer_and_an_invalid_url_is_refused():
    with open_traces(None) as traces:
        assert traces == ()
    with pytest.raises(BadSetting, match="localhost:4318"), open_traces("localhost:4318"):
        pass


@pytest.mark.pure
def test_without_the_extra_the_setting_says_what_to_install(tmp_path):
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ModuleNotFoundError('it is not installed')")
    search = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", "--otlp-endpoint", "http://127.0.0.1:1"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": search}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and 'pip install ".[otel]"' in done.stderr and "Traceback" not in done.stderr
    assert "Listening" not in done.stderr


@pytest.mark.pure
@pytest.mark.parametrize("caller", ["", f"00-{TRACE}-{SPAN}-01"])
def test_a_span_whose_ids_other_servers_have_already_keeps_them(caller):
    exporter = InMemorySpanExporter()
    traces = Traces(exporter)
    own = (TRACE, "00f067aa0ba902b7")
    record = Record("r", "POST", "/v1/chat/completions", "openai", 1.0, 1.0, traceparent=caller, span=own, ended=2.0)
    traces(record)
    traces(Record("s", "POST", "/v1/chat/completions", "openai", 1.0, 1.0, ended=2.0))
    traces.close()
    first, second = exporter.get_finished_spans()
    assert (format(first.context.trace_id, "032x"), format(first.context.span_id, "016x")) == own
    assert second.context.trace_id != first.context.trace_id and second.context.span_id != first.context.span_id
