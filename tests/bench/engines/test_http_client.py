"""Real servers' behaviour: events split anywhere, refusals, lost connections, several forms of usage."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from quire.bench.engines.http_client import HttpEngineClient, HttpTarget, ServerUnusable, probe_server
from quire.bench.load.event_loop import run_async
from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest, chat_message
from quire.bench.machine.clock import clock
from quire.types.errors import InvalidRequest
from tests.bench.engines.scripted_server import (
    DONE,
    STREAM,
    ScriptedServer,
    event,
    refusal,
    response,
    serving,
    text_event,
    usage,
)

pytestmark = pytest.mark.e2e

REQUEST = LoadRequest((chat_message("user", "hi there"),), 5)
ANSWER = (text_event("one"), text_event(" two"), text_event(" three", "length"), usage(9, 4), DONE)


def send(
    script: ScriptedServer, request: LoadRequest = REQUEST, times: int = 1, wait: float = 0.0, **target
) -> list[RequestResult]:
    async def work() -> list[RequestResult]:
        async with serving(script) as url:
            client = HttpEngineClient(HttpTarget(url, "m", **target))
            results = []
            for _ in range(times):
                results.append(await client.send(request, clock()))
                time.sleep(wait)  # blocks the event loop: it has not yet seen what arrived meanwhile
            client.close()
            return results

    return run_async(work())


def test_an_answer_is_recorded_with_its_usage():
    (result,) = send(ScriptedServer([[response(*ANSWER)]]))
    assert "".join(result.text) == "one two three"
    assert (result.prompt_tokens, result.output_tokens, result.finish_reason, result.error) == (9, 4, "length", None)
    assert result.sent <= result.event_times[0] <= result.event_times[-1] <= result.ended
    assert result.per_token == pytest.approx((result.event_times[-1] - result.event_times[0]) / 3)


def test_events_may_be_split_anywhere():
    raw = response(*ANSWER)
    pieces = [raw[at : at + 7] for at in range(0, len(raw), 7)]
    (result,) = send(ScriptedServer([pieces]))
    assert "".join(result.text) == "one two three" and result.output_tokens == 4
    assert len(set(result.event_times)) == 3


def test_chunks_and_carriage_returns_are_parsed():
    body = b"".join(ANSWER).replace(b"\n\n", b"\r\n\r\n")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:50], body[50:])) + b"0\r\n\r\n"
    (result,) = send(ScriptedServer([[STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + chunks]]))
    assert "".join(result.text) == "one two three" and result.error is None


def test_an_answer_that_ends_with_its_connection_is_complete_after_done():
    events = [STREAM + b"Connection: close\r\n\r\n" + b"".join(ANSWER)]
    assert send(ScriptedServer([events], closes=True))[0].error is None
    cut = [STREAM + b"Connection: close\r\n\r\n" + text_event("one")]
    assert "closed too early" in (send(ScriptedServer([cut], closes=True))[0].error or "")


def test_a_connection_is_reused():
    script = ScriptedServer([[response(*ANSWER)]])
    results = send(script, times=5)
    assert script.num_connections == 1 and all(each.is_success for each in results)


def test_a_request_on_a_stale_connection_is_sent_again():
    script = ScriptedServer([[response(*ANSWER)]], closes=True)
    assert all(each.error is None for each in send(script, times=3))
    assert all(each.error is None for each in send(script, times=5, wait=0.02))


def test_a_refusal_is_an_error_with_the_servers_message():
    (result,) = send(ScriptedServer([[refusal(429, "too many")]]))
    assert result.error == "429: too many" and not result.is_success


def test_an_error_inside_a_stream_is_recorded():
    (result,) = send(ScriptedServer([[response(text_event("one"), event(error={"message": "out of memory"}), DONE)]]))
    assert result.error == "out of memory" and not result.is_success


def test_invalid_data_is_an_error():
    assert "not an event" in (send(ScriptedServer([[response(b"data: {oops\n\n")]]))[0].error or "")
    assert "not HTTP" in (send(ScriptedServer([[b"SSH-2.0-hello\r\n\r\n"]]))[0].error or "")


def test_an_answer_times_out():
    (result,) = send(ScriptedServer([[STREAM + b"Content-Length: 900\r\n\r\n", text_event("one")]]), timeout=0.2)
    assert result.error == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "events", [usage(9, 4, prompt_tokens_details={"cached_tokens": 6}), usage(9, 4) + event(timings={"cache_n": 6})]
)
def test_cached_tokens_are_read_in_the_forms_of_several_servers(events):
    assert send(ScriptedServer([[response(text_event("one"), events, DONE)]]))[0].cached_tokens == 6


def test_reasoning_and_tool_calls_are_output():
    thought = event(choices=[{"delta": {"reasoning_content": "hm"}}])
    call = event(choices=[{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}])
    (result,) = send(
        ScriptedServer([[response(event(choices=[{"delta": {"role": "assistant"}}]), thought, call, DONE)]])
    )
    assert len(result.event_times) == 2 and result.num_tokens == 2


def test_tokens_without_text_are_output_if_the_server_sends_their_ids():
    empty = event(choices=[{"text": "", "token_ids": [5]}])
    (result,) = send(ScriptedServer([[response(event(choices=[{"text": ""}]), empty, usage(9, 1), DONE)]]))
    assert result.is_success and len(result.event_times) == 1


def test_bodies_have_the_fields_of_request_and_target():
    script = ScriptedServer([[response(*ANSWER)]])
    send(script, key="secret", extra_fields={"top_k": 3})
    (body,) = script.bodies
    assert body["messages"] == [{"role": "user", "content": "hi there"}]
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"], body["top_k"]) == (5, True, 0.0, 3)
    assert body["stream"] and body["stream_options"] == {"include_usage": True}
    assert b"Authorization: Bearer secret\r\n" in script.heads[0]
    send(script, replace(REQUEST, expects_json=True), api="completions")
    assert script.bodies[1]["prompt"] == "hi there" and "ignore_eos" not in script.bodies[1]
    tokens = LoadRequest(prompt=(5, 6), max_tokens=1, extra_fields={"model": "other"})
    send(script, tokens)
    assert script.bodies[2]["prompt"] == [5, 6] and script.bodies[2]["model"] == "other"
    assert script.heads[2].startswith(b"POST /v1/completions ")
    recorded = {"model": "theirs", "messages": [], "max_tokens": 3, "user": "x"}
    send(script, LoadRequest(path="/v1/chat/completions", body=recorded))
    assert script.bodies[3]["user"] == "x" and script.bodies[3]["model"] == "m"


def probe(script: ScriptedServer, **target) -> tuple[HttpTarget, list[str]]:
    async def work() -> tuple[HttpTarget, list[str]]:
        async with serving(script) as url:
            return await probe_server(HttpTarget(url, **target))

    return asyncio.run(work())


def models(*names: str) -> bytes:
    body = json.dumps({"data": [{"id": name} for name in names]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_the_first_listed_model_is_used_if_none_is_named():
    target, notes = probe(ScriptedServer([[models("a", "b")], [response(*ANSWER)]]))
    assert (target.model, notes) == ("a", [])


def test_a_server_that_refuses_ignore_eos_is_sent_requests_without_it():
    target, notes = probe(ScriptedServer([[refusal(400, "unknown field ignore_eos")], [response(*ANSWER)]]), model="m")
    assert not target.ignore_eos and "ignore_eos" in notes[0]


def test_missing_usage_is_noted():
    _, notes = probe(ScriptedServer([[response(text_event("one"), DONE)]]), model="m")
    assert "no usage" in notes[0]


@pytest.mark.parametrize("answer", [refusal(500, "broken"), response(DONE)])
def test_a_server_that_cannot_be_measured_is_refused(answer):
    with pytest.raises(ServerUnusable):
        probe(ScriptedServer([[answer]]), model="m")


def test_a_refused_connection_is_reported():
    with pytest.raises(ServerUnusable, match="cannot connect"):
        asyncio.run(probe_server(HttpTarget("http://127.0.0.1:1")))


def test_an_unknown_api_is_refused():
    with pytest.raises(InvalidRequest, match="chat or completions"):
        HttpTarget("http://x", api="responses")
