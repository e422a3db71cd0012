"""Conversations with gpt-oss, from the request to the events: prompts, what the template is given, and answers."""

from __future__ import annotations

from typing import Any

import pytest

from quire.text.answer_collector import AnswerCollector
from quire.text.choice_decoder import ChoiceDecoder
from quire.text.model_text import ModelText
from quire.text.output_format import constraint_of, output_format_of
from quire.text.parsers.channels import CHANNELS
from quire.text.prompts import encode_prompts
from quire.text.template import ChatTemplate
from quire.text.thinking import thinking_switches
from quire.types.chat import ChatRequest, Choice, Ending, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.message import Message, ToolCall
from quire.types.output import Finished, Tokens
from quire.types.request import Constraint, ConstraintKind, FinishReason, SamplingParams
from tests.text.parsers.guided import CONTROL, with_marks
from tests.text.parsers.test_conversation import HARMONY

pytestmark = pytest.mark.pure

TOOLS = (Tool("weather", "Of a city", {"type": "object", "properties": {"city": {"type": "string"}}}),)
QUESTION = (Message("user", "Sunny?"),)
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def model_text(metadata: dict[str, Any]) -> ModelText:
    """A model whose marks are special tokens, as gpt-oss has them."""
    return ModelText(with_marks(metadata, CHANNELS.marks, CONTROL), ChatTemplate(HARMONY), ())


def prompt_of(model_text: ModelText, messages: tuple[Message, ...] = QUESTION, **more: Any) -> str:
    (prompt,) = encode_prompts(ChatRequest("m", messages, **more), model_text)
    assert model_text.decode(prompt.tokens) == prompt.text
    return prompt.text or ""


def answer(model_text: ModelText, text: str, messages: tuple[Message, ...] = QUESTION, **more: Any) -> Choice:
    """What a client gets if the model writes this, token by token."""
    ask = ChatRequest("m", messages, SamplingParams(max_tokens=9), **more)
    decoder = ChoiceDecoder(0, output_format_of(ask, encode_prompts(ask, model_text), model_text))
    tokens = tuple(model_text.needed_tokenizer().encode(text, special=True, add_bos=False))
    reason = FinishReason.STOP if tokens[-1] in model_text.eos_ids else FinishReason.LENGTH
    collector, out = AnswerCollector(), []
    for token in tokens[:-1]:
        decoder.take(Tokens("r", 0, (token,)), out)
    decoder.take(Finished("r", 0, reason, tokens[-1:]), out)
    collector.take(out)
    (choice,) = collector.choices()
    assert choice.tokens == tokens
    return choice


def test_the_end_of_a_message_does_not_end_the_answer(model_text: ModelText) -> None:
    ids = model_text.mark_tokens(CHANNELS.marks)
    assert {ids["<|return|>"], ids["<|call|>"]} <= set(model_text.eos_ids) and ids["<|end|>"] not in model_text.eos_ids


def test_analysis_is_reasoning_and_final_is_text(model_text: ModelText) -> None:
    choice = answer(model_text, f"{THOUGHT}<|channel|>final<|message|>Yes, it is.<|return|>")
    assert (choice.reasoning, choice.text, choice.ending) == ("Hm.", "Yes, it is.", Ending.STOP)


def test_a_message_to_a_function_is_a_call(model_text: ModelText) -> None:
    text = f'{THOUGHT}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{{"city": "Oslo"}}<|call|>'
    choice = answer(model_text, text, tools=TOOLS)
    assert [(call.name, call.arguments) for call in choice.tool_calls] == [("weather", '{"city": "Oslo"}')]
    assert (choice.reasoning, choice.text, choice.ending) == ("Hm.", "", Ending.TOOL_CALLS)
    untold = answer(model_text, text)
    assert (untold.text, untold.tool_calls, untold.ending) == ('{"city": "Oslo"}', (), Ending.STOP)


