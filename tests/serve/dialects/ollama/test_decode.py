"""Every field of /api/chat and /api/generate: what it becomes, and how it is refused."""

import json

import pytest

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.ollama.dialect import DIALECT, decode_chat, decode_generate, name_to_show
from quire.types.chat import Ask, ChatRequest, CompletionRequest, Terms, Tool
from quire.types.errors import InvalidRequest
from quire.types.message import Message, ToolCall
from quire.types.request import Constraint, ConstraintKind, SamplingParams
from tests.serve.dialects.canned import refusal

pytestmark = pytest.mark.pure

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
GENERATE = {"model": "m", "prompt": "Hello"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
DEFAULTS = SamplingParams(temperature=0.8, top_k=40, top_p=0.9)


def chat(**fields) -> Ask:
    return decode_chat(json.dumps({**CHAT, **fields}).encode(), RequestLimits()).ask


def generate(**fields) -> Ask:
    return decode_generate(json.dumps({**GENERATE, **fields}).encode(), RequestLimits()).ask


BOTH = pytest.mark.parametrize("ask", [chat, generate])


@BOTH
def test_a_plain_request(ask):
    assert ask() == ChatRequest("m", (Message("user", "Hello"),), sampling=DEFAULTS, stream=True)


@BOTH
@pytest.mark.parametrize(
    "option, value, name, expected",
    [
        ("num_predict", 5, "max_tokens", 5),
        ("num_predict", 5.9, "max_tokens", 5),
        ("num_predict", -1, "max_tokens", None),
        ("num_predict", -2, "max_tokens", None),
        ("num_predict", 0, "max_tokens", None),
        ("num_predict", 1e30, "max_tokens", 2**31 - 1),
        ("temperature", 0, "temperature", 0.0),
        ("temperature", -1, "temperature", 0.0),
        ("temperature", None, "temperature", 0.8),
        ("top_k", 7, "top_k", 7),
        ("top_k", -1, "top_k", 0),
        ("top_p", 0.5, "top_p", 0.5),
        ("top_p", 0, "top_p", 1e-6),
        ("top_p", 2, "top_p", 1.0),
        ("min_p", 0.1, "min_p", 0.1),
        ("min_p", -1, "min_p", 0.0),
        ("typical_p", 0.7, "typical_p", 0.7),
        ("repeat_penalty", 1.1, "repetition_penalty", 1.1),
        ("presence_penalty", 1.5, "presence_penalty", 1.5),
        ("frequency_penalty", -1, "frequency_penalty", -1.0),
        ("seed", 42, "seed", 42),
        ("seed", 42.0, "seed", 42),
        ("seed", -1, "seed", None),
        ("stop", ["a", "", "b"], "stop", ("a", "b")),
    ],
)
def test_options(ask, option, value, name, expected):
    assert getattr(ask(options={option: value}).sampling, name) == expected


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"num_ctx": 0, "num_keep": 4, "num_batch": 1, "num_gpu": 1, "main_gpu": 0, "num_thread": 2}},
        {"options": {"mirostat": 2, "tfs_z": 0.5, "penalize_newline": True, "repeat_last_n": 64, "use_mmap": False}},
        {"options": {"no_such_option": [1]}},
        {"options": None, "format": None, "keep_alive": None, "think": None, "stream": None, "logprobs": None},
        {"format": "", "no_such_field": {"a": 1}, "Model": "x"},
        {"truncate": True, "shift": False, "_debug_render_only": False},
        {"top_logprobs": 5},
    ],
)
def test_what_changes_nothing(ask, fields):
    assert ask(**fields) == ask()


@BOTH
def test_num_ctx_limits_prompt_and_answer_together(ask):
    assert ask(options={"num_ctx": 4096.5}).terms.max_context == 4096
    assert ask(options={"num_ctx": -1}).terms.max_context is None


@BOTH
def test_streams_unless_told_otherwise(ask):
    assert ask().stream and ask(stream=True).stream and not ask(stream=False).stream


@BOTH
@pytest.mark.parametrize("given, wanted", [(True, "auto"), ("auto", "auto"), (False, "off"), ("off", "off")])
def test_drafts_are_switched_by_both_spellings(ask, given, wanted):
    assert ask(speculate=given).sampling.speculate == wanted and ask().sampling.speculate == "auto"


