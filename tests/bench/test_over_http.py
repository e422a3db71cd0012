"""Servers as they are: events cut anywhere, refusals, lost connections, usage in several words."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from quire.bench.asks import Ask, says
from quire.bench.heard import Heard, clock
from quire.bench.measure import run
from quire.bench.over_http import OverHttp, ServerUnusable, Target, reach
from quire.types.errors import InvalidRequest
from tests.bench.wicked import DONE, STREAM, Wicked, event, refusal, said, serving, usage, whole

pytestmark = pytest.mark.e2e

ASK = Ask((says("user", "hi there"),), 5)
ANSWER = (said("one"), said(" two"), said(" three", "length"), usage(9, 4), DONE)


def asked(wicked: Wicked, ask: Ask = ASK, times: int = 1, wait: float = 0.0, **target) -> list[Heard]:
    async def work() -> list[Heard]:
        async with serving(wicked) as url:
            server = OverHttp(Target(url, "m", **target))
            heard = []
            for _ in range(times):
                heard.append(await server.ask(ask, clock()))
                time.sleep(wait)  # the loop stands still: whatever came meanwhile, it does not know yet
            server.close()
            return heard

    return run(work())


def test_an_answer_is_heard_with_its_usage():
    (heard,) = asked(Wicked([[whole(*ANSWER)]]))
    assert "".join(heard.text) == "one two three"
    assert (heard.prompt_tokens, heard.output_tokens, heard.finish, heard.error) == (9, 4, "length", None)
    assert heard.sent <= heard.stamps[0] <= heard.stamps[-1] <= heard.ended
    assert heard.per_token == pytest.approx((heard.stamps[-1] - heard.stamps[0]) / 3)


def test_events_may_be_cut_anywhere():
    raw = whole(*ANSWER)
    pieces = [raw[at : at + 7] for at in range(0, len(raw), 7)]
    (heard,) = asked(Wicked([pieces]))
    assert "".join(heard.text) == "one two three" and heard.output_tokens == 4
    assert len(set(heard.stamps)) == 3


def test_chunks_and_carriage_returns_are_understood():
    body = b"".join(ANSWER).replace(b"\n\n", b"\r\n\r\n")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:50], body[50:])) + b"0\r\n\r\n"
    (heard,) = asked(Wicked([[STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + chunks]]))
    assert "".join(heard.text) == "one two three" and heard.error is None


def test_an_answer_that_ends_with_its_connection_is_whole_if_it_said_so():
    told = [STREAM + b"Connection: close\r\n\r\n" + b"".join(ANSWER)]
    assert asked(Wicked([told], closes=True))[0].error is None
    cut = [STREAM + b"Connection: close\r\n\r\n" + said("one")]
    assert "closed too early" in (asked(Wicked([cut], closes=True))[0].error or "")


def test_a_connection_is_used_again():
    wicked = Wicked([[whole(*ANSWER)]])
    heard = asked(wicked, times=5)
    assert wicked.num_connections == 1 and all(each.is_good for each in heard)


def test_a_connection_that_the_server_closed_meanwhile_is_not_an_error():
    wicked = Wicked([[whole(*ANSWER)]], closes=True)
    assert all(each.error is None for each in asked(wicked, times=3))
    assert all(each.error is None for each in asked(wicked, times=5, wait=0.02))


def test_a_refusal_is_an_error_with_the_servers_words():
    (heard,) = asked(Wicked([[refusal(429, "too many")]]))
    assert heard.error == "429: too many" and not heard.is_good


def test_an_error_inside_of_a_stream_counts():
    (heard,) = asked(Wicked([[whole(said("one"), event(error={"message": "out of memory"}), DONE)]]))
    assert heard.error == "out of memory" and not heard.is_good


def test_what_is_no_event_is_an_error():
    assert "not an event" in (asked(Wicked([[whole(b"data: {oops\n\n")]]))[0].error or "")
    assert "not HTTP" in (asked(Wicked([[b"SSH-2.0-hello\r\n\r\n"]]))[0].error or "")


def test_nobody_is_waited_for_longer_than_allowed():
    (heard,) = asked(Wicked([[STREAM + b"Content-Length: 900\r\n\r\n", said("one")]]), timeout=0.2)
    assert heard.error == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "told", [usage(9, 4, prompt_tokens_details={"cached_tokens": 6}), usage(9, 4) + event(timings={"cache_n": 6})]
)
def test_cached_tokens_are_read_in_the_words_of_several_servers(told):
    assert asked(Wicked([[whole(said("one"), told, DONE)]]))[0].cached_tokens == 6


def test_thoughts_and_calls_of_tools_are_parts_of_an_answer():
    thought = event(choices=[{"delta": {"reasoning_content": "hm"}}])
    call = event(choices=[{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}])
    (heard,) = asked(Wicked([[whole(event(choices=[{"delta": {"role": "assistant"}}]), thought, call, DONE)]]))
    assert len(heard.stamps) == 2 and heard.num_tokens == 2


def test_bodies_say_what_was_asked():
    wicked = Wicked([[whole(*ANSWER)]])
    asked(wicked, key="secret", more={"top_k": 3})
    (body,) = wicked.bodies
    assert body["messages"] == [{"role": "user", "content": "hi there"}]
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"], body["top_k"]) == (5, True, 0.0, 3)
    assert body["stream"] and body["stream_options"] == {"include_usage": True}
    assert b"Authorization: Bearer secret\r\n" in wicked.heads[0]
    asked(wicked, replace(ASK, wants_json=True), api="completions")
    assert wicked.bodies[1]["prompt"] == "hi there" and "ignore_eos" not in wicked.bodies[1]
    recorded = {"model": "theirs", "messages": [], "max_tokens": 3, "user": "x"}
    asked(wicked, Ask(path="/v1/chat/completions", body=recorded))
    assert wicked.bodies[2]["user"] == "x" and wicked.bodies[2]["model"] == "m"


def reached(wicked: Wicked, **target) -> tuple[Target, list[str]]:
    async def work() -> tuple[Target, list[str]]:
        async with serving(wicked) as url:
            return await reach(Target(url, **target))

    return asyncio.run(work())


def models(*names: str) -> bytes:
    body = json.dumps({"data": [{"id": name} for name in names]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_the_first_model_is_asked_if_none_is_named():
    target, notes = reached(Wicked([[models("a", "b")], [whole(*ANSWER)]]))
    assert (target.model, notes) == ("a", [])


def test_a_server_that_refuses_ignore_eos_is_asked_without_it():
    target, notes = reached(Wicked([[refusal(400, "unknown field ignore_eos")], [whole(*ANSWER)]]), model="m")
    assert not target.ignores_end and "ignore_eos" in notes[0]


def test_a_server_without_usage_is_told_of():
    _, notes = reached(Wicked([[whole(said("one"), DONE)]]), model="m")
    assert "no usage" in notes[0]


@pytest.mark.parametrize("answer", [refusal(500, "broken"), whole(DONE)])
def test_a_server_that_cannot_be_measured_is_refused(answer):
    with pytest.raises(ServerUnusable):
        reached(Wicked([[answer]]), model="m")


def test_nobody_there_is_said():
    with pytest.raises(ServerUnusable, match="cannot connect"):
        asyncio.run(reach(Target("http://127.0.0.1:1")))


def test_an_unknown_api_is_refused():
    with pytest.raises(InvalidRequest, match="chat or completions"):
        Target("http://x", api="responses")
