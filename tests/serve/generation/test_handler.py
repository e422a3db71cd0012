"""The one handler, over real sockets and with the real model: streams, whole answers, stops, scores, echoes, pins."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from quire.engine.llm import LLM
from quire.types.request import SamplingParams
from tests.serve.running import Running

pytestmark = pytest.mark.e2e

GREEDY = {"temperature": 0, "max_tokens": 24}
QUESTION = [{"role": "user", "text": "What is the capital of France?"}]


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def chat(server: Running, **more: Any) -> httpx.Response:
    return server.http.post("/plain/chat", json={"messages": QUESTION} | GREEDY | more)


def complete(server: Running, **more: Any) -> httpx.Response:
    return server.http.post("/plain/complete", json={"prompts": ["Once upon a time"]} | GREEDY | more)


def text_of(said: list[dict[str, Any]], choice: int = 0) -> str:
    deltas = [each["TextDelta"] for each in said if "TextDelta" in each]
    return "".join(delta["text"] for delta in deltas if delta["choice"] == choice)


@pytest.fixture(scope="module")
def offline(model_file):
    with LLM(model_file, num_blocks=200, max_context=1024) as llm:
        yield llm


def test_a_stream_the_whole_answer_and_the_python_api_agree(server, offline):
    sampling = SamplingParams(temperature=0, max_tokens=24)
    (expected,) = offline.chat([{"role": "user", "content": QUESTION[0]["text"]}], sampling)
    (whole,) = lines(chat(server))
    assert whole["choices"][0]["text"] == expected.text
    assert whole["choices"][0]["tokens"] == list(expected.tokens)
    assert whole["usage"]["output"] == len(expected.tokens) and whole["usage"]["prompt"] == len(expected.prompt_tokens)
    said = lines(chat(server, stream=True))
    assert text_of(said) == expected.text
    assert [token for each in said for token in each.get("TextDelta", {}).get("tokens", ())] == list(expected.tokens)
    assert list(said[0]) == ["open"] and said[-2]["Finish"] == {"choice": 0, "ending": "length", "stop": None}
    assert said[-1]["usage"]["cached"] > 0, "the same prompt was asked before"


def test_a_stream_comes_in_pieces_and_not_at_the_end(server):
    pieces, times = [], []
    body = {
        "messages": QUESTION,
        "stream": True,
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
        "speculate": "off",
    }
    with server.http.stream("POST", "/plain/chat", json=body) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        for piece in response.iter_raw():
            pieces.append(piece)
            times.append(time.monotonic())
    assert len(pieces) > 10 and times[-1] > times[0]


def test_a_stop_string_ends_the_text_before_it_and_the_request_in_the_engine(server):
    before = server.counters()
    (whole,) = lines(complete(server, stop=["the"], max_tokens=500, ignore_eos=True))
    said = lines(complete(server, stop=["the"], max_tokens=500, ignore_eos=True, stream=True))
    finish = said[-2]["Finish"]
    assert finish["ending"] == whole["choices"][0]["ending"] == "stop_text"
    assert finish["stop"] == whole["choices"][0]["stop"] == "the"
    assert text_of(said) == whole["choices"][0]["text"] and "the" not in text_of(said)
    after = server.counters()
    assert after.num_running == 0 and after.output_tokens - before.output_tokens < 200


def test_a_stop_token_ends_the_answer_and_its_text_is_left_out(server):
    (plain,) = lines(complete(server))
    fifth = plain["choices"][0]["tokens"][4]
    (stopped,) = lines(complete(server, stop_token_ids=[fifth]))
    choice = stopped["choices"][0]
    assert choice["ending"] == "stop_text" and choice["stop"] == fifth and choice["tokens"][-1] == fifth
    assert plain["choices"][0]["text"].startswith(choice["text"]) and len(choice["tokens"]) <= 5


def test_prompts_times_samples_run_together_and_come_in_their_order(server):
    prompts = ["One", "Two", "Three"]
    (whole,) = lines(complete(server, prompts=prompts, n=2, seed=1, temperature=1.0, max_tokens=5, ignore_eos=True))
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert whole["usage"]["output"] == 30
    said = lines(
        complete(server, prompts=prompts, n=2, seed=1, temperature=1.0, max_tokens=5, ignore_eos=True, stream=True)
    )
    assert [text_of(said, choice) for choice in range(6)] == [choice["text"] for choice in whole["choices"]]
    assert sum("Finish" in each for each in said) == 6


def test_an_echo_tells_the_prompt_with_its_scores_before_every_sample(server, offline):
    asked = {"echo": True, "n": 2, "seed": 3, "temperature": 1.0, "max_tokens": 3, "prompt_logprobs": 1, "logprobs": 2}
    (whole,) = lines(complete(server, **asked))
    said = lines(complete(server, **asked, stream=True))
    (expected,) = offline.generate(
        ["Once upon a time"], SamplingParams(n=2, seed=3, max_tokens=3, prompt_logprobs=1, logprobs=2)
    )
    for choice in whole["choices"]:
        echo = choice["prompt"]
        assert echo["text"] == "Once upon a time" and echo["tokens"] == list(expected.prompt_tokens)
        assert echo["logprobs"][0]["logprob"] is None
        told = [each["logprob"] for each in echo["logprobs"][1:]]
        assert told == pytest.approx([each.logprob for each in expected.prompt_logprobs])
        assert [len(each["top"]) for each in choice["logprobs"]] == [2, 2, 2]
    for index in range(2):
        mine = [next(iter(each)) for each in said if next(iter(each.values())).get("choice") == index]
        assert mine[0] == "PromptEcho" and mine[-1] == "Finish"


def test_scored_tokens_spell_the_text(server):
    (whole,) = lines(complete(server, logprobs=1, max_tokens=6, ignore_eos=True))
    choice = whole["choices"][0]
    assert "".join(each["text"] for each in choice["logprobs"]) == choice["text"]
    assert bytes(byte for each in choice["logprobs"] for byte in each["bytes"]).decode() == choice["text"]
    assert all(each["logprob"] <= 0 and each["top"][0]["logprob"] >= each["logprob"] for each in choice["logprobs"])


def test_pinned_tokens_are_counted_once_and_then_hit(server):
    messages = [
        {"role": "system", "text": "You are a careful clerk. " * 20, "keep": 60},
        {"role": "user", "text": "Say yes."},
    ]
    (first,) = lines(chat(server, messages=messages, max_tokens=2))
    (second,) = lines(chat(server, messages=messages, max_tokens=2))
    assert first["usage"]["prompt"] > first["usage"]["kept"] > 80
    assert second["usage"]["kept"] == 0 and second["usage"]["cached"] >= first["usage"]["kept"]


def test_the_last_message_is_continued(server, offline):
    begun = "The capital of France is the city of"
    question = [{"role": "user", "content": QUESTION[0]["text"]}]
    prompt = offline.tokenizer.encode(offline.template.render(question) + begun, special=True, add_bos=False)
    (expected,) = offline.generate([prompt], SamplingParams(temperature=0, max_tokens=4))
    messages = [*QUESTION, {"role": "assistant", "text": begun}]
    (whole,) = lines(chat(server, messages=messages, continue_last=True, max_tokens=4))
    assert whole["choices"][0]["text"] == expected.text


def test_another_salt_has_no_cache_hits(server):
    body = {"prompts": ["A quick brown fox jumps over the lazy dog, and then it jumps back again, twice. "]}
    (first,) = lines(complete(server, **body))
    (same,) = lines(complete(server, **body))
    (other,) = lines(complete(server, **body, salt="another"))
    assert first["usage"]["cached"] == other["usage"]["cached"] == 0 < same["usage"]["cached"]


def test_a_request_for_no_prompt_is_answered_with_nothing(server):
    (whole,) = lines(complete(server, prompts=[]))
    assert whole["choices"] == [] and whole["usage"]["prompt"] == 0


def test_tokens_are_counted_without_running_the_model(server):
    before = server.counters().num_accepted
    (counted,) = lines(server.http.post("/plain/count", json={"messages": QUESTION}))
    (whole,) = lines(chat(server, max_tokens=1))
    assert counted["count"] == whole["usage"]["prompt"] and server.counters().num_accepted == before + 1


def test_long_prompts_are_tokenized_beside_the_loop_with_the_same_result(server, offline):
    words = "word " * 5000
    (counted,) = lines(server.http.post("/plain/count", json={"messages": [{"role": "user", "text": words}]}))
    rendered = offline.template.render([{"role": "user", "content": words}])
    assert counted["count"] == len(offline.tokenizer.encode(rendered, special=True, add_bos=False))


def test_an_answer_follows_its_grammar_and_forced_tokens_are_counted(server):
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 12}, "is_large": {"type": "boolean"}},
        "required": ["capital", "is_large"],
        "additionalProperties": False,
    }
    form = {"kind": "json_schema", "text": json.dumps(schema)}
    for stream in (False, True):
        said = lines(chat(server, constraint=form, max_tokens=100, stream=stream))
        text = text_of(said) if stream else said[0]["choices"][0]["text"]
        assert set(json.loads(text)) == {"capital", "is_large"}
        assert 0 < said[-1]["usage"]["forced"] < said[-1]["usage"]["output"]
    refused = chat(server, constraint={"kind": "json_schema", "text": '{"type": "nonsense"}'}, stream=True)
    assert refused.status_code == 400


def test_a_call_that_is_required_is_made_and_its_arguments_follow_the_schema(server):
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tools = [{"name": "weather", "description": "Today's weather.", "parameters": parameters}]
    asked = {"tools": tools, "tool_choice": {"mode": "required", "parallel": False}, "max_tokens": 100}
    (whole,) = lines(chat(server, **asked))
    (call,) = whole["choices"][0]["tool_calls"]
    assert call["name"] == "weather" and json.loads(call["arguments"])["city"] in ("Paris", "Rome")
    assert whole["choices"][0]["ending"] == "tool_calls"
    said = lines(chat(server, **asked, stream=True))
    deltas = [each["ToolDelta"] for each in said if "ToolDelta" in each]
    assert deltas[0]["name"] == "weather" and "".join(d["arguments"] for d in deltas) == call["arguments"]
    (same,) = lines(chat(server, **asked, constraint={"kind": "json_object"}))  # of the text, and there is none
    assert len(same["choices"][0]["tool_calls"]) == 1
    both = chat(server, **asked, constraint={"kind": "regex", "text": "a+"})
    assert both.status_code == 400 and both.json()["field"] == "tool_choice"


@pytest.mark.parametrize(
    "more, status, code",
    [
        ({"prompts": ["word " * 3000]}, 400, "context_too_long"),
        ({"prompts": [""]}, 400, "invalid_request"),
        ({"prompts": [[1, 2, 9999999]]}, 400, "invalid_request"),
        ({"model": "nobody"}, 404, "model_not_found"),
        ({"timeout": 0.0001, "max_tokens": 500, "ignore_eos": True}, 504, "deadline_exceeded"),
        ({"no_such_field": 1}, 400, "invalid_request"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_cannot_be_served_gets_the_status_of_its_error_also_in_a_stream(
    server, more, status, code, stream
):
    response = complete(server, stream=stream, **more)
    assert (response.status_code, response.json()["plain_error"]) == (status, code)


def test_a_deadline_in_the_middle_of_a_stream_ends_it_with_an_error(server):
    said = lines(complete(server, stream=True, timeout=0.3, max_tokens=900, ignore_eos=True))
    assert said[-1] == {"error": "deadline_exceeded"} and text_of(said)


def test_a_model_is_found_by_its_name_an_alias_or_without_a_name(server):
    for name in ("toy", "other", ""):
        assert complete(server, model=name, max_tokens=1).status_code == 200
    refused = complete(server, model="toys")
    assert refused.status_code == 404 and "toy" in refused.json()["message"] and refused.json()["field"] == "model"
