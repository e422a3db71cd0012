"""Which style and which thoughts a model has, by its chat template or by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from quire.text.parsers.channels import CHANNELS
from quire.text.parsers.reasoning import KNOWN, ReasoningMarks, reasoning_of
from quire.text.parsers.registry import all_styles, by_name, style_of
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "template, name",
    [
        ('<tool_call>\\n{"name": "{{ name }}", "arguments": {{ arguments }}}\\n</tool_call>', "hermes"),
        ('return {\\"name\\": x, \\"arguments\\": y} within <tool_call></tool_call>', "hermes"),
        ("<tool_call>\\n<function={{ name }}>\\n<parameter={{ key }}>", "qwen3_coder"),
        ("<seed:tool_call>\\n<function={{ name }}>\\n<parameter={{ key }}>", "seed_oss"),
        ("<tool_call>{{ name }}\\n<arg_key>{{ tool_call.arguments }}", "glm"),
        ("<tool_call>{{ name }}<arg_key>{{ key }}</arg_key><arg_value>{{ value }}</arg_value></tool_call>", "glm47"),
        ("{% set opening = '<minimax:tool_call>' %}<invoke name=", "minimax"),
        ("<|tool_calls_section_begin|>{{ calls }}<|tool_calls_section_end|>", "kimi"),
        ("<|start|>assistant<|channel|>final<|message|>{{ content }}<|end|>", "harmony"),
        ("<|start_of_role|>system<|end_of_role|>respond with <|tool_call|> followed by a JSON list", "granite"),
        ("message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>'", "phi4"),
        ("<AVAILABLE_TOOLS>{{ tools }}</AVAILABLE_TOOLS><TOOLCALL>[{{ calls }}]</TOOLCALL>", "nemotron"),
        ('<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>', "hunyuan"),
        ('<|START_ACTION|>[{"tool_name": "{{ name }}", "parameters": {}}]<|END_ACTION|>', "command"),
        ("{% set tool_calls_token = '<|tools_prefix|>' %}", "apertus"),
        ("<|tool_call>call:{{ name }}{<tool_call|>", "gemma4"),
        ("{{ '<start_function_call>call:' + name }}", "function_gemma"),
        ("{{ 'List of tools: <|tool_list_start|>[' }}{{ tools }}{{ message['content'] }}", "lfm2"),
        ("{{ 'List of tools: [' }}{{ tools }}<|tool_call_start|>[{{ calls }}]<|tool_call_end|>", "lfm25"),
        ("[func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"),
        ("{{ tools }}<function_calls>{{ name }}({{ arguments }})</function_calls>", "olmo3"),
        ("<function_calls>{{ name }}({{ arguments }})</function_calls>", "generic"),
        ('{{ xml_tools }} <tool_call>\\n{"name": <function-name>, "arguments": <args>}\\n</tool_call>', "generic"),
        ("{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}\n```json", "deepseek"),
        ("{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>", "deepseek_v31"),
        ("{{ tool_calls }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>", "deepseek_v31"),
        ('<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls> and <tool_call>', "hunyuan"),
        ('<|header_start|>assistant<|header_end|>{"name": "a", "parameters": {}}', "llama3"),
        ('<|start_header_id|>assistant<|end_header_id|>{"name": "a", "parameters": {}}', "llama3"),
        ("<|start_header_id|>assistant<|end_header_id|>{{ message.content }}", "generic"),
        ("[TOOL_CALLS][{{ call | tojson }}]", "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", "mistral"),
        ("<|im_start|>{{ message.role }}", "generic"),
        ("", "generic"),
    ],
)
def test_a_style_is_known_by_the_template(template: str, name: str) -> None:
    assert style_of([template]).name == name
    assert style_of(["plain", template]).name == name  # one of several templates may be for tools


def test_every_style_has_a_name_of_its_own_and_the_generic_one_is_asked_last() -> None:
    styles = all_styles()
    assert {"hermes", "llama3", "mistral", "generic"} <= set(styles) and list(styles)[-1] == "generic"
    for name, style in styles.items():
        assert by_name(name) is style and import_module(f"quire.text.parsers.{name}").STYLE is style
    assert style_of([]).name == "generic"


def test_the_documentation_names_every_style_and_every_mark_of_thoughts() -> None:
    page = (Path(__file__).parents[3] / "docs" / "API.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in all_styles())
    assert all(f"`{marks.opening}{marks.label}`" in page for marks in KNOWN)
    assert all(f"`{marks.answer[0]}`" in page for marks in KNOWN if marks.answer)


def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"'gpt'; there are: .*hermes.*, llama3, .*mistral.*, generic"):
        by_name("gpt")


@pytest.mark.parametrize("marks", KNOWN, ids=lambda marks: "".join((marks.opening, *marks.more)))
def test_thoughts_are_known_by_the_template(marks: ReasoningMarks) -> None:
    answer = "".join((*(marks.answer or ()), marks.call))
    assert reasoning_of(["plain", f"{{{{ content.split('{marks.closing}')[-1] }}}} {answer}"]) == marks
    assert reasoning_of(["plain"]) is None
    assert reasoning_of(["<|start|>assistant<|channel|>analysis<|message|>", marks.closing]) is CHANNELS


def test_an_answer_begins_in_a_thought_if_the_prompt_ends_with_its_mark() -> None:
    think = KNOWN[0]
    assert think.begun_in("<|im_start|>assistant\n<think>\n") == think.begun_in("<|Assistant|><think>") == "<think>"
    assert not think.begun_in("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    channel = next(marks for marks in KNOWN if marks.label)
    assert channel.begun_in("<|turn>model\n<|channel>thought\n") and not channel.begun_in("<|turn>model\n<|channel>")
    assert not think.begun_in("<|im_start|>user\nWhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n")