@BOTH
def test_formats(ask):
    assert ask(format="json").constraint == Constraint(ConstraintKind.JSON)
    text = json.dumps(SCHEMA, separators=(",", ":"))
    assert ask(format=SCHEMA).constraint == Constraint(ConstraintKind.SCHEMA, text)


@BOTH
@pytest.mark.parametrize(
    "think, expected, variables",
    [(True, True, {}), (False, False, {}), ("high", True, {"reasoning_effort": "high"})],
)
def test_think(ask, think, expected, variables):
    asked = ask(think=think)
    assert asked.think is expected and asked.template_variables == variables


@BOTH
@pytest.mark.parametrize(
    "given, seconds",
    [
        (0, 0.0),
        ("0", 0.0),
        ("0s", 0.0),
        (-1, -1.0),
        ("-1s", -1.0),
        ("-5m", -1.0),
        (3600, 3600.0),
        (1.5, 1.5),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("+.5s", 0.5),
        ("2m3.5s", 123.5),
        ("1500ms", 1.5),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("5ns", 5e-9),
    ],
)
def test_keep_alive(ask, given, seconds):
    assert ask(keep_alive=given).terms.keep_alive == pytest.approx(seconds)


@BOTH
def test_logprobs(ask):
    assert ask(logprobs=True).sampling.logprobs == 0
    assert ask(logprobs=True, top_logprobs=5).sampling.logprobs == 5


@pytest.mark.parametrize("empty", [{"prompt": ""}, {"prompt": None}, {"prompt": "", "raw": True}])
def test_no_prompt_loads_the_model(empty):
    assert generate(**empty) == CompletionRequest("m", ())


@pytest.mark.parametrize("empty", [[], None])
def test_no_messages_load_the_model(empty):
    assert chat(messages=empty, keep_alive="1h") == CompletionRequest("m", (), terms=Terms(keep_alive=3600.0))
    assert chat(messages=empty, keep_alive=0).terms.keep_alive == 0.0


def test_generate_with_a_system_prompt():
    assert generate(system="Be kind.").messages == (Message("system", "Be kind."), Message("user", "Hello"))


def test_a_raw_prompt_is_taken_as_it_is():
    raw = generate(raw=True, options={"num_predict": 3}, format="json", keep_alive=5)
    assert isinstance(raw, CompletionRequest) and raw.prompts == ("Hello",) and raw.stream
    assert raw.sampling.max_tokens == 3 and raw.constraint and raw.terms.keep_alive == 5.0


def test_tools():
    function = {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}
    given = [{"type": "function", "function": function}, {"function": {"name": "bare"}}]
    assert chat(tools=given).tools == (Tool("add", "Adds.", SCHEMA), Tool("bare"))


def test_roles_in_any_case_and_content_that_is_absent():
    given = [{"role": "System", "content": "s"}, {"role": "USER", "content": None}, {"role": "user"}]
    assert chat(messages=given).messages == (Message("system", "s"), Message("user"), Message("user"))


def call(name, **fields) -> dict:
    return {"function": {"name": name, "arguments": {"a": 1}}, **fields}


def result(text, **fields) -> dict:
    return {"role": "tool", "content": text, **fields}


def test_calls_without_ids_get_them_and_results_find_their_calls():
    calls = {"role": "assistant", "thinking": "Hm.", "tool_calls": [call("f"), call("g"), call("f")]}
    given = [*CHAT["messages"], calls, result("1", tool_name="g"), result("2"), result("3", tool_name="f"), result("4")]
    messages = chat(messages=given).messages
    made = tuple(ToolCall(f"call_{i}", name, '{"a":1}') for i, name in enumerate("fgf"))
    assert messages[1] == Message("assistant", "", "Hm.", made)
    assert [(message.text, message.tool_call_id, message.name) for message in messages[2:]] == [
        ("1", "call_1", "g"),
        ("2", "call_0", "f"),
        ("3", "call_2", "f"),
        ("4", None, None),
    ]


def test_ids_are_kept():
    calls = {"role": "assistant", "tool_calls": [call("f", id="x"), call("g", id="y")]}
    given = [*CHAT["messages"], calls, result("1", tool_call_id="y"), result("2", tool_call_id="z", tool_name="h")]
    messages = chat(messages=given).messages
    assert [message.id for message in messages[1].tool_calls] == ["x", "y"]
    assert [(message.tool_call_id, message.name) for message in messages[2:]] == [("y", "g"), ("z", "h")]


