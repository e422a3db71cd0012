"""The real `openai` client, over a transport that is our decode and our writers: it must understand every object."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest

from quire.types.chat import (
    ChatRequest,
    CompletionRequest,
    Ending,
    Event,
    Finish,
    PromptEcho,
    ReasoningDelta,
    TextDelta,
    ToolDelta,
)
from quire.types.errors import ContextTooLong, StepFailed
from tests.serve.dialects.canned_openai import Canned, scored

pytestmark = pytest.mark.pure

USER: list[Any] = [{"role": "user", "content": "Hello?"}]
ODD = 'a "quoted" \\ line\r\nnext\x00\x1f\x7f \u2028\u2029 é 漢 😀 </script> data: [DONE]\n\n'
SAID = (TextDelta(0, "Hel"), TextDelta(0, ""), TextDelta(0, "lo " + ODD), Finish(0, Ending.STOP))
CALLED = (
    ReasoningDelta(0, "Let me "),
    ReasoningDelta(0, "see."),
    TextDelta(0, "Calling."),
    ToolDelta(0, 0, "", "call_1", "add"),
    ToolDelta(0, 0, '{"a": 1,'),
    ToolDelta(0, 0, ' "b": 2}'),
    ToolDelta(0, 1, "", "call_2", "add"),
    ToolDelta(0, 1, '{"a": 3, "b": 4}'),
    Finish(0, Ending.TOOL_CALLS),
)
ADD: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]


class Sum(pydantic.BaseModel):
    a: int
    b: int


def strict(parsed: Any) -> Any:
    """The client builds its models without checking them; here they are checked."""
    type(parsed).model_validate(parsed.to_dict())
    return parsed


def chunks(server: Canned, **more: Any) -> list[Any]:
    stream = server.client.chat.completions.create(model="tiny", messages=USER, stream=True, **more)
    return [strict(chunk) for chunk in stream]


def test_a_whole_chat_completion():
    server = Canned(*SAID)
    answer = strict(server.client.chat.completions.create(model="tiny", messages=USER))
    assert answer.id == "chatcmpl-0123abcd" and answer.created == 1_700_000_000 and answer.model == "tiny"
    (choice,) = answer.choices
    assert choice.message.content == "Hello " + ODD and choice.message.role == "assistant"
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None and choice.logprobs is None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 7, 18)
    assert usage.prompt_tokens_details.cached_tokens == 8
    assert usage.completion_tokens_details.reasoning_tokens == 3
    assert usage.completion_tokens_details.forced_tokens == 2


def test_a_streamed_chat_completion_begins_with_the_role_and_ends_with_the_reason():
    told = chunks(Canned(*SAID))
    first, *middle, last = told
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content for chunk in middle) == "Hello " + ODD
    assert last.choices[0].finish_reason == "stop" and last.choices[0].delta.to_dict() == {}
    assert len(middle) == 2, "an empty piece is not worth a chunk"
    assert all("usage" not in chunk.to_dict() for chunk in told)


def test_the_usage_comes_last_in_a_chunk_without_choices_if_it_is_asked_for():
    *others, last = chunks(Canned(*SAID), stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.total_tokens == 18
    assert all(chunk.usage is None and "usage" in chunk.to_dict() for chunk in others)


def test_every_choice_has_its_own_role_text_and_reason():
    events: tuple[Event, ...] = (TextDelta(1, "b"), TextDelta(0, "a"), Finish(1, Ending.LENGTH), Finish(0, Ending.STOP))
    roles = [chunk.choices[0].index for chunk in chunks(Canned(*events), n=2) if chunk.choices[0].delta.role]
    assert roles == [0, 1]
    whole = Canned(*events).client.chat.completions.create(model="tiny", messages=USER, n=2)
    said = [(choice.index, choice.message.content, choice.finish_reason) for choice in whole.choices]
    assert said == [(0, "a", "stop"), (1, "b", "length")]


def test_the_stream_helper_gathers_thoughts_text_and_calls():
    server = Canned(*CALLED)
    with server.client.chat.completions.stream(model="tiny", messages=USER, tools=ADD) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Calling."
    assert [call.id for call in choice.message.tool_calls] == ["call_1", "call_2"]
    assert [call.function.parsed_arguments for call in choice.message.tool_calls] == [
        {"a": 1, "b": 2},
        {"a": 3, "b": 4},
    ]
    assert choice.message.reasoning_content == choice.message.reasoning == "Let me see."
    assert isinstance(server.asked, ChatRequest) and server.asked.tools[0].strict


def test_a_whole_answer_with_calls_and_thoughts_can_be_sent_back_as_it_came():
    server = Canned(*CALLED)
    message = strict(server.client.chat.completions.create(model="tiny", messages=USER, tools=ADD)).choices[0].message
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
    for sent in (message, message.model_dump(), message.to_dict()):
        server.client.chat.completions.create(model="tiny", messages=[*USER, sent, result], tools=ADD)
        assert isinstance(server.asked, ChatRequest)
        _, back, tool = server.asked.messages
        assert back.reasoning == "Let me see." and back.text == "Calling."
        assert [call.name for call in back.tool_calls] == ["add", "add"] and back.tool_calls[0].id == tool.tool_call_id


def test_the_content_of_a_pure_call_is_null():
    events = (ToolDelta(0, 0, "{}", "call_1", "add"), Finish(0, Ending.TOOL_CALLS))
    answer = Canned(*events).client.chat.completions.create(model="tiny", messages=USER, tools=ADD)
    assert answer.choices[0].message.content is None


def test_parsed_output_of_a_schema_whole_and_streamed():
    server = Canned(TextDelta(0, '{"a": 1, '), TextDelta(0, '"b": 2}'), Finish(0, Ending.STOP))
    parsed = server.client.chat.completions.parse(model="tiny", messages=USER, response_format=Sum)
    assert parsed.choices[0].message.parsed == Sum(a=1, b=2)
    with server.client.chat.completions.stream(model="tiny", messages=USER, response_format=Sum) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Sum(a=1, b=2)
    assert isinstance(server.asked, ChatRequest) and server.asked.constraint is not None
    assert '"a"' in server.asked.constraint.text


def test_logprobs_of_a_chat():
    tokens = (scored("He", -0.5, ("He", -0.5), ("Hi", -1.5)), scored("llo", float("-inf")))
    server = Canned(TextDelta(0, "Hello", (1, 2), tokens), Finish(0, Ending.STOP))
    asked = {"logprobs": True, "top_logprobs": 2}
    whole = strict(server.client.chat.completions.create(model="tiny", messages=USER, **asked))
    streamed = chunks(server, **asked)[1]
    for choice in (whole.choices[0], streamed.choices[0]):
        first, second = choice.logprobs.content
        assert (first.token, first.logprob, bytes(first.bytes)) == ("He", -0.5, b"He")
        assert [(top.token, top.logprob) for top in first.top_logprobs] == [("He", -0.5), ("Hi", -1.5)]
        assert second.logprob == -9999.0 and second.top_logprobs == []


def test_token_ids_and_prompt_logprobs_of_a_chat():
    prompt = PromptEcho(0, "Hello?", (5, 6), (scored("Hello", None), scored("?", -2.0, ("!", -1.0))))
    server = Canned(prompt, TextDelta(0, "Hi", (9,)), ReasoningDelta(0, "!", (8,)), Finish(0, Ending.STOP))
    extra = {"return_token_ids": True, "prompt_logprobs": 1}
    whole = server.client.chat.completions.create(model="tiny", messages=USER, extra_body=extra).to_dict()
    assert whole["prompt_token_ids"] == [5, 6] and whole["choices"][0]["token_ids"] == [9, 8]
    none, second = whole["prompt_logprobs"]
    assert none is None
    assert second == {
        "7": {"logprob": -2.0, "rank": None, "decoded_token": "?"},
        "100": {"logprob": -1.0, "rank": 1, "decoded_token": "!"},
    }
    assert isinstance(server.asked, ChatRequest) and server.asked.echo
    told = [chunk.to_dict() for chunk in chunks(server, extra_body={"return_token_ids": True})]
    assert [chunk["prompt_token_ids"] for chunk in told if "prompt_token_ids" in chunk] == [[5, 6]]
    assert [c["choices"][0]["token_ids"] for c in told if "token_ids" in c["choices"][0]] == [[9], [8]]


def test_the_stop_string_that_was_met_and_a_cancelled_answer():
    events = (TextDelta(0, "a"), Finish(0, Ending.STOP_TEXT, "END"))
    choice = Canned(*events).client.chat.completions.create(model="tiny", messages=USER).choices[0]
    assert choice.finish_reason == "stop" and choice.to_dict()["stop_reason"] == "END"
    events = (TextDelta(0, "a"), Finish(0, Ending.CANCELLED))
    assert (
        Canned(*events).client.chat.completions.create(model="tiny", messages=USER).choices[0].finish_reason == "abort"
    )


def test_an_error_in_a_stream_is_raised_by_the_client_and_is_not_a_good_end():
    server = Canned(TextDelta(0, "a"), failure=StepFailed("The device failed."))
    with pytest.raises(openai.APIError, match="The device failed") as caught:
        chunks(server)
    assert caught.value.body == {
        "message": "The device failed.",
        "type": "server_error",
        "param": None,
        "code": "step_failed",
    }


def test_a_refusal_is_a_bad_request_that_names_the_field():
    with pytest.raises(openai.BadRequestError) as caught:
        Canned().client.chat.completions.create(model="tiny", messages=USER, extra_body={"colour": "red"})
    assert caught.value.param == "colour" and caught.value.code == "invalid_request"
    assert caught.value.type == "invalid_request_error"
    assert "Unrecognized request argument supplied: colour" in caught.value.message


def test_an_unknown_value_of_speculate_is_a_bad_request_that_names_it():
    with pytest.raises(openai.BadRequestError) as caught:
        Canned().client.chat.completions.create(model="tiny", messages=USER, extra_body={"speculate": "on"})
    assert caught.value.status_code == 400 and caught.value.param == "speculate"
    assert "speculate is 'on'; it must be auto, off, true or false." in caught.value.message


def test_a_prompt_that_is_too_long_has_the_code_that_clients_know():
    from quire.serve.dialects.openai.dialect import DIALECT

    assert b'"code":"context_length_exceeded"' in DIALECT.error(ContextTooLong(10, 8))


def test_a_whole_completion_and_a_streamed_one():
    server = Canned(TextDelta(0, "Hel"), TextDelta(0, "lo" + ODD), Finish(0, Ending.LENGTH))
    answer = strict(server.client.completions.create(model="tiny", prompt="Say:"))
    assert answer.id == "cmpl-0123abcd" and answer.object == "text_completion"
    assert answer.choices[0].text == "Hello" + ODD and answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens_details.cached_tokens == 8
    assert isinstance(server.asked, CompletionRequest) and server.asked.sampling.max_tokens == 16
    options: Any = {"include_usage": True}
    told = list(server.client.completions.create(model="tiny", prompt="Say:", stream=True, stream_options=options))
    assert "".join(chunk.choices[0].text for chunk in told[:-1]) == "Hello" + ODD
    assert told[-2].choices[0].finish_reason == "length"
    assert told[-1].choices == [] and told[-1].usage is not None and told[-1].usage.completion_tokens == 7


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_with_logprobs_has_the_prompts_tokens_and_their_places(stream: bool):
    prompt = PromptEcho(0, "Say: ", (1, 2), (scored("Say", None), scored(": ", -3.0, (":", -1.0))))
    said = TextDelta(0, "hé", (3,), (scored("hé", -0.25, ("hé", -0.25), ("ho", -1.0)),))
    server = Canned(prompt, said, TextDelta(0, "!", (4,), (scored("!", -0.5),)), Finish(0, Ending.STOP))
    answer = server.client.completions.create(model="tiny", prompt="Say: ", echo=True, logprobs=2, stream=stream)
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == "Say: hé!"
    logprobs = [choice.logprobs for choice in choices if choice.logprobs]
    assert [token for each in logprobs for token in each.tokens] == ["Say", ": ", "hé", "!"]
    assert [value for each in logprobs for value in each.token_logprobs] == [None, -3.0, -0.25, -0.5]
    assert [offset for each in logprobs for offset in each.text_offset] == [0, 3, 5, 7]
    tops = [top for each in logprobs for top in each.top_logprobs]
    assert tops == [None, {":": -1.0, ": ": -3.0}, {"hé": -0.25, "ho": -1.0}, {"!": -0.5}]
    assert isinstance(server.asked, CompletionRequest) and server.asked.sampling.prompt_logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_prompt_is_scored_if_no_tokens_are_wanted(stream: bool):
    prompt = PromptEcho(0, "Say", (1,), (scored("Say", None),))
    server = Canned(prompt, TextDelta(0, "x", (2,), (scored("x", -1.0),)), Finish(0, Ending.LENGTH))
    asked: Any = {"echo": True, "logprobs": 0, "max_tokens": 0, "stream": stream}
    answer = server.client.completions.create(model="tiny", prompt="Say", **asked)
    if stream:
        assert "".join(chunk.choices[0].text for chunk in answer) == "Say"
    else:
        assert answer.choices[0].text == "Say" and answer.choices[0].logprobs.tokens == ["Say"]
        assert answer.usage.completion_tokens == 0 and answer.usage.total_tokens == 11
    assert isinstance(server.asked, CompletionRequest) and server.asked.sampling.max_tokens == 1


def test_token_ids_of_a_completion_without_its_echo():
    prompt = PromptEcho(0, "Say", (1, 2))
    server = Canned(prompt, TextDelta(0, "x", (3,)), Finish(0, Ending.STOP))
    extra = {"return_token_ids": True}
    choice = server.client.completions.create(model="tiny", prompt=[1, 2], extra_body=extra).choices[0].to_dict()
    assert (choice["text"], choice["token_ids"], choice["prompt_token_ids"]) == ("x", [3], [1, 2])
    stream = server.client.completions.create(model="tiny", prompt=[1, 2], extra_body=extra, stream=True)
    told = [chunk.choices[0].to_dict() for chunk in stream]
    assert told[0]["prompt_token_ids"] == [1, 2] and told[1]["token_ids"] == [3]


def test_an_error_in_a_streamed_completion():
    stream = Canned(failure=StepFailed("Broken.")).client.completions.create(model="tiny", prompt="x", stream=True)
    with pytest.raises(openai.APIError, match="Broken"):
        list(stream)


def test_the_models():
    client = Canned().client
    assert [strict(model).id for model in client.models.list()] == ["tiny", "hf.co/org/repo:q4_0"]
    one = strict(client.models.retrieve("tiny"))
    assert one.created == 5 and one.owned_by == "quire" and one.to_dict()["max_model_len"] == 2048
