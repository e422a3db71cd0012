"""Conversations with tools through chat templates: what a template writes of a call, the style's parser reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quire.text.errors import RejectedMessages
from quire.text.parsers.compose import parser_for
from quire.text.parsers.conversation import as_template_messages, as_template_tools
from quire.text.parsers.registry import style_of
from quire.text.parsers.style import ArgumentsPiece, CallStart
from quire.text.template import ChatTemplate
from quire.types.chat import Tool
from quire.types.message import Message, ToolCall
from tests.text.parsers.corpus import parsed

pytestmark = pytest.mark.pure

# Templates of our own that ask of messages what the families' templates ask, and refuse what those refuse.
HERMES = """{% for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>
{% endfor %}{% for message in messages %}[{{ message.role }}]
{%- if message.reasoning_content is defined %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}"""
LLAMA = """{% for tool in tools or [] %}{{ tool | tojson(indent=4) }}
{% endfor %}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>
{%- if 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception("only single tool calls") }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- else %}{{ message.content | trim }}{% endif %}
{% endfor %}"""
MISTRAL = """{% macro nine(id) %}
{%- if id | length != 9 %}{{ raise_exception("ids have nine letters") }}{% endif %}{{ id }}{% endmacro %}
{%- for message in messages %}
{%- if message.tool_calls is defined %}AS_WRITTEN
{%- elif message.role == "tool" %}[TOOL_RESULTS]{{ nine(message.tool_call_id) }} {{ message.content }}[/TOOL_RESULTS]
{%- else %}[{{ message.role }}]{{ message.content }}{% endif %}
{% endfor %}"""
IN_A_LIST = """[TOOL_CALLS][{% for call in message.tool_calls %}
{{- (call.function | tojson)[:-1] }}, "id": "{{ nine(call.id) }}"}{{ "" if loop.last else ", " }}
{%- endfor %}]"""
BY_NAME = """{% for call in message.tool_calls %}[TOOL_CALLS]{{ call.function.name }}
{{- "[CALL_ID]" + nine(call.id) }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor %}"""
MISTRAL_LIST, MISTRAL_NAMED = MISTRAL.replace("AS_WRITTEN", IN_A_LIST), MISTRAL.replace("AS_WRITTEN", BY_NAME)
PLAIN = "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
GRANITE = """{% if tools %}<|start_of_role|>tools<|end_of_role|>use <|tool_call|>: {{ tools | tojson }}{% endif %}
{%- for message in messages %}<|start_of_role|>{{ message['role'] }}<|end_of_role|>{{ message['content'] }}
{% endfor %}"""
PHI4 = """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message %}
{{- '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}{% else %}
{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"""
COMMAND = """{{ tools | tojson }}{% for message in messages %}<|{{ message.role }}|>
{%- if message.tool_calls %}<|START_ACTION|>[
{% for call in message.tool_calls %}
    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ call.function.name }}", "parameters":
{{- ' ' + call.function.arguments | tojson }}}{{ "" if loop.last else "," }}
{% endfor %}]<|END_ACTION|>{% else %}{{ message.content }}{% endif %}
{% endfor %}"""
NEMOTRON = """{{ tools | tojson }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- if message.tool_calls %}<TOOLCALL>[{% for call in message.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}}
{{- "" if loop.last else ", " }}{% endfor %}]</TOOLCALL>{% endif %}
{% endfor %}"""
HUNYUAN = NEMOTRON.replace("TOOLCALL", "tool_calls")
APERTUS = (
    NEMOTRON.replace("<TOOLCALL>", "<|tools_prefix|>").replace("</TOOLCALL>", "<|tools_suffix|>")
    .replace("""'{"name": "' + call.function.name + '", "arguments": '""", """'{"' + call.function.name + '": '""")
)  # fmt: skip
TAGS = """{{ tools | tojson }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}
{% endfor %}"""
SEED = TAGS.replace("tool_call>", "seed:tool_call>").replace(">\n{{ value", ">{{ value").replace("}\n</p", "}</p")
GLM = """{{ tools | tojson }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments | items %}<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{% endfor %}"""
DEEPSEEK = """{{ tools | tojson }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ "<｜tool▁calls▁begin｜>" if loop.first else "\n" }}
{{- "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + call.function.name + "\n```json\n" }}
{{- call.function.arguments | tojson }}{{ "\n```<｜tool▁call▁end｜>" }}{{ "<｜tool▁calls▁end｜>" if loop.last else "" }}
{%- endfor %}
{% endfor %}"""
DEEPSEEK_V31 = """{{ tools | tojson }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ "<｜tool▁calls▁begin｜>" if loop.first else "" }}
{{- "<｜tool▁call▁begin｜>" + call.function.name + "<｜tool▁sep｜>" + call.function.arguments | tojson }}
{{- "<｜tool▁call▁end｜>" }}{{ "<｜tool▁calls▁end｜>" if loop.last else "" }}
{%- endfor %}
{% endfor %}"""
# Those of the published models write no tools, and some take arguments only as text.
NO_TOOLS, NO_TOOLS_V31 = (
    source.replace("{{ tools | tojson }}", "").replace("arguments | tojson", "arguments + ''")
    for source in (DEEPSEEK, DEEPSEEK_V31)
)
GEMMA4 = """{% macro write(value) %}
{%- if value is string %}<|"|>{{ value }}<|"|>
{%- elif value is mapping %}{{ "{" }}{% for key, each in value | items %}{{ "" if loop.first else "," }}
{{- '<|"|>' + key + '<|"|>:' }}{{ write(each) }}{% endfor %}{{ "}" }}
{%- elif value is sequence %}[{% for each in value %}{{ "" if loop.first else "," }}{{ write(each) }}{% endfor %}]
{%- else %}{{ value | tojson }}{% endif %}{% endmacro %}
{{- tools | tojson }}{% for message in messages %}<|turn>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{{ "{" }}
{%- for key, each in call.function.arguments | items %}{{ "" if loop.first else "," }}{{ key }}:{{ write(each) }}
{%- endfor %}{{ "}" }}<tool_call|>{% endfor %}<turn|>
{% endfor %}"""
MINIMAX = """{{ tools | tojson }}{% for message in messages %}]~b]{{ message.role }}
{%- if message.role == "assistant" %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ "<minimax:tool_call>" if loop.first else "" }}
<invoke name="{{ call.function.name }}">
{% for key, value in call.function.arguments | items %}<parameter name="{{ key }}">
{{- value if value is string else value | tojson }}</parameter>
{% endfor %}</invoke>{{ "\n</minimax:tool_call>" if loop.last else "" }}{% endfor %}
{% endfor %}"""
IN_ONE_LINE = GLM.replace("}\n{% for key", "}{% for key").replace("</arg_key>\n", "</arg_key>")
IN_ONE_LINE = IN_ONE_LINE.replace("</arg_value>\n", "</arg_value>")
KIMI = """{{ tools | tojson }}{% for message in messages %}<|im_{{ message.role }}|>{{ message.name }}<|im_middle|>
{%- if message.role == "tool" %}Result of {{ message.tool_call_id }}: {% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ "<|tool_calls_section_begin|>" if loop.first else "" }}
{{- "<|tool_call_begin|>" + call.id + "<|tool_call_argument_begin|>" + call.function.arguments | tojson }}
{{- "<|tool_call_end|>" }}{{ "<|tool_calls_section_end|>" if loop.last else "" }}{% endfor %}<|im_end|>
{% endfor %}"""
LFM2 = """{% if tools %}<|system|>{{ "List of tools: <|tool_list_start|>" }}{{ tools | tojson }}{% endif %}
{%- for message in messages %}<|im_start|>{{ message["role"] }}
{{ message["content"] + "<|im_end|>" }}
{% endfor %}"""
LFM25 = LFM2.replace("<|tool_list_start|>", "").replace(
    """{% endfor %}""",
    """
{%- if message.tool_calls is defined %}<|tool_call_start|>[
{%- for call in message.tool_calls %}{{ "" if loop.first else ", " }}{{ call.function.name }}(
{%- for key, value in call.function.arguments.items() %}{{ "" if loop.first else ", " }}{{ key }}=
{%- if value is string %}{{ "'" + value + "'" }}{% else %}{{ value | string }}{% endif %}{% endfor %})
{%- endfor %}]<|tool_call_end|>{% endif %}
{% endfor %}""",
)
# Built like the template of gpt-oss: types of parameters by a macro that calls itself, a system message of its own
# with date and effort, the first message as instructions, one call a turn, the names of results by the latest call.
HARMONY = """{% macro kind(schema) %}
{%- if schema.type == "array" %}{{ kind(schema["items"]) + "[]" }}
{%- elif schema.enum %}{{ '"' + schema.enum | join('" | "') + '"' }}
{%- elif schema.properties is defined %}{{ "{" }}{% for key, each in schema.properties.items() %}
{{- key + ("" if key in (schema.required or []) else "?") + ": " + kind(each) + ", " }}{% endfor %}{{ "}" }}
{%- else %}{{ schema.type or "any" }}{% endif %}{% endmacro %}
{%- macro facts() %}
{%- if model_identity is not defined %}{% set model_identity = "A model." %}{% endif %}
{%- if reasoning_effort is not defined %}{% set reasoning_effort = "medium" %}{% endif %}
{{- model_identity + " Year: " + strftime_now("%Y") + " Effort: " + reasoning_effort }}
{%- if builtin_tools %}{% set found = namespace(python=false) %}
{%- for tool in builtin_tools %}{% if tool == "python" %}{% set found.python = true %}{% endif %}{% endfor %}
{{- " Python: " + found.python | string }}{% endif %}{% endmacro %}
{{- "<|start|>system<|message|>" + facts() + "<|end|>" }}
{%- if messages[0].role in ["developer", "system"] %}
{%- set instructions, rest = messages[0].content, messages[1:] %}
{%- else %}{% set instructions, rest = "", messages %}{% endif %}
{%- if instructions or tools %}{{ "<|start|>developer<|message|>" + instructions }}
{%- for tool in tools or [] %}
{{- "\ntype " + tool.function.name + " = (_: " + kind(tool.function.parameters) + ") => any;" }}
{%- endfor %}{{ "<|end|>" }}{% endif %}
{%- set latest = namespace(name=none) %}
{%- for message in rest %}
{%- if message.role == "assistant" and "tool_calls" in message %}
{%- if message.content and message.thinking %}{{ raise_exception("either content or thinking") }}{% endif %}
{%- if message.content or message.thinking %}
{{- "<|start|>assistant<|channel|>analysis<|message|>" + (message.content or message.thinking) + "<|end|>" }}{% endif %}
{%- set latest.name = message.tool_calls[0].function.name %}
{{- "<|start|>assistant to=functions." + latest.name + "<|channel|>commentary json<|message|>" }}
{{- message.tool_calls[0].function.arguments | tojson + "<|call|>" }}
{%- elif message.role == "assistant" %}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
{%- elif message.role == "tool" %}
{%- if latest.name is none %}{{ raise_exception("no call before a result") }}{% endif %}
{{- "<|start|>functions." + latest.name + " to=assistant<|channel|>commentary<|message|>" }}
{{- message.content | tojson + "<|end|>" }}
{%- elif message.role == "user" %}{{ "<|start|>user<|message|>" + message.content + "<|end|>" }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
TEMPLATES = [
    ("harmony", HARMONY),
    ("kimi", KIMI),
    ("lfm2", LFM2),
    ("lfm25", LFM25),
    ("minimax", MINIMAX),
    ("glm47", IN_ONE_LINE),
    ("granite", GRANITE),
    ("phi4", PHI4),
    ("command", COMMAND),
    ("nemotron", NEMOTRON),
    ("hunyuan", HUNYUAN),
    ("apertus", APERTUS),
    ("qwen3_coder", TAGS),
    ("seed_oss", SEED),
    ("glm", GLM),
    ("deepseek", DEEPSEEK),
    ("deepseek", NO_TOOLS),
    ("deepseek_v31", DEEPSEEK_V31),
    ("deepseek_v31", NO_TOOLS_V31),
    ("gemma4", GEMMA4),
    ("hermes", HERMES),
    ("llama3", LLAMA),
    ("mistral", MISTRAL_LIST),
    ("mistral", MISTRAL_NAMED),
    ("generic", PLAIN),
]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool("weather", "Of a <city>", SCHEMA), Tool("get_time"))
ODD = '{"city": "Zürich \\"Höngg\\" {", "days": [1, null, {"a": 0.5}]}'
CALLS = (ToolCall("call_abc-1", "weather", ODD), ToolCall("call_abc-2", "get_time", ""))
CHAT = (
    Message("system", "Be brief."),
    Message("user", "Weather?"),
    Message("assistant", "", reasoning="I must look.", tool_calls=CALLS),
    Message("tool", '{"sky": "blau"}', tool_call_id="call_abc-1"),
    Message("tool", "12:00", tool_call_id="call_abc-2"),
    Message("user", "And?"),
)


