"""Every field of /v1/messages: what it becomes, and how it is refused."""

import json

import pytest

from quire.serve.dialects.anthropic.dialect import DIALECT, decode, decode_count
from quire.serve.dialects.contract import RequestLimits
from quire.types.chat import ChatRequest, Terms, Tool, ToolChoice
from quire.types.message import Message, ToolCall
from quire.types.request import Constraint, ConstraintKind
from tests.serve.dialects.canned import refusal

pytestmark = pytest.mark.pure

HELLO = {"model": "m", "max_tokens": 2048, "messages": [{"role": "user", "content": "Hello"}]}
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {}}}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
HOUR = {"type": "ephemeral", "ttl": "1h"}
SHORT = {"type": "ephemeral"}


def asked(**fields) -> ChatRequest:
    ask = decode(json.dumps({**HELLO, **fields}).encode(), RequestLimits()).ask
    assert isinstance(ask, ChatRequest)
    return ask


def said(*messages) -> tuple[Message, ...]:
    return asked(messages=list(messages)).messages


def user(content) -> dict:
    return {"role": "user", "content": content}


def assistant(content) -> dict:
    return {"role": "assistant", "content": content}


def text(content, **fields) -> dict:
    return {"type": "text", "text": content, **fields}


CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "2"}


def test_a_plain_request():
    ask = asked()
    assert ask.model == "m" and ask.messages == (Message("user", "Hello"),)
    assert ask.sampling.max_tokens == 2048 and ask.sampling.temperature == 1.0
    assert not ask.stream and ask.think is None and not ask.continue_last and ask.terms.keep is None


@pytest.mark.parametrize(
    "field, value, of_sampling",
    [
        ("max_tokens", 7, ("max_tokens", 7)),
        ("temperature", 0, ("temperature", 0.0)),
        ("temperature", None, ("temperature", 1.0)),
        ("top_p", 0.5, ("top_p", 0.5)),
        ("top_p", 0, ("top_p", 1e-6)),
        ("top_k", 40, ("top_k", 40)),
        ("speculate", "off", ("speculate", "off")),
        ("speculate", False, ("speculate", "off")),
        ("speculate", True, ("speculate", "auto")),
        ("speculate", None, ("speculate", "auto")),
        ("stop_sequences", ["a", "b"], ("stop", ("a", "b"))),
        ("stop_sequences", None, ("stop", ())),
    ],
)
def test_sampling(field, value, of_sampling):
    name, expected = of_sampling
    assert getattr(asked(**{field: value}).sampling, name) == expected


def test_who_asks_is_kept_for_rules():
    assert asked(metadata={"user_id": "someone"}).terms == Terms(user="someone")


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": None}},
        {"service_tier": "auto"},
        {"service_tier": "standard_only"},
        {"speed": "standard"},
        {"container": None, "inference_geo": None, "diagnostics": None, "mcp_servers": None},
        {"thinking": None, "tools": None, "tool_choice": None, "system": None, "stream": None, "output_config": None},
        {"context_management": None},
    ],
)
def test_what_changes_nothing(fields):
    assert asked(**fields) == asked()