def test_an_answer_that_is_cut_off_has_no_marks(model_text: ModelText) -> None:
    choice = answer(model_text, f"{THOUGHT}<|channel|>final<|message|>Yes")
    assert (choice.reasoning, choice.text, choice.ending) == ("Hm.", "Yes", Ending.LENGTH)
    assert answer(model_text, f"{THOUGHT}<|channel|>fin").text == ""


@pytest.mark.parametrize(
    "given, written", [(None, "medium"), ("low", "low"), ("minimal", "low"), ("high", "high"), ("max", "high")]
)
def test_the_effort_is_written_as_one_of_the_three_levels(model_text: ModelText, given: Any, written: str) -> None:
    assert f"Effort: {written}<|end|>" in prompt_of(model_text, template_variables={"reasoning_effort": given})


def test_the_template_has_levels_of_thinking_but_no_switch() -> None:
    assert thinking_switches(HARMONY) == (False, True)


def test_an_effort_that_the_model_does_not_have_is_refused(model_text: ModelText) -> None:
    with pytest.raises(InvalidRequest, match="'none'; this model always thinks: use low") as error:
        prompt_of(model_text, template_variables={"reasoning_effort": "none"})
    assert error.value.field == "reasoning_effort"


def test_the_template_reads_what_a_client_sets(model_text: ModelText) -> None:
    text = prompt_of(model_text, template_variables={"model_identity": "A bot.", "builtin_tools": ["python"]})
    assert text.startswith("<|start|>system<|message|>A bot. Year: 2") and "Python: True" in text


def test_an_answer_may_continue_a_text(model_text: ModelText) -> None:
    chat = (*QUESTION, Message("assistant", "It is "))
    assert prompt_of(model_text, chat, continue_last=True).endswith("assistant<|channel|>final<|message|>It is ")
    choice = answer(model_text, "sunny.<|return|>", chat, continue_last=True)
    assert (choice.text, choice.reasoning) == ("sunny.", "")


def test_a_form_of_the_clients_is_one_of_the_text(model_text: ModelText) -> None:
    form = Constraint(ConstraintKind.JSON)
    assert prompt_of(model_text, constraint=form).endswith("<|start|>assistant<|channel|>final<|message|>")
    assert answer(model_text, '{"a": 1}<|return|>', constraint=form).text == '{"a": 1}'
    chat = (*QUESTION, Message("assistant", "It is "))
    assert prompt_of(model_text, chat, constraint=form, continue_last=True).endswith("It is ")
    think = ModelText(model_text.tokenizer, ChatTemplate("{{ messages[0].content }}<think>\n{# </think> #}"), ())
    assert prompt_of(think, constraint=form) == "Sunny?<think>\n</think>\n\n"
    assert prompt_of(think) == "Sunny?<think>\n"


def test_a_required_call_may_come_after_a_thought(model_text: ModelText) -> None:
    ask = ChatRequest("m", QUESTION, tools=TOOLS, tool_choice=ToolChoice("required", parallel=False))
    (prompt,) = encode_prompts(ask, model_text)
    assert prompt.begun == ""
    constraint = constraint_of(ask, prompt, model_text, lambda tool: tool.parameters)
    assert constraint is not None and "thought: (" in constraint.text and "to=functions.weather" in constraint.text


def test_earlier_calls_are_written_though_there_are_no_tools_now(model_text: ModelText) -> None:
    call = ToolCall("1", "weather", '{"city": "Oslo"}')
    turn = Message("assistant", "I look.", reasoning="Hm.", tool_calls=(call,))
    text = prompt_of(model_text, (*QUESTION, turn, Message("tool", "yes", tool_call_id="1")))
    assert "analysis<|message|>Hm.\n\nI look.<|end|>" in text and 'json<|message|>{"city": "Oslo"}<|call|>' in text


def test_a_later_system_message_is_not_left_out(model_text: ModelText) -> None:
    text = prompt_of(model_text, (Message("system", "Be brief."), *QUESTION, Message("system", "In German.")))
    assert "developer<|message|>Be brief.\n\nIn German.<|end|>" in text