def rendered(source: str, chat: Sequence[Message], tools: Sequence[Tool] = TOOLS) -> str:
    messages, left = style_of([source]).prepare(chat, tools)
    template = ChatTemplate(source)
    return template.render(as_template_messages(messages), tools=as_template_tools(left))


@pytest.mark.parametrize("family, source", TEMPLATES)
def test_what_a_template_writes_the_parser_reads(family: str, source: str) -> None:
    style = style_of([source])
    assert style.name == family
    lines = rendered(source, CHAT)
    assert "weather" in lines and "blau" in lines and "12:00" in lines and "Be brief." in lines
    before = rendered(source, CHAT[:2])
    answer = lines[len(before) :]
    begin = min(place for mark in (*style.marks, '{"name"') if (place := answer.find(mark)) >= 0)
    found = []
    for turn in answer[begin:].split("<|start_header_id|>assistant<|end_header_id|>"):  # one for each call, or all
        found += [
            p for p in parsed(parser_for(style, None, TOOLS), [turn]) if isinstance(p, CallStart | ArgumentsPiece)
        ]
    assert [piece.name for piece in found[::2]] == ["weather", "get_time"]  # type: ignore[union-attr]
    assert [json.loads(piece.text) for piece in found[1::2]] == [json.loads(ODD), {}]  # type: ignore[union-attr]


