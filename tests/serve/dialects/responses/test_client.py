"""The real `openai` client on responses: it must know every object and event, and its helpers must work."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import openai
import pydantic
import pytest

from quire.types.chat import ChatRequest, Ending, Finish, ReasoningDelta, TextDelta, ToolDelta
from quire.types.errors import ContextTooLong, StepFailed
from quire.types.message import Message, ToolCall
from tests.serve.dialects.canned_openai import Canned, scored

pytestmark = pytest.mark.pure

ODD = 'a "quoted" \\ line\r\n\x00\x7f \u2028 é 😀 event: x\ndata: y\n\n'
ADD: list[Any] = [
    {
        "type": "function",
        "name": "add",
        "description": "Adds.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }
]
CALLED = (
    ReasoningDelta(0, "Let me "),
    ReasoningDelta(0, "see."),
    TextDelta(0, "Call"),
    TextDelta(0, "ing."),
    ToolDelta(0, 0, "", "call_1", "add"),
    ToolDelta(0, 0, '{"a":'),
    ToolDelta(0, 0, " 1}"),
    ToolDelta(0, 1, '{"a": 2}', "call_2", "add"),
    Finish(0, Ending.TOOL_CALLS),
)


class One(pydantic.BaseModel):
    a: int


def strict(parsed: Any) -> Any:
    """The client builds its models without checking them; here they are checked."""
    type(parsed).model_validate(parsed.to_dict())
    return parsed


def events_of(server: Canned, **more: Any) -> list[Any]:
    stream = server.client.responses.create(model="tiny", input="Hello?", stream=True, **more)
    return [strict(event) for event in stream]


def test_a_whole_response():
    answer = strict(Canned(TextDelta(0, ODD), Finish(0, Ending.STOP)).client.responses.create(model="tiny", input="Hi"))
    assert answer.id == "resp_0123abcd" and answer.status == "completed" and answer.output_text == ODD
    assert answer.created_at == 1_700_000_000 and answer.completed_at == 1_700_000_002
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 7, 18)
    assert usage.input_tokens_details.cached_tokens == 8 and usage.input_tokens_details.cache_write_tokens == 1
    assert usage.output_tokens_details.reasoning_tokens == 3 and usage.output_tokens_details.forced_tokens == 2
    assert answer.store is False and answer.text.format.type == "text" and answer.tool_choice == "auto"


def test_what_was_asked_is_repeated():
    asked: Any = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 33,
        "metadata": {"a": "b"},
        "tools": ADD,
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "user": "me",
    }
    answer = strict(Canned(Finish(0, Ending.STOP)).client.responses.create(model="tiny", input="Hi", **asked)).to_dict()
    assert {name: answer[name] for name in asked} == asked


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_text_and_calls_are_items_in_their_order(stream: bool):
    server = Canned(*CALLED)
    if stream:
        answer = events_of(server, tools=ADD)[-1].response
    else:
        answer = strict(server.client.responses.create(model="tiny", input="Hello?", tools=ADD))
    thought, said, first, second = answer.output
    assert thought.type == "reasoning" and thought.content[0].text == "Let me see." and thought.summary == []
    assert said.content[0].text == "Calling." and said.role == "assistant"
    assert (first.call_id, first.name, first.arguments) == ("call_1", "add", '{"a": 1}')
    assert (second.call_id, second.name, second.arguments) == ("call_2", "add", '{"a": 2}')
    assert {item.status for item in answer.output} == {"completed"} and answer.status == "completed"
    assert len({item.id for item in answer.output}) == 4


def test_a_whole_answer_and_a_streamed_one_are_the_same_object():
    whole = Canned(*CALLED).client.responses.create(model="tiny", input="Hello?", tools=ADD)
    assert events_of(Canned(*CALLED), tools=ADD)[-1].response.to_dict() == whole.to_dict()


def test_events_are_numbered_and_every_item_begins_and_ends():
    told = events_of(Canned(*CALLED), tools=ADD)
    assert [event.sequence_number for event in told] == list(range(len(told)))
    kinds = [event.type.removeprefix("response.") for event in told]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] == "completed"
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.delta"]
    text += ["output_text.done", "content_part.done", "output_item.done"]
    assert kinds[9:16] == text
    assert kinds[2:9] == [kind.replace("output_text", "reasoning_text") for kind in text]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds[16:21] == [call[0], call[1], *call[1:]] and kinds[21:25] == call


def test_the_name_of_an_event_is_its_type():
    stream = Canned(*CALLED).client.responses.with_streaming_response.create(model="tiny", input="x", stream=True)
    with stream as response:
        lines = [line for line in response.iter_lines() if line]
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_the_stream_helper_gathers_the_answer():
    server = Canned(*CALLED)
    with server.client.responses.stream(model="tiny", input="Hello?", tools=ADD) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots == ["Call", "Calling."]
    assert final.output_text == "Calling." and final.output[2].parsed_arguments == {"a": 1}
    assert isinstance(server.asked, ChatRequest) and server.asked.tools[0].name == "add"


def test_parsed_output_of_a_schema_whole_and_streamed():
    server = Canned(TextDelta(0, '{"a":'), TextDelta(0, " 5}"), Finish(0, Ending.STOP))
    assert server.client.responses.parse(model="tiny", input="x", text_format=One).output_parsed == One(a=5)
    with server.client.responses.stream(model="tiny", input="x", text_format=One) as stream:
        assert stream.get_final_response().output_parsed == One(a=5)
    assert isinstance(server.asked, ChatRequest) and server.asked.constraint is not None
    assert json.loads(server.asked.constraint.text)["properties"] == {"a": {"title": "A", "type": "integer"}}


@pytest.mark.parametrize("ending, status", [(Ending.LENGTH, "incomplete"), (Ending.CANCELLED, "cancelled")])
def test_an_answer_that_is_cut_is_incomplete(ending: Ending, status: str):
    server = Canned(TextDelta(0, "Hel"), Finish(0, ending))
    last = events_of(server)[-1]
    whole = server.client.responses.create(model="tiny", input="Hello?")
    assert last.type == "response.incomplete"
    for answer in (last.response, whole):
        assert answer.status == status and answer.output[0].status == "incomplete" and answer.completed_at is None
        assert (answer.incomplete_details is not None) == (ending is Ending.LENGTH)
    if ending is Ending.LENGTH:
        assert whole.incomplete_details.reason == "max_output_tokens"


def test_an_empty_answer_is_one_empty_message():
    server = Canned(Finish(0, Ending.STOP))
    for answer in (events_of(server)[-1].response, server.client.responses.create(model="tiny", input="Hello?")):
        (item,) = answer.output
        assert item.type == "message" and item.content[0].text == ""


def test_a_stream_that_fails_shows_how_far_it_came():
    last = events_of(Canned(TextDelta(0, "Hel"), failure=StepFailed("The device failed.")))[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error.code == "server_error" and last.response.error.message == "The device failed."
    assert last.response.output[0].content[0].text == "Hel" and last.response.output[0].status == "incomplete"
    refused = events_of(Canned(failure=ContextTooLong(9, 8)))[-1]
    assert refused.response.error.code == "invalid_prompt" and refused.response.output == []


def test_logprobs():
    tokens = (scored("He", -0.5, ("He", -0.5), ("Hi", -1.5)),)
    server = Canned(
        TextDelta(0, "He", (1,), tokens), TextDelta(0, "y", (2,), (scored("y", -2.0),)), Finish(0, Ending.STOP)
    )
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    told = events_of(server, **asked)
    deltas = [event for event in told if event.type == "response.output_text.delta"]
    assert [[score.token for score in delta.logprobs] for delta in deltas] == [["He"], ["y"]]
    assert [(top.token, top.logprob) for top in deltas[0].logprobs[0].top_logprobs] == [("He", -0.5), ("Hi", -1.5)]
    whole = strict(server.client.responses.create(model="tiny", input="Hello?", **asked))
    assert [score.logprob for score in whole.output[0].content[0].logprobs] == [-0.5, -2.0]
    assert told[-1].response.output[0].to_dict() == whole.output[0].to_dict()


def test_an_answers_items_can_be_sent_back_as_they_came():
    server = Canned(*CALLED)
    answer = server.client.responses.create(model="tiny", input="Hello?", tools=ADD)
    results: Any = [{"type": "function_call_output", "call_id": f"call_{i}", "output": str(i)} for i in (1, 2)]
    question: Any = {"role": "user", "content": "Hello?"}
    for items in (answer.output, [item.model_dump() for item in answer.output], [i.to_dict() for i in answer.output]):
        sent: Any = [question, *items, *results]
        server.client.responses.create(model="tiny", input=sent, instructions="Add.", tools=ADD)
        assert isinstance(server.asked, ChatRequest)
        calls = (ToolCall("call_1", "add", '{"a": 1}'), ToolCall("call_2", "add", '{"a": 2}'))
        assert server.asked.messages == (
            Message("system", "Add."),
            Message("user", "Hello?"),
            Message("assistant", "Calling.", reasoning="Let me see.", tool_calls=calls),
            Message("tool", "1", tool_call_id="call_1"),
            Message("tool", "2", tool_call_id="call_2"),
        )


def test_tokens_are_counted():
    server = Canned()
    counted = strict(server.client.responses.input_tokens.count(model="tiny", input="Hello?", tools=ADD))
    assert counted.input_tokens == 42
    assert isinstance(server.asked, ChatRequest) and server.asked.messages == (Message("user", "Hello?"),)


def test_a_refusal_is_a_bad_request_that_names_the_field():
    with pytest.raises(openai.BadRequestError) as caught:
        Canned().client.responses.create(model="tiny", input="x", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id" and "nothing is stored" in caught.value.message


def test_kinds_that_come_in_turn_are_items_of_their_own():
    turns = [TextDelta(0, "a"), ReasoningDelta(0, "b"), TextDelta(0, "c"), ReasoningDelta(0, "d")]
    answer = events_of(Canned(*turns, Finish(0, Ending.STOP)))[-1].response
    assert [item.type for item in answer.output] == ["message", "reasoning"] * 2
    assert all(first.id != second.id for first, second in pairwise(answer.output))
