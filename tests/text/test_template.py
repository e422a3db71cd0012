"""Chat templates: the text of `transformers.apply_chat_template`, errors that name the message, and bounds."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer as Native
from tokenizers import models

from quire.text.errors import BrokenTemplate, RejectedMessages
from quire.text.template import ChatTemplate
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

LLAMA_LIKE = """{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + (message.content | tojson) + "<|eot_id|>" }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception("One tool call at once!") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL_LIKE = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(turns=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] in ("user", "assistant") %}
        {%- if (message["role"] == "user") != (ns.turns % 2 == 0) %}
            {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.turns = ns.turns + 1 %}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if tools and loop.last %}[AVAILABLE_TOOLS] {{ tools|tojson }}[/AVAILABLE_TOOLS]{%- endif %}
        {{- "[INST] " + (system_message + "\\n\\n" if loop.last and system_message is defined else "") }}
        {{- message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" and message.content %}
        {% generation %}{{- " " + message["content"]|trim + eos_token }}{% endgeneration %}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message["content"]|string + "}[/TOOL_RESULTS]" }}
    {%- endif %}
{%- endfor %}
"""

QWEN_LIKE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string %}
        {%- set ns.multi_step = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" and loop.first %}{% continue %}{% endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.split('</think>')[-1].lstrip('\\n') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für <eine> Stadt & 'mehr' 🌦",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
USER = {"role": "user", "content": "  Wie ist's in Zürich? <b>&amp; 日本</b>\n"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Sunny."}
CALL = {
    "role": "assistant", "content": "", "reasoning": "I must look.", "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "n": [1, None]}}}
    ],
}  # fmt: skip
RESULT = {"role": "tool", "content": '{"sky": "blau"}'}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one question": [USER],
    "a system prompt": [SYSTEM, USER],
    "many turns": [SYSTEM, USER, ANSWER, USER, ANSWER, USER],
    "an answer at the end": [USER, ANSWER],
}
TOOL_CHATS = {"a tool call": [SYSTEM, USER, CALL, RESULT], "and an answer": [USER, CALL, RESULT, ANSWER, USER]}
FAMILIES = {"llama": LLAMA_LIKE, "mistral": MISTRAL_LIKE, "qwen": QWEN_LIKE}
CASES = [
    *((family, chat, tools) for family in FAMILIES for chat in CHATS.values() for tools in (None, TOOLS)),
    *((family, chat, TOOLS) for family in ("llama", "qwen") for chat in TOOL_CHATS.values()),
]


def by_transformers(source: str, messages: list[dict[str, Any]], **more: Any) -> str:
    transformers = pytest.importorskip("transformers")
    oracle = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Native(models.BPE()), bos_token="<s>", eos_token="</s>", chat_template=source
    )
    text: str = oracle.apply_chat_template(messages, tokenize=False, **more)
    return text


@pytest.mark.parametrize("family, chat, tools", CASES)
def test_a_template_writes_what_transformers_writes(family: str, chat: list[dict[str, Any]], tools: Any) -> None:
    source = FAMILIES[family]
    template = ChatTemplate(source, tokens={"bos_token": "<s>", "eos_token": "</s>"})
    for prompts in (True, False):
        for variables in ({}, {"enable_thinking": False}, {"bos_token": "<x>", "documents": []}):
            expected = by_transformers(source, chat, tools=tools, add_generation_prompt=prompts, **variables)
            found = template.render(chat, tools=tools, add_generation_prompt=prompts, variables=variables)
            assert found == expected


def test_the_bundled_model_s_template_writes_what_transformers_writes(metadata: dict[str, Any]) -> None:
    template = ChatTemplate.from_gguf(metadata, tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    assert not template.is_default
    for chat in CHATS.values():
        for prompt in (True, False):
            expected = by_transformers(metadata["tokenizer.chat_template"], chat, add_generation_prompt=prompt)
            assert template.render(chat, add_generation_prompt=prompt) == expected


def test_a_model_without_a_template_speaks_chatml() -> None:
    template = ChatTemplate.from_gguf({})
    assert template.is_default
    assert template.render([SYSTEM, ANSWER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>assistant\nSunny.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_choose_the_template_that_is_named_for_them() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render([USER]) == "plain" and template.render([USER], tools=TOOLS) == "tools"
    key = "tokenizer.chat_template"
    metadata = {key: "plain", f"{key}.tool_use": "tools", "tokenizer.chat_templates": ["tool_use"]}
    assert ChatTemplate.from_gguf(metadata).render([USER], tools=TOOLS) == "tools"


@pytest.mark.parametrize(
    "messages, said",
    [
        ([USER, USER], "roles must alternate"),
        ([USER, {"role": "assistant"}, {"role": "user"}], r"messages\[1\] has no 'content'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content of messages\[0\] is list"),
        ([{"role": "user", "content": None}], r"content of messages\[0\] is null"),
        ([], "no messages"),
        (["hello"], r"messages\[0\] is str"),
        ([{"role": "user", "content": object()}], "not a JSON value"),
    ],
)
def test_a_refusal_says_what_in_the_messages_was_wrong(messages: Any, said: str) -> None:
    with pytest.raises(RejectedMessages, match=said) as error:
        ChatTemplate(MISTRAL_LIKE, tokens={"bos_token": "<s>", "eos_token": "</s>"}).render(messages)
    assert isinstance(error.value, InvalidRequest) and error.value.field == "messages"


def test_a_template_that_is_no_template_is_the_model_s_fault() -> None:
    with pytest.raises(BrokenTemplate, match="in line 2"):
        ChatTemplate("a\n{% if %}").render([USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.extend([1]) }}",
        "{{ messages[0].pop('role') }}",
        "{{ messages[0].update({}) }}",
        "{{ raise_exception.__globals__.re }}",
        "{{ namespace(__class__=1) }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(BrokenTemplate):
        ChatTemplate(source).render([USER])


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{{ range(100000000) | list }}",
        "{% for a in range(90000) %}{% for m in messages * 90000 %}{{ m.role }}{% endfor %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 10 ** 1000000000 }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s.replace('a', n.s) %}{% endfor %}",
        "{% set n = namespace(s=9) %}{% for i in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}",
        "{% set x = 'a' * 30000000 %}{{ x }}{{ x }}",
        "{% for m in messages %}{% set _ = messages.append(m) %}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_ended(source: str) -> None:
    with pytest.raises(RejectedMessages, match="does not finish"):
        ChatTemplate(source).render([USER])


def test_a_list_may_get_one_element_more_or_less() -> None:
    source = "{% set n = namespace(ids=[]) %}{% set _ = n.ids.append('a') %}{% set _ = n.ids.append('b') %}"
    assert ChatTemplate(source + "{{ n.ids.pop(0) }}{{ n.ids }}").render([USER]) == "a['b']"


def test_rendering_changes_nothing_that_was_given() -> None:
    chat = [dict(USER), dict(CALL)]
    before = repr(chat)
    ChatTemplate(QWEN_LIKE).render(chat, tools=TOOLS)
    assert repr(chat) == before