def test_templates_get_objects_and_no_keys_that_a_message_has_not() -> None:
    plain = as_template_messages(CHAT)
    assert plain[0] == {"role": "system", "content": "Be brief."}
    assert plain[2] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I must look.",
        "tool_calls": [
            {"id": "call_abc-1", "type": "function", "function": {"name": "weather", "arguments": json.loads(ODD)}},
            {"id": "call_abc-2", "type": "function", "function": {"name": "get_time", "arguments": {}}},
        ],
    }
    assert plain[4] == {"role": "tool", "content": "12:00", "tool_call_id": "call_abc-2", "name": "get_time"}


def test_arguments_that_a_model_once_wrote_badly_do_not_end_the_conversation() -> None:
    broken = Message("assistant", tool_calls=(ToolCall("1", "weather", '{"city": "Os'),))
    assert as_template_messages([broken])[0]["tool_calls"][0]["function"]["arguments"] == '{"city": "Os'
    assert "Os" in rendered(HERMES, [broken])


def test_tools_have_all_that_templates_ask_of_them() -> None:
    assert as_template_tools(TOOLS) == [
        {"type": "function", "function": {"name": "weather", "description": "Of a <city>", "parameters": SCHEMA}},
        {
            "type": "function",
            "function": {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    assert as_template_tools(()) is None
    (weather, _) = as_template_tools(TOOLS, sorts_keys=True) or ()
    assert [*weather, *weather["function"]] == ["function", "type", "description", "name", "parameters"]
    assert list(weather["function"]["parameters"]) == ["properties", "required", "type"]


def test_llama_gets_one_call_a_turn_each_followed_by_its_result() -> None:
    with pytest.raises(RejectedMessages, match="single tool calls"):
        ChatTemplate(LLAMA).render(as_template_messages(CHAT))
    messages, tools = style_of([LLAMA]).prepare(CHAT, TOOLS)
    assert tools == TOOLS
    assert [(m.role, m.text, [call.name for call in m.tool_calls]) for m in messages[2:]] == [
        ("assistant", "", ["weather"]),
        ("tool", '{"sky": "blau"}', []),
        ("assistant", "", ["get_time"]),
        ("tool", "12:00", []),
        ("user", "And?", []),
    ]
    assert [m.reasoning for m in messages if m.role == "assistant"] == ["I must look.", None]
    stray = Message("tool", "?", tool_call_id="unknown")
    assert stray in style_of([LLAMA]).prepare([*CHAT[:4], stray, *CHAT[4:]], TOOLS).messages


def test_granite_and_phi4_get_calls_as_text_and_phi4_its_tools_too() -> None:
    messages, tools = style_of([GRANITE]).prepare(CHAT, TOOLS)
    assert tools == TOOLS and messages[3:] == CHAT[3:]
    calls = f'{{"name": "weather", "arguments": {ODD}}}, {{"name": "get_time", "arguments": {{}}}}'
    assert messages[2].text == f"<|tool_call|>[{calls}]"
    messages, tools = style_of([PHI4]).prepare(CHAT, TOOLS)
    assert tools == () and messages[2].text.endswith("]<|/tool_call|>") and not messages[2].tool_calls
    begin, described = messages[0].text.removesuffix("<|/tool|>").split("<|tool|>")
    assert begin == "Be brief." and json.loads(described)[0] == {
        "name": "weather", "description": "Of a <city>", "parameters": SCHEMA["properties"],
    }  # fmt: skip
    alone = style_of([PHI4]).prepare([Message("user", "Hi")], TOOLS).messages
    assert [m.role for m in alone] == ["system", "user"] and "<|tool|>" in alone[0].text
    assert style_of([PHI4]).prepare([Message("user", "Hi")], ()).messages == (Message("user", "Hi"),)


def test_gpt_oss_gets_one_call_a_turn_and_what_else_its_template_would_refuse_or_leave_out() -> None:
    call = "<|channel|>commentary json<|message|>"
    with pytest.raises(RejectedMessages, match="either content or thinking"):
        both = replace(CHAT[2], text="I look.", tool_calls=CALLS[:1])
        ChatTemplate(HARMONY).render(as_template_messages([both]))
    chat = (*CHAT[:2], replace(CHAT[2], text="I look."), *CHAT[3:5], Message("system", "In German."), *CHAT[5:])
    text = rendered(HARMONY, chat)
    assert text.count(call) == 2 and "Be brief.\n\nIn German.\ntype weather = (_: {city: string, }) => any;" in text
    order = [
        "analysis<|message|>I must look.\n\nI look.<|end|>",
        "to=functions.weather",
        '"{\\"sky',
        "to=functions.get_time",
    ]
    places = [text.index(part) for part in (*order, '"12:00"<|end|>', "user<|message|>And?<|end|>")]
    assert places == sorted(places) and text.endswith("<|start|>assistant")
    assert 'functions.get_time to=assistant<|channel|>commentary<|message|>"12:00"' in text


@pytest.mark.parametrize("source, written", [(NO_TOOLS, DEEPSEEK), (NO_TOOLS_V31, DEEPSEEK_V31)])
def test_a_template_of_deepseek_that_writes_no_tools_has_them_in_the_system_message(source: str, written: str) -> None:
    messages, tools = style_of([source]).prepare(CHAT, TOOLS)
    assert tools == () and messages[0].text.startswith("Be brief.\n\n") and '{"name": "get_time"}' in messages[0].text
    assert "<｜tool▁call▁begin｜>" in messages[0].text and "{ARGUMENTS}" in messages[0].text
    calls = rendered(written, CHAT[2:3], ()).removeprefix("null")  # as a template writes them that does
    assert rendered(source, CHAT[2:3], ()) == calls


def test_kimi_gets_ids_as_it_writes_them_and_results_keep_to_their_calls() -> None:
    again = (
        Message("assistant", tool_calls=(ToolCall("x", "get_time", "{}"),)),
        Message("tool", "1", tool_call_id="x"),
    )
    text = rendered(KIMI, (*CHAT, *again))
    ids = ["functions.weather:0", "functions.get_time:1", "functions.get_time:2"]
    assert all(text.count(f"<|tool_call_begin|>{each}<|tool_call_argument") == 1 for each in ids)
    assert [text.index(f"Result of {each}: ") for each in ids] == sorted(text.index(f"Result of {i}: ") for i in ids)
    stray = Message("tool", "?", tool_call_id="unknown")
    assert style_of([KIMI]).prepare([stray], ()).messages == (stray,)


def test_mistral_gets_ids_of_nine_letters_and_results_keep_to_their_calls() -> None:
    with pytest.raises(RejectedMessages, match="nine letters"):
        ChatTemplate(MISTRAL_LIST).render(as_template_messages(CHAT))
    messages = style_of([MISTRAL_LIST]).prepare(CHAT, TOOLS).messages
    ids = [call.id for call in messages[2].tool_calls]
    assert ids == [messages[3].tool_call_id, messages[4].tool_call_id] and len(set(ids)) == 2
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    good = Message("assistant", tool_calls=(ToolCall("aB3dE6gH9", "get_time", "{}"),))
    assert style_of([MISTRAL_LIST]).prepare([good], ()).messages == (good,)


def test_a_template_that_knows_no_tools_is_told_in_words() -> None:
    style = style_of([PLAIN])
    messages, tools = style.prepare(CHAT, TOOLS)
    assert tools == ()
    assert [m.role for m in messages] == ["system", "user", "assistant", "user", "user"]
    assert messages[0].text.startswith("Be brief.\n\n")
    assert (
        f'{{"name": "weather", "description": "Of a <city>", "parameters": {json.dumps(SCHEMA)}}}' in messages[0].text
    )
    assert '\n{"name": "get_time"}\n' in messages[0].text
    assert messages[2].reasoning == "I must look." and not messages[2].tool_calls
    assert messages[3].text == (
        '<tool_response>\n{"sky": "blau"}\n</tool_response>\n<tool_response>\n12:00\n</tool_response>'
    )
    alone = style.prepare([Message("user", "Hi")], TOOLS).messages
    assert [m.role for m in alone] == ["system", "user"] and alone[0].text in messages[0].text
    assert style.prepare([Message("user", "Hi")], ()).messages == (Message("user", "Hi"),)
