"""The libraries that people use, against a whole server with the real model."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_metrics

from quire.engine import process
from quire.scheduler.step_costs import StepCosts
from quire.serve.http.app import all_dialects
from quire.serve.residency.engines import EngineLauncher
from quire.text.infill import Infill
from tests.serve.running import running

anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")

pytestmark = pytest.mark.e2e

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def with_free_drafts(inward: str, outward: str) -> None:
    """Run the server's engine. Drafts are chosen as if every step took the same time, so speed changes no count."""
    StepCosts.seconds = lambda costs, num_tokens: 1.0
    process.main(inward, outward)


@pytest.fixture(scope="module")
def server(model_file):
    launcher = EngineLauncher(entry=f"{__name__}:{with_free_drafts.__name__}")
    with running(model_file, all_dialects(), launcher=launcher) as made:
        yield made


@pytest.fixture(scope="module")
def by_openai(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_chat_streams_what_it_answers_whole(by_openai):
    asked = {"model": "toy", "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    whole = by_openai.chat.completions.create(**asked)
    assert whole.choices[0].message.content and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 16 and whole.model == "toy"
    chunks = list(by_openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_openai_completions_have_logprobs_and_echo(by_openai):
    done = by_openai.completions.create(
        model="toy", prompt=["Once upon", "The sky is"], max_tokens=4, temperature=0, logprobs=2, echo=True
    )
    assert [choice.text.split()[0] for choice in done.choices] == ["Once", "The"]
    assert done.choices[0].logprobs.token_logprobs[0] is None
    assert len(done.choices[0].logprobs.tokens) == len(done.choices[0].logprobs.token_logprobs)


def test_openai_is_told_of_models_and_of_errors(by_openai):
    assert [model.id for model in by_openai.models.list()] == ["toy"]
    assert by_openai.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError, match="nobody"):
        by_openai.chat.completions.create(model="nobody", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="context"):
        by_openai.completions.create(model="toy", prompt="word " * 3000)


def test_openai_responses_stream(by_openai):
    asked = {"model": "toy", "input": "Say hello.", "max_output_tokens": 16, "temperature": 0}
    with by_openai.responses.stream(**asked) as stream:
        events = list(stream)
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[0].type == "response.created" and said == by_openai.responses.create(**asked).output_text
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_tools_are_shown_to_the_model_and_not_required_to_be_called(by_openai):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    asked = {"model": "toy", "messages": QUESTION, "max_tokens": 8, "temperature": 0}
    without = by_openai.chat.completions.create(**asked)
    shown = by_openai.chat.completions.create(**asked, tools=[tool])
    hidden = by_openai.chat.completions.create(**asked, tools=[tool], tool_choice="none")
    assert shown.usage.prompt_tokens > without.usage.prompt_tokens == hidden.usage.prompt_tokens
    assert shown.choices[0].finish_reason in ("length", "stop", "tool_calls")


def test_anthropic_messages_stream_and_count(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        asked = {"model": "toy", "messages": QUESTION, "max_tokens": 16, "extra_body": {"temperature": 0}}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
        assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 16
        counted = client.messages.count_tokens(model="toy", messages=QUESTION)
        assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**asked | {"model": "nobody"})


def test_anthropic_streams_begin_with_the_real_number_of_input_tokens(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        asked = {"model": "toy", "messages": QUESTION, "max_tokens": 4}
        counted = client.messages.count_tokens(model="toy", messages=QUESTION).input_tokens
        events = list(client.messages.create(**asked, stream=True))
        start, delta = (next(e for e in events if e.type == kind) for kind in ("message_start", "message_delta"))
        for usage in (start.message.usage, delta.usage):
            assert usage.input_tokens + usage.cache_read_input_tokens == counted


def test_anthropic_lists_and_shows_models_in_its_own_shape(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        (listed,) = client.models.list()
        assert (listed.id, listed.type, listed.display_name) == ("toy", "model", "toy")
        assert listed.created_at.year > 2020 and listed.lifecycle == "active"
        first = client.models.list(limit=1)
        assert (first.has_more, first.first_id, first.last_id) == (False, "toy", "toy")
        assert list(client.models.list(after_id="toy")) == []
        assert client.models.retrieve("toy") == listed
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.models.retrieve("nobody")
        assert missing.value.body["error"]["type"] == "not_found_error"
        with pytest.raises(anthropic.BadRequestError, match="limit"):
            client.models.list(limit=0)


def test_without_a_model_the_only_one_answers(server):
    for path, body in {
        "/v1/chat/completions": {"messages": QUESTION, "max_tokens": 1},
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/responses": {"input": "a", "max_output_tokens": 1},
        "/v1/messages": {"messages": QUESTION, "max_tokens": 1},
    }.items():
        answer = server.http.post(path, json=body)
        assert answer.status_code == 200 and answer.json()["model"] == "toy", answer.text


def test_openai_answers_have_the_fingerprint_of_what_answered(by_openai):
    asked = {"model": "toy", "messages": QUESTION, "max_tokens": 2}
    marks = {chunk.system_fingerprint for chunk in by_openai.chat.completions.create(**asked, stream=True)}
    marks.add(by_openai.chat.completions.create(**asked).system_fingerprint)
    marks.add(by_openai.completions.create(model="toy", prompt="a", max_tokens=1).system_fingerprint)
    assert len(marks) == 1 and marks.pop().startswith("fp_")


def test_a_model_with_the_tokens_fills_in_the_middle(server, by_openai):
    model_text = server.service.models._readings["toy"].task.result().text
    with pytest.raises(openai.BadRequestError, match="filling in the middle"):
        by_openai.completions.create(model="toy", prompt="a", suffix="b")
    model_text.infill = Infill(5, 6, 7, ends=(7,))
    try:
        asked = {"model": "toy", "prompt": "def f(", "max_tokens": 3, "temperature": 0}
        done = by_openai.completions.create(**asked, suffix="return x", extra_body={"return_token_ids": True})
        tokens = done.choices[0].model_extra["prompt_token_ids"]
        assert (tokens[0], tokens[-1]) == (5, 7) and model_text.decode(tokens[1:-1]).endswith("return x")
        with ollama.Client(host=server.url) as client:
            options = {"num_predict": 3, "temperature": 0}
            made = client.generate("toy", "def f(", suffix="return x", options=options)
            assert made.response == done.choices[0].text and made.prompt_eval_count == len(tokens)
    finally:
        model_text.infill = None


def test_ollama_chat_generate_and_lists(server):
    with ollama.Client(host=server.url) as client:
        check_ollama(client)


def check_ollama(client):
    options = {"num_predict": 12, "temperature": 0}
    whole = client.chat("toy", QUESTION, options=options)
    pieces = list(client.chat("toy", QUESTION, options=options, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert whole.done and whole.eval_count == 12
    assert client.generate("toy", "Once upon a time", options=options).response
    assert [model.model for model in client.list().models] == ["toy"]
    assert client.show("toy").modelinfo["general.architecture"] == "llama"
    assert [model.model for model in client.ps().models] == ["toy"]
    with pytest.raises(ollama.ResponseError):
        client.generate("nobody", "hello")


def test_a_prompt_that_is_marked_stays_when_others_must_go(model_file):
    def clerk(name: str, **mark: object) -> dict[str, object]:
        text = f"You are {name}, a careful clerk who answers in one word. " * 12
        system = [{"type": "text", "text": text, **mark}]
        return {"model": "toy", "system": system, "messages": QUESTION, "max_tokens": 1}

    marked = clerk("Anna", cache_control={"type": "ephemeral", "ttl": "1h"})
    plain = clerk("Bert")
    with (
        running(model_file, all_dialects(), num_blocks=64) as made,
        anthropic.Anthropic(base_url=made.url, api_key="none", max_retries=0) as client,
    ):
        first = client.messages.create(**marked).usage
        assert first.cache_creation_input_tokens > 100 > (first.cache_read_input_tokens or 0)
        client.messages.create(**plain)
        for name in ("Carl", "Dora", "Emil", "Fred", "Gina", "Hugo", "Ines", "Jack"):
            client.messages.create(**clerk(name))
        again, other = (client.messages.create(**asked).usage for asked in (marked, plain))
        assert again.cache_read_input_tokens >= first.cache_creation_input_tokens > other.cache_read_input_tokens


def test_every_dialect_tells_how_many_tokens_a_grammar_forced(server):
    schema = {
        "type": "object",
        "properties": {"is_the_capital_of_france": {"type": "boolean"}},
        "required": ["is_the_capital_of_france"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    asked = {
        "/v1/chat/completions": {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        "/v1/responses": {"input": "Paris?", "text": {"format": form}},
        "/v1/messages": {"max_tokens": 60, "output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "/api/chat": {"format": schema, "stream": False},
    }
    places = {
        "/v1/chat/completions": ("usage", "completion_tokens_details", "forced_tokens"),
        "/v1/responses": ("usage", "output_tokens_details", "forced_tokens"),
        "/v1/messages": ("usage", "output_tokens_details", "forced_tokens"),
        "/api/chat": ("forced_eval_count",),
    }
    for path, body in asked.items():
        question = {} if "input" in body else {"messages": QUESTION}
        said = server.http.post(path, json={"model": "toy", **question, **body}).json()
        for name in places[path]:
            said = said[name]
        assert said > 3, path


CHAT_DETAILS = ("usage", "completion_tokens_details")
OUTPUT_DETAILS = ("usage", "output_tokens_details")
DRAFTED = {  # path and fields of a request, and where its answer has the drafts
    "chat": ("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 40}, CHAT_DETAILS),
    "streamed chat": (
        "/v1/chat/completions",
        {"messages": QUESTION, "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}},
        CHAT_DETAILS,
    ),
    "completion": ("/v1/completions", {"prompt": "one two three one two three one", "max_tokens": 40}, CHAT_DETAILS),
    "response": ("/v1/responses", {"input": "Paris?", "max_output_tokens": 40}, OUTPUT_DETAILS),
    "message": ("/v1/messages", {"messages": QUESTION, "max_tokens": 40}, OUTPUT_DETAILS),
    "Ollama chat": ("/api/chat", {"messages": QUESTION, "options": {"temperature": 0, "num_predict": 40}}, ()),
}


@pytest.mark.parametrize("asked", DRAFTED)
def test_every_dialect_tells_what_was_drafted_unless_that_is_off(server, asked):
    path, fields, places = DRAFTED[asked]
    heat = {} if "options" in fields else {"temperature": 0}

    def drafts(**more: object) -> dict[str, dict[str, int]]:
        answer = server.http.post(path, json={"model": "toy", "stream": False, **heat, **fields, **more})
        found = last_chunk(answer.text) if fields.get("stream") else answer.json()
        for name in places:
            found = found[name]
        return found.get("drafts", {})

    drafts()
    found = drafts()  # the prefix tree has the answer now
    assert found and all(0 <= each["accepted"] <= each["drafted"] > 0 for each in found.values())
    assert drafts(speculate="off") == drafts(speculate=False) == {}
    assert drafts(speculate="auto") and drafts(speculate=True)


def last_chunk(stream: str) -> dict[str, Any]:
    *_, last, done = (line.removeprefix("data: ") for line in stream.split("\n\n") if line)
    assert done == "[DONE]"
    return json.loads(last)


def test_an_unknown_value_of_speculate_is_refused_by_name(server):
    for path in ("/v1/chat/completions", "/api/chat"):
        refused = server.http.post(path, json={"model": "toy", "messages": QUESTION, "speculate": "on"})
        assert refused.status_code == 400, path
        assert "speculate is 'on'; it must be auto, off, true or false." in refused.text, path


def test_metrics_tell_of_drafts_under_vllms_names(server):
    asked = {"model": "toy", "messages": QUESTION, "max_tokens": 40, "temperature": 0}

    def counted() -> dict[str, dict[str, float]]:
        families = {family.name: family for family in parse_metrics(server.http.get("/metrics").text)}
        return {
            name: {
                next((s.labels[label] for label in ("drafter", "position") if label in s.labels), ""): s.value
                for s in families[f"vllm:spec_decode_num_{name}"].samples
                if s.labels["model_name"] == "toy"
            }
            for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
        }

    for _ in range(2):  # the prefix tree has the answer from the second one on
        server.http.post("/v1/chat/completions", json=asked)
    found = counted()
    drafted, accepted = found["draft_tokens"], found["accepted_tokens"]
    assert 0 < sum(accepted.values()) <= sum(drafted.values()) >= found["drafts"][""] > 0
    assert drafted.keys() == accepted.keys() >= {"suffix", "tree", "prediction"}
    places = found["accepted_tokens_per_pos"]
    assert sum(places.values()) == sum(accepted.values()) and places["0"] == max(places.values()) <= found["drafts"][""]


@pytest.fixture(scope="module")
def predicting(by_openai):
    """Asks the same with a prediction. The tree has no answer to it: each request has a salt of its own."""
    salts = (f"prediction {number}" for number in count())

    def ask(content: object = None, **more: object) -> Any:
        given = {} if content is None else {"prediction": {"type": "content", "content": content}}
        question = [{"role": "user", "content": "Why is the sky blue?"}]
        asked = {"model": "toy", "messages": question, "max_tokens": 40, "temperature": 0}
        salt = {"cache_salt": next(salts)}
        return by_openai.chat.completions.create(**asked, **given, **more, extra_body=salt)

    return ask


@pytest.fixture(scope="module")
def answer(predicting) -> str:
    """The answer that is predicted."""
    said = predicting()
    assert said.usage.completion_tokens == 40 and prediction_counts(said.usage) == (None, None)
    return said.choices[0].message.content


def prediction_counts(usage: Any) -> tuple[int | None, int | None]:
    """Tokens of the prediction that were accepted and rejected. None: the field is missing."""
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def test_openai_is_told_how_much_of_a_prediction_held(predicting, answer):
    for content in (answer, [{"type": "text", "text": answer}]):
        said = predicting(content)
        assert said.choices[0].message.content == answer and said.usage.completion_tokens == 40
        accepted, rejected = prediction_counts(said.usage)
        assert accepted > 10 and accepted > rejected


def test_a_stream_ends_with_how_much_of_a_prediction_held(predicting, answer):
    chunks = list(predicting(answer, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer
    assert all(chunk.usage is None for chunk in chunks[:-1])
    accepted, rejected = prediction_counts(chunks[-1].usage)
    assert accepted > 10 and accepted > rejected


def test_a_prediction_with_an_altered_part_holds_before_and_after_it(predicting, answer):
    words = answer.split(" ")
    words[len(words) // 2] = "Kilimanjaro"
    said = predicting(" ".join(words))
    assert said.choices[0].message.content == answer
    accepted, rejected = prediction_counts(said.usage)
    assert accepted > 10 and rejected > 0


def test_nothing_of_a_wrong_prediction_is_accepted(predicting, answer):
    """Nor need any of it be tried: it is left at the first token that differs. Both counts are there all the same."""
    for prediction in ("Nothing of it.", f"{answer.split(' ')[0]} Kilimanjaro."):
        said = predicting(prediction)
        assert said.choices[0].message.content == answer
        accepted, rejected = prediction_counts(said.usage)
        assert accepted == 0 and rejected >= 0


def test_a_server_that_is_told_to_ignores_what_it_does_not_know(model_file):
    more = {"provider": {"order": ["a"]}, "store": True, "max_tokens": 1}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi", "colour": "red"}], "timestamp": 5}]
    asked = {
        "/v1/chat/completions": {"messages": messages, **more},
        "/v1/completions": {"prompt": "a", **more},
        "/v1/responses": {
            "input": [{"role": "user", "content": "Hi", "timestamp": 5}],
            "provider": 1,
            "store": True,
            "max_output_tokens": 16,
        },
        "/v1/messages": {"messages": QUESTION, **more},
    }
    with running(model_file, all_dialects(), unknown_fields="ignore") as made:
        for path, body in asked.items():
            assert made.http.post(path, json=body).status_code == 200, path
        wrong = made.http.post("/v1/completions", json={"prompt": "a", "use_beam_search": True})
        assert wrong.status_code == 400
