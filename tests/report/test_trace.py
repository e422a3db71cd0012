"""Traces in all formats, and the error for files that are none."""

from __future__ import annotations

import base64
import json
from array import array

import pytest

from quire.report.trace import BadTrace, parse_trace, read_trace

pytestmark = pytest.mark.pure

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}


def trace(*lines: object):
    return parse_trace([line if isinstance(line, str) else json.dumps(line) for line in lines], "t")


def test_bodies_with_times_keep_the_body_and_the_usage():
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "cached_tokens": 3}
    parsed = trace(
        {"time": 1000.5, "path": "/v1/messages", "body": BODY, "usage": usage, "status": 200},
        {"time": 1000.0, "body": {"prompt": "x", "cache_salt": "s"}},
    )
    first, second = parsed.requests
    assert (first.time, second.time, parsed.seconds) == (0.0, 0.5, 0.5) and parsed.has_times
    assert second.body == BODY and (second.num_prompt, second.num_output, second.num_cached) == (5, 7, 3)
    assert (second.model, second.max_tokens, second.path) == ("m", 9, "/v1/messages")
    assert (first.path, first.tenant) == ("/v1/completions", "s")


def test_a_bare_body_is_a_request_without_its_timestamp():
    (request,) = trace(BODY | {"timestamp": 5}).requests
    assert request.body == BODY


def test_a_batch_file_has_no_times():
    parsed = trace(*({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": BODY} for i in range(3)))
    assert not parsed.has_times and [each.path for each in parsed.requests] == ["/v1/completions"] * 3


@pytest.mark.parametrize("when", [1731672000.25, 1731672000250, "2024-11-15T12:00:00.250+00:00"])
def test_times_are_seconds_milliseconds_or_written_out(when):
    parsed = trace({"time": 1731672000.0, "body": BODY}, {"time": when, "body": BODY})
    assert parsed.seconds == pytest.approx(0.25)


@pytest.mark.parametrize(
    "more, form",
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "json_schema"),
        ({"tools": [{}], "tool_choice": "auto"}, None),
        ({"tools": [{}], "tool_choice": "required"}, "tool"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
    ],
)
def test_the_constraint_on_the_answer_is_found(more, form):
    assert trace({"time": 0, "body": BODY | more}).requests[0].form == form


def test_the_request_log_of_quire_has_marks():
    marks = [base64.b64encode(array("I", range(count)).tobytes()).decode() for count in (4, 6)]
    usage = {"prompt_tokens": 10, "completion_tokens": 8, "cached_tokens": 2}
    first, second = trace({"time": 1.0, "model": "m", "tenant": "a", "marks": marks, "usage": usage}).requests
    assert (list(first.tokens), first.has_marks, first.num_prompt, second.num_prompt) == ([0, 1, 2, 3], True, 4, 6)
    assert (first.num_output, first.num_cached, first.tenant) == (4, 1, "a")


def test_arrivals_are_computed_from_the_access_log():
    line = {"time": "2026-11-15T12:00:02.000", "logger": "quire.access", "path": "/v1/completions", "status": 200}
    parsed = trace(
        line | {"prompt_tokens": 7, "output_tokens": 3, "seconds": 2.0, "key": "alice"},
        line | {"path": "/health"},
        line | {"prompt_tokens": 9, "seconds": 0.5, "status": "gone"},
    )
    assert [each.time for each in parsed.requests] == [0.0, 1.5] and parsed.num_skipped == 1
    assert (parsed.requests[0].tenant, parsed.requests[1].status) == ("alice", 0)


def test_hashed_blocks_share_prefixes():
    head = {"timestamp": 1000, "input_length": 1200, "output_length": 9}
    first, second = trace(head | {"hash_ids": [1, 2, 3]}, head | {"hash_ids": [1, 2, 4], "timestamp": 3000}).requests
    assert second.time == 2.0 and len(first.tokens) == 1200
    assert first.tokens[:1024] == second.tokens[:1024] and first.tokens[1024] != second.tokens[1024]


def test_all_forms_of_the_vllm_log_are_read():
    parsed = trace(
        "INFO 12-31 23:59:59 [logger.py:39] Received request chatcmpl-1: prompt: '<s>It\\'s\\n', "
        "params: SamplingParams(n=1, stop=[], max_tokens=500, guided_decoding=None), prompt_token_ids: None.",
        "(APIServer pid=7) INFO 12-31 23:59:59 [logger.py:40] Received request cmpl-2-0: params: SamplingParams("
        "max_tokens=7, structured_outputs=StructuredOutputsParams(json={})), lora_request: None.",
        "DEBUG 12-31 23:59:59 [logger.py:41] Request cmpl-2-0 details: prompt: 'Hi', prompt_token_ids: [4, 5, 6].",
        "INFO 12-31 23:59:59 [async_llm.py:252] Added request chatcmpl-1.",
        "INFO 12-31 23:59:59 [logger.py:71] Generated response cmpl-2-0: output: 'x', output_token_ids: [1, 2], x",
    )
    first, second = parsed.requests
    assert (first.text, first.max_tokens, first.path) == ("<s>It's\n", 500, "/v1/chat/completions")
    assert (list(second.tokens), second.num_output, second.form) == ([4, 5, 6], 2, "structured_outputs")
    assert parsed.kinds == {"vllm": 2} and parsed.num_skipped == 3


@pytest.mark.parametrize("lines", [[], ["hello"], ['{"level": "info"}'], ["[1]"]])
def test_a_file_without_requests_is_refused_with_the_formats(lines):
    with pytest.raises(BadTrace, match="one request a line"):
        trace(*lines)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadTrace, match=r"nothing\.jsonl cannot be read"):
        read_trace(tmp_path / "nothing.jsonl")
