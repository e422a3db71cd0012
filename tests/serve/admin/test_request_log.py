"""/v1/requests: the request log, for admins, if the server keeps one."""

from __future__ import annotations

import pytest

from quire.observe.request_log import RequestLog
from quire.report.trace import parse_trace
from tests.serve.running import running

pytestmark = pytest.mark.e2e

PROMPTS = ["Once upon a time there was a village by the sea.", "Once upon a time"]
ASK = {"prompts": PROMPTS, "max_tokens": 3, "temperature": 0, "ignore_eos": True}


def test_logged_requests_match_the_counted_ones(model_file, tmp_path):
    path = tmp_path / "requests.jsonl"
    with running(model_file, request_log=str(path)) as server:
        log = RequestLog(path)
        server.service.observers = (log,)
        usage = server.http.post("/plain/complete", json=ASK).json()["usage"]
        log.close()
        told = server.http.get("/v1/requests")
        path.unlink()
        assert server.http.get("/v1/requests").text == ""
    assert told.headers["content-type"] == "application/x-ndjson"
    first, second = parse_trace(told.text.splitlines(), "log").requests
    assert first.num_prompt + second.num_prompt == usage["prompt"] and first.tokens[:4] == second.tokens[:4]
    assert (first.model, first.num_output, first.status) == ("toy", 3, 200)


def test_without_a_log_nothing_is_remembered(server):
    server.records.clear()
    server.http.post("/plain/complete", json=ASK)
    assert [each.prompts for each in server.records] == [()]
    refused = server.http.get("/v1/requests")
    assert refused.status_code == 404 and "--request-log FILE" in refused.json()["error"]["message"]