@pytest.mark.parametrize(
    "thinking, think",
    [
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking(thinking, think):
    assert asked(thinking=thinking).think is think


def test_effort_is_the_templates():
    assert asked(output_config={"effort": "low"}).template_variables == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_a_schema_is_a_constraint(fields):
    constraint = asked(**fields).constraint
    assert constraint == Constraint(ConstraintKind.SCHEMA, json.dumps(SCHEMA, separators=(",", ":")))


@pytest.mark.parametrize(
    "choice, expected",
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "auto", "disable_parallel_tool_use": False}, ToolChoice()),
        ({"type": "any"}, ToolChoice("required", parallel=False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice("required")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required", parallel=False)),
        ({"type": "tool", "name": "add"}, ToolChoice("required", "add", parallel=False)),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_tool_choice(choice, expected):
    assert asked(tools=[TOOL], tool_choice=choice).tool_choice == expected


def test_tools():
    more = {
        **TOOL,
        "type": "custom",
        "strict": True,
        "input_examples": [{"a": 1}],
        "eager_input_streaming": True,
        "defer_loading": False,
        "allowed_callers": ["direct"],
    }
    schema = TOOL["input_schema"]
    assert asked(tools=[TOOL]).tools == (Tool("add", "Adds.", schema),)
    assert asked(tools=[more]).tools == (Tool("add", "Adds.", {**schema, "examples": [{"a": 1}]}, strict=True),)


def test_system_text_and_blocks():
    assert asked(system="Be kind.").messages[0] == Message("system", "Be kind.")
    assert asked(system=[text("Be kind."), text("Be brief.")]).messages[0] == Message("system", "Be kind.\nBe brief.")
    assert asked(system="").messages == asked(system=[]).messages == asked().messages


def test_what_claude_code_says_anew_in_every_request_is_no_part_of_the_prompt():
    line = "x-anthropic-billing-header: cc_version=2.1.1; cch=12345;"
    expected = (Message("system", "You are it."), Message("user", "Hello"))
    assert asked(system=[text(line), text("You are it.")]).messages == expected
    assert asked(system=f"{line}\nYou are it.").messages == expected


def test_neighbours_of_one_role_are_one_turn():
    assert said(user("a"), user([text("b"), text("c")]), assistant("d"), assistant([text("e")]), user("f")) == (
        Message("user", "a\nb\nc"),
        Message("assistant", "de"),
        Message("user", "f"),
    )


def test_a_system_message_stays_in_its_place():
    later = {"role": "system", "content": "Now in French."}
    assert [message.role for message in said(user("a"), later, user("b"))] == ["user", "system", "user"]


def test_calls_and_results_keep_their_order():
    assistants = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, text("I add."), CALL]
    call = ToolCall("t1", "add", '{"a":1}')
    assert said(user("Add."), assistant(assistants), user([RESULT, text("And?")])) == (
        Message("user", "Add."),
        Message("assistant", "I add.", reasoning="Hm.", tool_calls=(call,)),
        Message("tool", "2", tool_call_id="t1", name="add"),
        Message("user", "And?"),
    )


@pytest.mark.parametrize(
    "result, expected",
    [
        ({"content": [text("a"), text("b")]}, "a\nb"),
        ({"content": None}, ""),
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": "fine", "is_error": False}, "fine"),
    ],
)
def test_results(result, expected):
    assert said(user("Add."), assistant([CALL]), user([{**RESULT, **result}]))[-1].text == expected


def test_other_servers_thoughts_are_taken_and_not_read():
    redacted = {"type": "redacted_thinking", "data": "x"}
    assert said(user("a"), assistant([redacted, text("b")]), user("c"))[1] == Message("assistant", "b")


def test_an_echoed_block_is_taken():
    echoed = {**CALL, "caller": {"type": "direct"}, "toolset_name": None}
    messages = said(user("a"), assistant([text("b", citations=None), echoed]), user([RESULT]))
    assert messages[1].tool_calls == (ToolCall("t1", "add", '{"a":1}'),)


def test_the_last_message_of_the_assistant_is_gone_on_with():
    begun = asked(messages=[user("a"), assistant("The answer is (")])
    assert begun.continue_last and begun.messages[-1] == Message("assistant", "The answer is (")
    empty = asked(messages=[user("a"), assistant("")])
    assert not empty.continue_last and empty.messages == (Message("user", "a"),)


@pytest.mark.parametrize("keep, remembered", [("all", [1, 3, 5]), ({"type": "all"}, [1, 3, 5]), (None, [5])])
def test_older_thoughts_can_be_left_out(keep, remembered):
    thought = assistant([{"type": "thinking", "thinking": "Hm."}, text("b")])
    messages = [user("a"), thought, user("c"), thought, user("d"), thought, user("e")]
    edit = {"type": "clear_thinking_20251015", **({"keep": keep} if keep else {})}
    ask = asked(messages=messages, context_management={"edits": [edit]})
    assert [place for place, message in enumerate(ask.messages) if message.reasoning] == remembered
    two = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}
    ask = asked(messages=messages, context_management={"edits": [two]})
    assert [place for place, message in enumerate(ask.messages) if message.reasoning] == [3, 5]


def test_a_mark_keeps_the_prompt_up_to_its_message():
    marked = asked(
        messages=[
            user([text("a", cache_control=SHORT), text("b")]),
            assistant([{**CALL, "cache_control": HOUR}]),
            user([{**RESULT, "cache_control": SHORT}, text("c")]),
        ]
    )
    assert [message.keep for message in marked.messages] == [300.0, 3600.0, 300.0, None]
    assert marked.terms.keep is None


def test_a_mark_on_the_whole_request_is_its_last_messages():
    assert asked(cache_control=HOUR, system="s").messages[-1].keep == 3600.0


def test_marks_on_tools_and_system_are_the_system_messages():
    tool = {**TOOL, "cache_control": HOUR}
    assert asked(tools=[tool], system="s").messages[0].keep == 3600.0
    assert asked(system=[text("s", cache_control=SHORT)]).messages[0].keep == 300.0
    without = asked(tools=[tool])
    assert without.terms.keep == 3600.0 and without.messages[0].keep is None


@pytest.mark.parametrize(
    "fields, field, said",
    [
        ({"foo": 1}, "foo", "foo: Extra inputs are not permitted"),
        ({"n": 2}, "n", "n: Extra inputs are not permitted"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"max_tokens": 2**31}, "max_tokens", "<= 2147483647"),
        ({"max_tokens": "5"}, "max_tokens", "must be an integer, not a string"),
        ({"max_tokens": 1.5}, "max_tokens", "must be an integer, not a number"),
        ({"max_tokens": True}, "max_tokens", "must be an integer, not a boolean"),
        ({"model": ""}, "model", "length >= 1"),
        ({"model": 5}, "model", "must be a string"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [assistant("")]}, "messages", "At least one message"),
        ({"messages": [user(""), user("a")]}, "messages.0.content", "may be empty"),
        ({"messages": [user([])]}, "messages.0.content", "may be empty"),
        ({"messages": [{"content": "a"}]}, "messages.0.role", "Field required"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "Field required"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", "is 'tool'; it must be one of"),
        ({"messages": [{**user("a"), "name": "x"}]}, "messages.0.name", "Extra inputs"),
        (
            {"messages": [user([{"type": "image", "source": {}}])]},
            "messages.0.content.0.type",
            "is 'image'; it must be one of",
        ),
        ({"messages": [user([{"type": "document"}])]}, "messages.0.content.0.type", "is 'document'; it must be one of"),
        ({"messages": [user([{"text": "a"}])]}, "messages.0.content.0.type", "Field required"),
        ({"messages": [user([CALL])]}, "messages.0.content.0.type", "no such block"),
        ({"messages": [user("a"), assistant([RESULT])]}, "messages.1.content.0.type", "no such block"),
        ({"messages": [user([RESULT])]}, "messages.0.content.0.tool_use_id", "No tool_use before it"),
        ({"messages": [user("a"), assistant([CALL])]}, "messages", "no tool_result"),
        (
            {"messages": [user([text("a", cache_control={"type": "x"})])]},
            "messages.0.content.0.cache_control.type",
            "'x'",
        ),
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl", "is '2h'; it must be one of"),
        ({"temperature": -1}, "temperature", ">= 0"),
        ({"temperature": "hot"}, "temperature", "not a string"),
        ({"top_p": 1.5}, "top_p", "<= 1"),
        ({"top_k": -1}, "top_k", ">= 0"),
        ({"speculate": "on"}, "speculate", "it must be auto, off, true or false"),
        ({"stop_sequences": "a"}, "stop_sequences", "not a string"),
        ({"stop_sequences": [""]}, "stop_sequences.0", "from 1 to 1024"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences", "more than the 64"),
        ({"system": [{"type": "image"}]}, "system.0.type", "'image'"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "Field required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1}}, "thinking.budget_tokens", ">= 1024"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens", "less than max_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type", "is 'between_tools'; it must be one of"),
        ({"tools": [{"type": "web_search_20250305", "name": "w", "max_uses": 5}]}, "tools.0.type", "custom tools"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name", "matching regex"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema", "Field required"),
        ({"tools": [TOOL, TOOL]}, "tools", "unique"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading", "always loaded"),
        ({"tools": [{**TOOL, "name": f"t{i}"} for i in range(257)]}, "tools", "more than the 256"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "no such tool"),
        ({"tool_choice": "auto"}, "tool_choice", "not a string"),
        ({"output_config": {"effort": "much"}}, "output_config.effort", "'much'"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type", "is 'text'; it must be one of"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema", "Field required"),
        ({"metadata": {"x": 1}}, "metadata.x", "Extra inputs"),
        ({"service_tier": "fast"}, "service_tier", "'fast'"),
        ({"speed": "fast"}, "speed", "'fast'"),
        ({"container": "c"}, "container", "must be null"),
        ({"stream": "yes"}, "stream", "not a string"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits.0.type",
            "'clear_tool_uses_20250919'",
        ),
    ],
)
def test_refusals_name_the_field(fields, field, said):
    error = refusal(decode, {**HELLO, **fields})
    assert error and error.field == field and error.public.startswith(field) and said in error.public


def test_without_a_model_the_only_one_is_meant():
    ask = decode(
        json.dumps({key: value for key, value in HELLO.items() if key != "model"}).encode(), RequestLimits()
    ).ask
    assert ask.model == ""


@pytest.mark.parametrize("name", ["messages", "max_tokens"])
def test_what_is_required(name):
    error = refusal(decode, {key: value for key, value in HELLO.items() if key != name})
    assert error and error.public == f"{name}: Field required"


def test_limits_are_the_servers():
    big = {"type": "object", "description": "x" * 100}
    few = RequestLimits(max_schema_bytes=100, max_tools=1, max_stops=1, max_stop_chars=2)
    for fields in (
        {"tools": [{"name": "a", "input_schema": big}]},
        {"output_format": {"type": "json_schema", "schema": big}},
        {"tools": [TOOL, {**TOOL, "name": "b"}]},
        {"stop_sequences": ["a", "b"]},
        {"stop_sequences": ["abc"]},
    ):
        assert refusal(decode, {**HELLO, **fields}, few) and not refusal(decode, {**HELLO, **fields})


def test_counting_takes_what_makes_a_prompt_and_nothing_else():
    prompt = {"model": "m", "messages": HELLO["messages"], "system": "s", "tools": [TOOL]}
    ask = decode_count(json.dumps(prompt).encode(), RequestLimits())
    assert ask.messages == (Message("system", "s"), Message("user", "Hello")) and ask.tools
    error = refusal(decode_count, {**prompt, "temperature": 1})
    assert error and error.public == "temperature: Extra inputs are not permitted"


def test_schemas_stand_alone():
    for schema in DIALECT.schemas.values():
        assert "$ref" not in json.dumps(schema) and schema["additionalProperties"] is False
    assert set(DIALECT.schemas["/v1/messages"]["required"]) == {"messages", "max_tokens"}
