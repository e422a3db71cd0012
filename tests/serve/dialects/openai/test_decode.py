"""What every field of chat completions and completions becomes, in each spelling that a client may know."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.openai.dialect import DIALECT, decode_chat, decode_completion
from quire.types.chat import ChatRequest, CompletionRequest, Terms, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.message import Message, ToolCall
from quire.types.request import Constraint, ConstraintKind, SamplingParams

pytestmark = pytest.mark.pure

LIMITS = RequestLimits(
    max_n=4, max_stops=3, max_stop_chars=5, max_tools=2, max_schema_bytes=200, max_logprobs=6, max_prompts=3
)
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{}}}'
GBNF, LARK = 'root ::= "a"', 'start: "a"'
OF_SCHEMA = Constraint(ConstraintKind.SCHEMA, SCHEMA_TEXT)
OF_REGEX = Constraint(ConstraintKind.REGEX, "a+")
OF_CHOICE = Constraint(ConstraintKind.CHOICE, choices=("yes", "no"))
OF_GBNF, OF_LARK = Constraint(ConstraintKind.EBNF, GBNF), Constraint(ConstraintKind.LARK, LARK)
ANY_JSON = Constraint(ConstraintKind.JSON)


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


TWO_TOOLS = [function("f"), function("g")]
NAMED = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    ask = decode_chat(json.dumps(body).encode(), LIMITS).ask
    assert isinstance(ask, ChatRequest)
    return ask


def completion(**fields: Any) -> CompletionRequest:
    ask = decode_completion(json.dumps({"model": "m", "prompt": "Hi", **fields}).encode(), LIMITS).ask
    assert isinstance(ask, CompletionRequest)
    return ask


def test_without_any_field_everything_is_a_default():
    assert chat() == ChatRequest("m", (Message("user", "Hi"),))
    assert completion() == CompletionRequest("m", ("Hi",), SamplingParams(max_tokens=16))


BOTH = [
    ({"temperature": 0}, "sampling.temperature", 0.0),
    ({"top_p": 0.5}, "sampling.top_p", 0.5),
    ({"top_k": 7}, "sampling.top_k", 7),
    ({"top_k": -1}, "sampling.top_k", 0),
    ({"top_k": 0}, "sampling.top_k", 0),
    ({"min_p": 0.1}, "sampling.min_p", 0.1),
    ({"typical_p": 0.9}, "sampling.typical_p", 0.9),
    ({"repetition_penalty": 1.1}, "sampling.repetition_penalty", 1.1),
    ({"presence_penalty": -2}, "sampling.presence_penalty", -2.0),
    ({"frequency_penalty": 2}, "sampling.frequency_penalty", 2.0),
    ({"logit_bias": {"5": -100, "6": 1.5}}, "sampling.logit_bias", {5: -100.0, 6: 1.5}),
    ({"stop": "END"}, "sampling.stop", ("END",)),
    ({"stop": ["a", "b"]}, "sampling.stop", ("a", "b")),
    ({"stop": []}, "sampling.stop", ()),
    ({"stop_token_ids": [3, 4]}, "sampling.stop_token_ids", (3, 4)),
    ({"allowed_token_ids": [3]}, "sampling.allowed_token_ids", (3,)),
    ({"bad_words": [[1, 2], [3]]}, "sampling.bad_words", ((1, 2), (3,))),
    ({"min_tokens": 2, "max_tokens": 3}, "sampling.min_tokens", 2),
    ({"max_tokens": 3}, "sampling.max_tokens", 3),
    ({"ignore_eos": True}, "sampling.ignore_eos", True),
    ({"speculate": True}, "sampling.speculate", "auto"),
    ({"speculate": "auto"}, "sampling.speculate", "auto"),
    ({"speculate": False}, "sampling.speculate", "off"),
    ({"speculate": "off"}, "sampling.speculate", "off"),
    ({"seed": -5}, "sampling.seed", -5),
    ({"seed": 2**63 - 1}, "sampling.seed", 2**63 - 1),
    ({"sampling_seed": 7}, "sampling.seed", 7),
    ({"sampling_seed": 7, "seed": 7}, "sampling.seed", 7),
    ({"n": 4}, "sampling.n", 4),
    ({"best_of": 1}, "sampling.n", 1),
    ({"prompt_logprobs": 6}, "sampling.prompt_logprobs", 6),
    ({"prompt_logprobs": 0}, "echo", True),
    ({"return_token_ids": True}, "echo", True),
    ({"return_token_ids": False}, "echo", False),
    ({"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}, "stream", True),
    ({"priority": -3}, "terms.priority", -3),
    ({"cache_salt": "tenant"}, "terms.salt", "tenant"),
    ({"extra_key": "tenant"}, "terms.salt", "tenant"),
    ({"session_id": "s1"}, "terms.session", "s1"),
    ({"prompt_cache_key": "k"}, "terms.session", "k"),
    ({"session_id": "s1", "prompt_cache_key": "k"}, "terms.session", "s1"),
    ({"request_id": "r1"}, "terms.id", "r1"),
    ({"rid": "r2"}, "terms.id", "r2"),
    ({"timeout": 2.5}, "terms.timeout", 2.5),
    ({"keep": 60}, "terms.keep", 60.0),
    ({"keep": {"ttl": 60, "rank": 90}}, "terms", Terms(keep=60.0, keep_rank=90)),
    ({"keep": {"ttl": 60}}, "terms", Terms(keep=60.0)),
    ({"prompt_cache_options": {"ttl": "30m"}}, "terms.keep", 1800.0),
    ({"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}, "terms.keep", None),
    ({"response_format": {"type": "text"}}, "constraint", None),
    ({"response_format": {"type": "json_object"}}, "constraint", ANY_JSON),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "constraint", OF_SCHEMA),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "constraint", OF_SCHEMA),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        "constraint",
        replace(OF_SCHEMA, strict=True),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": False, "schema": SCHEMA}}},
        "constraint",
        OF_SCHEMA,
    ),
    ({"response_format": {"type": "json", "schema": SCHEMA}}, "constraint", OF_SCHEMA),
    ({"response_format": {"type": "regex", "regex": "a+"}}, "constraint", OF_REGEX),
    ({"response_format": {"type": "ebnf", "ebnf": GBNF}}, "constraint", OF_GBNF),
    ({"structured_outputs": {"json": SCHEMA}}, "constraint", OF_SCHEMA),
    ({"structured_outputs": {"json": json.dumps(SCHEMA, indent=2)}}, "constraint", OF_SCHEMA),
    ({"structured_outputs": {"regex": "a+"}}, "constraint", OF_REGEX),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "constraint", OF_CHOICE),
    ({"structured_outputs": {"grammar": GBNF}}, "constraint", OF_GBNF),
    ({"structured_outputs": {"grammar": LARK}}, "constraint", OF_LARK),
    ({"structured_outputs": {"json_object": True}}, "constraint", ANY_JSON),
    ({"guided_json": SCHEMA}, "constraint", OF_SCHEMA),
    ({"guided_json": SCHEMA, "guided_decoding_backend": "xgrammar"}, "constraint", OF_SCHEMA),
    ({"guided_regex": "a+"}, "constraint", OF_REGEX),
    ({"guided_choice": ["yes", "no"]}, "constraint", OF_CHOICE),
    ({"guided_grammar": LARK}, "constraint", OF_LARK),
    ({"json_schema": SCHEMA_TEXT}, "constraint", OF_SCHEMA),
    ({"json_schema": SCHEMA}, "constraint", OF_SCHEMA),
    ({"regex": "a+"}, "constraint", OF_REGEX),
    ({"ebnf": GBNF}, "constraint", OF_GBNF),
    ({"grammar": GBNF}, "constraint", OF_GBNF),
    ({"grammar": LARK}, "constraint", OF_LARK),
]
HARMLESS = [
    *({"user": None}, {"metadata": {}}, {"store": False}, {"safety_identifier": ""}),
    *({"service_tier": "auto"}, {"service_tier": "default"}, {"prompt_cache_retention": "24h"}),
    *({"skip_special_tokens": True}, {"include_stop_str_in_output": False}, {"use_beam_search": False}),
    *({"length_penalty": 1.0}, {"cache_prompt": True}, {"separate_reasoning": True}),
]
CHAT = [
    ({"max_completion_tokens": 9}, "sampling.max_tokens", 9),
    ({"max_completion_tokens": 9, "max_tokens": 9}, "sampling.max_tokens", 9),
    ({"logprobs": True}, "sampling.logprobs", 0),
    ({"logprobs": True, "top_logprobs": 6}, "sampling.logprobs", 6),
    ({"logprobs": False}, "sampling.logprobs", None),
    ({"reasoning_effort": "none"}, "think", False),
    ({"reasoning_effort": "low"}, "think", True),
    ({"reasoning_effort": "low"}, "template_variables", {"reasoning_effort": "low"}),
    ({"reasoning": {"effort": "high"}}, "think", True),
    ({"reasoning": {"effort": "none"}}, "think", False),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "think", False),
    ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "think", True),
    ({"chat_template_kwargs": {"enable_thinking": False, "x": [1]}}, "template_variables", {"x": [1]}),
    ({"documents": [{"title": "a", "text": "b"}]}, "template_variables", {"documents": [{"title": "a", "text": "b"}]}),
    ({"add_generation_prompt": True}, "continue_last", False),
    ({"chat_template_kwargs": {"add_generation_prompt": True, "a": 1}}, "template_variables", {"a": 1}),
    ({"chat_template_kwargs": {"bos_token": "<x>"}}, "template_variables", {"bos_token": "<x>"}),
    (
        {"tools": [function("f", description="d", parameters=SCHEMA, strict=True)]},
        "tools",
        (Tool("f", "d", SCHEMA, True),),
    ),
    ({"tools": [function("f")]}, "tool_choice", ToolChoice("auto")),
    ({"tools": TWO_TOOLS, "tool_choice": "none"}, "tool_choice", ToolChoice("none")),
    ({"tools": TWO_TOOLS, "tool_choice": "required"}, "tool_choice", ToolChoice("required", parallel=False)),
    (
        {"tools": TWO_TOOLS, "tool_choice": "required", "parallel_tool_calls": True},
        "tool_choice",
        ToolChoice("required", parallel=True),
    ),
    ({"tools": TWO_TOOLS, "tool_choice": NAMED}, "tool_choice", ToolChoice("required", "f", parallel=False)),
    (
        {"tools": TWO_TOOLS, "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice",
        ToolChoice("required", "g", parallel=False),
    ),
    ({"tools": TWO_TOOLS, "parallel_tool_calls": False}, "tool_choice", ToolChoice(parallel=False)),
    (
        {
            "tools": TWO_TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        },
        "tools",
        (Tool("f"),),
    ),
    ({"modalities": ["text"]}, "stream", False),
    ({"verbosity": "low"}, "stream", False),
]
COMPLETION = [
    ({"prompt": ["a", "b"]}, "prompts", ("a", "b")),
    ({"prompt": [1, 2]}, "prompts", ((1, 2),)),
    ({"prompt": [[1, 2], [3]]}, "prompts", ((1, 2), (3,))),
    ({"logprobs": 6}, "sampling.logprobs", 6),
    ({"logprobs": 0}, "sampling.logprobs", 0),
    ({"logprobs": 3}, "sampling.prompt_logprobs", None),
    ({"echo": True}, "echo", True),
    ({"echo": True, "logprobs": 3}, "sampling.prompt_logprobs", 3),
    ({"echo": True, "max_tokens": 0}, "sampling.max_tokens", 1),
    ({"n": 2, "best_of": 2}, "sampling.n", 2),
    ({"add_special_tokens": True}, "echo", False),
]


def case_id(value: object) -> str | None:
    return json.dumps(value) if isinstance(value, dict) else None


@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize("fields, place, wanted", BOTH, ids=case_id)
def test_a_field_of_both_endpoints(ask, fields, place, wanted):
    assert attrgetter(place)(ask(**fields)) == wanted


@pytest.mark.parametrize("fields, place, wanted", CHAT, ids=case_id)
def test_a_field_of_a_chat(fields, place, wanted):
    assert attrgetter(place)(chat(**fields)) == wanted


@pytest.mark.parametrize("fields, place, wanted", COMPLETION, ids=case_id)
def test_a_field_of_a_completion(fields, place, wanted):
    assert attrgetter(place)(completion(**fields)) == wanted


def test_who_asks_and_what_about_is_kept_for_rules():
    for ask in (chat, completion):
        assert ask(user="me", metadata={"a": "b", "n": 1, "deep": {"x": True}}).terms == Terms(
            user="me", metadata={"a": "b", "n": "1", "deep": '{"x":true}'}
        )
        assert ask(safety_identifier="x").terms.user == "x" and ask(user="me", safety_identifier="x").terms.user == "me"


@pytest.mark.parametrize("fields", HARMLESS, ids=case_id)
def test_what_asks_for_nothing_changes_nothing(fields):
    assert chat(**fields) == chat() and completion(**fields) == completion()


@pytest.mark.parametrize("path, ask", [("/v1/chat/completions", chat), ("/v1/completions", completion)])
def test_null_is_the_same_as_no_field(path, ask):
    schema: Any = DIALECT.schemas[path]
    optional = set(schema["properties"]) - {*schema["required"], "model"}
    assert len(optional) > 50
    assert ask(model=None).model == ""  # the only one that is served
    assert ask(**dict.fromkeys(optional)) == ask()


def said(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return chat(messages=list(messages)).messages


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@pytest.mark.parametrize(
    "given, wanted",
    [
        ({"role": "system", "content": "s"}, Message("system", "s")),
        ({"role": "developer", "content": "s"}, Message("system", "s")),
        ({"role": "user", "content": "u", "name": "Ann"}, Message("user", "u", name="Ann")),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            Message("user", "a\nb"),
        ),
        ({"role": "user", "content": []}, Message("user", "")),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            Message("assistant", tool_calls=(ToolCall("c1", "f", '{"a":1}'),)),
        ),
        ({"role": "assistant", "content": "a", "reasoning_content": "r"}, Message("assistant", "a", reasoning="r")),
        ({"role": "assistant", "content": "a", "reasoning": "r"}, Message("assistant", "a", reasoning="r")),
        ({"role": "assistant", "refusal": "no"}, Message("assistant", "no")),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, Message("assistant", "no")),
        ({"role": "tool", "tool_call_id": "c1", "content": "1"}, Message("tool", "1", tool_call_id="c1")),
        (
            {"role": "user", "content": "u", "cache_control": {"type": "ephemeral"}},
            Message("user", "u", keep=300.0),
        ),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "u", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            },
            Message("user", "u", keep=3600.0),
        ),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "u", "prompt_cache_breakpoint": {"mode": "explicit"}}],
            },
            Message("user", "u", keep=1800.0),
        ),
    ],
    ids=case_id,
)
def test_a_message(given, wanted):
    assert said(given) == (wanted,)


@pytest.mark.parametrize(
    "arguments, wanted", [({"a": 1}, '{"a":1}'), ("", "{}"), ("  ", "{}"), ("not json", "not json")]
)
def test_arguments_that_a_client_sends_back(arguments, wanted):
    call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
    assert said({"role": "assistant", "tool_calls": [call]})[0].tool_calls[0].arguments == wanted


def test_the_last_message_is_gone_on_with():
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    assert chat(messages=messages, continue_final_message=True).continue_last
    assert chat(messages=messages, continue_final_message=True, add_generation_prompt=False).continue_last
    variables = {"continue_final_message": True, "add_generation_prompt": False}
    assert chat(messages=messages, chat_template_kwargs=variables).continue_last


def test_two_equal_names_are_refused():
    with pytest.raises(InvalidRequest, match="the key 'prompt' is there twice"):
        decode_completion(b'{"model": "m", "prompt": "a", "prompt": "b"}', LIMITS)


USER = {"role": "user", "content": "Hi"}
REFUSED_BOTH = [
    ({"colour": 1}, "colour", "Unrecognized request argument supplied: colour"),
    ({"model": 1}, "model", "model must be a string or null, not an integer."),
    ({"temperature": "hot"}, "temperature", "temperature must be a number or null, not a string."),
    ({"temperature": -1}, "temperature", "must be a number >= 0"),
    ({"speculate": "on"}, "speculate", "speculate is 'on'; it must be auto, off, true or false."),
    ({"speculate": 2}, "speculate", "speculate must be"),
    ({"top_p": 0}, "top_p", "must be a number > 0"),
    ({"top_k": -2}, "top_k", ">= -1"),
    ({"n": 5}, "n", "n is 5; this server allows at most 4."),
    ({"n": 0}, "n", "must be an integer >= 1"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "A name in logit_bias must be an integer"),
    ({"logit_bias": {"1": 101}}, "logit_bias[...]", "must be a number <= 100"),
    ({"seed": 2**63}, "seed", "seed must be an integer <= "),
    ({"stop": ["a"] * 4}, "stop", "stop has 4 strings; at most 3 are allowed."),
    ({"stop": ["a" * 6]}, "stop", "from 1 to 5 characters"),
    ({"stop": ""}, "stop", "from 1 to 5 characters"),
    ({"stop": ["a", 1]}, "stop[1]", "must be a string"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "must be an integer >= 0"),
    ({"stop_token_ids": [2**32]}, "stop_token_ids[0]", "must be an integer <"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "length >= 1"),
    ({"bad_words": ["no"]}, "bad_words[0]", "give its token ids"),
    ({"bad_words": [[]]}, "bad_words[0]", "is empty"),
    ({"min_tokens": 20, "max_tokens": 3}, "min_tokens", "from 0 to max_tokens"),
    ({"prompt_logprobs": 7}, "prompt_logprobs", "at most 6"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "does not go with stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream: true"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "Unrecognized"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
        "once",
    ),
    ({"store": True}, "store", "store is not supported: nothing is stored here"),
    ({"service_tier": "flex"}, "service_tier", "service_tier is 'flex'; it must be one of 'auto', 'default'."),
    ({"skip_special_tokens": False}, "skip_special_tokens", "is not supported"),
    ({"include_stop_str_in_output": True}, "include_stop_str_in_output", "is not supported"),
    ({"use_beam_search": True}, "use_beam_search", "is not supported"),
    ({"kv_transfer_params": {}}, "kv_transfer_params", "is not supported"),
    ({"rid": "a", "request_id": "b"}, "rid", "differ"),
    ({"seed": 1, "sampling_seed": 2}, "sampling_seed", "differ"),
    ({"cache_salt": "a", "extra_key": "b"}, "extra_key", "differ"),
    ({"rid": "with space"}, "rid", "matching"),
    ({"keep": 0}, "keep", "must be a number > 0"),
    ({"keep": {"ttl": 5, "rank": 101}}, "keep.rank", "<= 100"),
    ({"timeout": -1}, "timeout", "> 0"),
    ({"regex": "a", "grammar": "b"}, "grammar", "regex and grammar both prescribe a form"),
    ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json", "both prescribe a form"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "it must be one of 'ebnf', 'json'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Missing"),
    ({"response_format": {"type": "json"}}, "response_format.schema", "Missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema", "Missing"),
    ({"response_format": {"type": "text", "regex": "a"}}, "response_format.regex", "does not go with"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one of"),
    ({"guided_choice": []}, "guided_choice", "at least one"),
    ({"guided_choice": [""]}, "guided_choice", "none that is empty"),
    ({"guided_json": "{"}, "guided_json", "guided_json is not valid JSON"),
    ({"json_schema": "[]"}, "json_schema", "not the text of a JSON schema"),
    ({"regex": " "}, "regex", "is empty"),
    ({"grammar": "x" * 201}, "grammar", "201 characters; at most 200"),
    ({"structural_tag": {}}, "structural_tag", "is not supported"),
]
REFUSED_CHAT = [
    ({"messages": []}, "messages", "length >= 1"),
    (
        {"messages": [{"role": "robot", "content": "x"}]},
        "messages[0].role",
        "messages[0].role is 'robot'; it must be one of",
    ),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
    ({"messages": [USER, {"role": "user", "content": "", "mood": 1}]}, "messages[1].mood", "Unrecognized"),
    ({"messages": [USER, {"role": "tool", "content": "1"}]}, "messages[1].tool_call_id", "is missing"),
    ({"messages": [{**USER, "tool_call_id": "x"}]}, "messages[0].tool_call_id", "is for the role 'tool'"),
    ({"messages": [{**USER, "tool_calls": [CALL]}]}, "messages[0].tool_calls", "is for the role 'assistant'"),
    ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call", "give tool_calls"),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio", "only text"),
    (
        {"messages": [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[1].content[0].type",
        "only text is supported",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "Missing"),
    ({"messages": [{**USER, "cache_control": {"type": "eternal"}}]}, "messages[0].cache_control.type", "'ephemeral'"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
    ({"top_logprobs": 1}, "top_logprobs", "needs logprobs: true"),
    ({"logprobs": True, "top_logprobs": 7}, "top_logprobs", "at most 6"),
    ({"logprobs": 1}, "logprobs", "must be a boolean"),
    ({"audio": {"voice": "x"}}, "audio", "is not supported"),
    ({"modalities": ["text", "audio"]}, "modalities", "is not supported"),
    ({"functions": []}, "functions", "give tools"),
    ({"function_call": "auto"}, "function_call", "give tool_choice"),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction.type", "content"),
    ({"prediction": {"type": "content"}}, "prediction.content", "Missing"),
    ({"prediction": "x"}, "prediction", "object"),
    (
        {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
        "prediction.content[0].type",
        "only text",
    ),
    ({"web_search_options": {}}, "web_search_options", "is not supported"),
    ({"chat_template": "x"}, "chat_template", "is not supported"),
    ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking", "must be a boolean"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "cannot be set"),
    ({"chat_template_kwargs": {"tools": None}}, "chat_template_kwargs.tools", "cannot be set"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self", "cannot be set"),
    ({"chat_template_kwargs": {"range": 1}}, "chat_template_kwargs.range", "cannot be set"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", "'a b'"),
    (
        {"chat_template_kwargs": {"add_generation_prompt": 1}},
        "chat_template_kwargs.add_generation_prompt",
        "must be a boolean",
    ),
    (
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        "add_generation_prompt",
        "needs continue_final_message",
    ),
    (
        {"chat_template_kwargs": {"add_generation_prompt": False}, "add_generation_prompt": True},
        "chat_template_kwargs.add_generation_prompt",
        "differ",
    ),
    ({"reasoning_effort": "wild"}, "reasoning_effort", "'minimal'"),
    ({"add_generation_prompt": False}, "add_generation_prompt", "needs continue_final_message"),
    ({"continue_final_message": True}, "continue_final_message", "role 'assistant'"),
    ({"tools": [function(name) for name in "abc"]}, "tools", "There are 3 tools; at most 2 are allowed."),
    ({"tools": [function("f"), function("f")]}, "tools", "Two tools have the name 'f'."),
    ({"tools": [function("a b")]}, "tools[0].function.name", "matching"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "Missing"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "only 'function' is supported"),
    ({"tools": [function("f", parameters={"x": "y" * 200})]}, "tools[0].function.parameters", "at most 200"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tool_choice": "maybe"}, "tool_choice", "it must be 'auto', 'none', 'required'"),
    ({"tools": TWO_TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice", "names 'h'"),
    ({"tools": TWO_TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "Missing"),
    ({"tools": TWO_TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice", "of the type 'custom'"),
]
REFUSED_COMPLETION = [
    ({"prompt": None}, "prompt", "prompt must be a string or a list, not null."),
    ({"prompt": []}, "prompt", "not empty"),
    ({"prompt": [[]]}, "prompt", "not empty"),
    ({"prompt": ["a", 1]}, "prompt", "a list of strings"),
    ({"prompt": [1.5]}, "prompt[0]", "must be"),
    ({"prompt": ["a"] * 4}, "prompt", "There are 4 prompts; at most 3 are allowed."),
    ({"suffix": "x", "echo": True}, "echo", "does not go with suffix"),
    ({"best_of": 2}, "best_of", "best_of is 2 and n is 1"),
    ({"max_tokens": 0}, "max_tokens", "unless echo is true"),
    ({"logprobs": 7}, "logprobs", "at most 6"),
    ({"logprobs": True}, "logprobs", "must be an integer or null, not a boolean"),
    ({"add_special_tokens": False}, "add_special_tokens", "token ids"),
    ({"messages": []}, "messages", "Unrecognized"),
]


@pytest.mark.parametrize(
    "ask, fields, field, says",
    [
        *((ask, *row) for row in REFUSED_BOTH for ask in (chat, completion)),
        *((chat, *row) for row in REFUSED_CHAT),
        *((completion, *row) for row in REFUSED_COMPLETION),
    ],
    ids=case_id,
)
def test_what_cannot_be_honoured_is_refused_by_name(ask, fields, field, says):
    with pytest.raises(InvalidRequest) as caught:
        ask(**fields)
    assert says in caught.value.public and caught.value.field == field


@pytest.mark.parametrize("decode, name", [(decode_chat, "messages"), (decode_completion, "prompt")])
def test_what_is_missing_is_named(decode, name):
    body = {"model": "m", "messages": [USER], "prompt": "x"}
    del body["messages" if decode is decode_completion else "prompt"], body[name]
    with pytest.raises(InvalidRequest, match=f"Missing required parameter: {name}"):
        decode(json.dumps(body).encode(), LIMITS)