def test_a_users_message_ends_the_wait_for_results():
    calls = {"role": "assistant", "tool_calls": [call("f")]}
    messages = chat(messages=[calls, {"role": "user", "content": "?"}, result("late")]).messages
    assert messages[-1].tool_call_id is None


def test_the_last_message_of_the_assistant_is_gone_on_with():
    begun = {"role": "assistant", "content": "The answer is"}
    assert chat(messages=[*CHAT["messages"], begun]).continue_last
    assert not chat(messages=[*CHAT["messages"], {**begun, "tool_calls": [call("f")]}]).continue_last
    assert not chat().continue_last


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"stream": "no"}, "stream"),
        ({"format": "xml"}, "format"),
        ({"format": 5}, "format"),
        ({"think": "very"}, "think"),
        ({"think": 1}, "think"),
        ({"options": [1]}, "options"),
        ({"options": {"num_predict": "5"}}, "options.num_predict"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"top_k": True}}, "options.top_k"),
        ({"options": {"stop": "a"}}, "options.stop"),
        ({"options": {"stop": [1]}}, "options.stop.0"),
        ({"options": {"stop": ["x" * 1025]}}, "options.stop.0"),
        ({"options": {"stop": ["x"] * 65}}, "options.stop"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"presence_penalty": 3}}, "options.presence_penalty"),
        ({"options": {"seed": 1e30}}, "options.seed"),
        ({"options": {"num_ctx": "8k"}}, "options.num_ctx"),
        ({"keep_alive": "5"}, "keep_alive"),
        ({"keep_alive": "5 m"}, "keep_alive"),
        ({"keep_alive": ""}, "keep_alive"),
        ({"keep_alive": "5m" * 100}, "keep_alive"),
        ({"keep_alive": 1e30}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"keep_alive": []}, "keep_alive"),
        ({"speculate": "on"}, "speculate"),
        ({"speculate": 2}, "speculate"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"_debug_render_only": True}, "_debug_render_only"),
    ],
)
@pytest.mark.parametrize("decode, body", [(decode_chat, CHAT), (decode_generate, GENERATE)], ids=["chat", "generate"])
def test_refusals_name_the_field(decode, body, fields, field):
    error = refusal(decode, {**body, **fields})
    assert error and error.field == field and field in error.public


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "developer", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "images": ["aGk="]}]}, "messages.0.images"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls.0.function"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
            "messages.0.tool_calls.0.function.arguments",
        ),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"function": {"name": ""}}]}, "tools.0.function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tools": [{"function": {"name": "f"}}] * 2}, "tools"),
    ],
)
def test_what_only_a_chat_can_have_wrong(fields, field):
    error = refusal(decode_chat, {**CHAT, **fields})
    assert error and error.field == field and field in error.public


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"suffix": "x", "system": "s"}, "system"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"images": ["aGk="]}, "images"),
        ({"prompt": 5}, "prompt"),
        ({"raw": True, "system": "s"}, "raw"),
        ({"raw": "yes"}, "raw"),
    ],
)
def test_what_only_generate_can_have_wrong(fields, field):
    error = refusal(decode_generate, {**GENERATE, **fields})
    assert error and error.field == field and field in error.public


@pytest.mark.parametrize("empty", [{"suffix": "", "template": "", "context": [], "images": [], "system": ""}])
def test_go_has_no_difference_between_empty_and_absent(empty):
    assert generate(**empty) == generate()


def test_a_suffix_asks_for_the_middle():
    ask = generate(suffix="end")
    assert isinstance(ask, CompletionRequest) and (ask.prompts, ask.suffix) == ((GENERATE["prompt"],), "end")
    assert generate(prompt="", suffix="end").prompts == ("",)  # which loads nothing but the model, without a suffix


def test_which_model_to_show():
    assert name_to_show(b'{"model": "a", "name": "b", "verbose": true}') == "a"
    assert name_to_show(b'{"name": "b"}') == "b"
    for body in (b"{}", b'{"model": ""}', b'{"model": 5}', b"[]", b""):
        with pytest.raises(InvalidRequest):
            name_to_show(body)


def test_schemas_stand_alone():
    changes = {"/api/create", "/api/copy", "/api/delete", "/api/pull", "/api/push"}
    assert (
        set(DIALECT.schemas) == {"/api/chat", "/api/generate", "/api/show", "/api/embed", "/api/embeddings"} | changes
    )
    assert "$ref" not in json.dumps(dict(DIALECT.schemas))
    assert "_debug_render_only" in DIALECT.schemas["/api/chat"]["properties"]
