"""What a client asks becomes tokens: through the template or as they are, with what of them is to be kept.

A pin reaches to the end of a message. Where that is among the tokens nobody says, so the head of the conversation is
rendered too, and the pin ends where the tokens of the two part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from quire.engine.text_side import TextSide
from quire.text.parsers.conversation import as_template_messages, as_template_tools
from quire.text.parsers.reasoning import Reasoning
from quire.text.parsers.style import Prepared, ToolStyle
from quire.text.preset import begun
from quire.types.chat import Ask, ChatRequest, CompletionRequest, Terms
from quire.types.defaults import SamplingDefaults
from quire.types.errors import InvalidRequest
from quire.types.message import Message
from quire.types.request import Pin


@dataclass(frozen=True, slots=True)
class ModelText:
    """How a model speaks: its text side, and the marks that it puts around calls and thoughts."""

    side: TextSide
    style: ToolStyle
    reasoning: Reasoning | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready for the engine."""

    tokens: tuple[int, ...]
    text: str
    pins: tuple[Pin, ...] = ()
    begins_in_thought: bool = False  # the template has opened one
    ends: tuple[int, ...] = ()  # tokens that end the answer, beside the model's own

    @property
    def num_kept(self) -> int:
        """Tokens that are to be kept."""
        return max((pin.end for pin in self.pins), default=0)


def prompts_of(ask: Ask, model_text: ModelText, max_tokens: int | None = None) -> list[Prompt]:
    """All prompts of a request. `max_tokens`: one that is far longer is refused before all of it is encoded."""
    if isinstance(ask, ChatRequest):
        talk = begun(ask.messages, model_text.side.preset, lambda each: each.role, lambda each: each)
        return [_chat(replace(ask, messages=talk), model_text, max_tokens)]
    return [_plain(prompt, ask, model_text.side, max_tokens) for prompt in ask.prompts]


def with_defaults(ask: Ask, defaults: SamplingDefaults) -> Ask:
    """The request with the model's sampling defaults in every parameter that the client did not give."""
    sampling = defaults.fill(ask.sampling, ask.sampling_fields)
    return ask if sampling is ask.sampling else replace(ask, sampling=sampling)


def _plain(given: str | tuple[int, ...], ask: CompletionRequest, side: TextSide, max_tokens: int | None) -> Prompt:
    if ask.suffix:
        tokens = side.encode_infill(given, ask.suffix, max_tokens)
    else:
        tokens = side.encode(given, max_tokens=max_tokens)
    text = given if isinstance(given, str) else side.decode(tokens) if ask.echo else ""
    ends = side.infill.ends if ask.suffix and side.infill else ()
    return Prompt(tokens, text, _whole_pin(ask.terms, len(tokens)), ends=ends)


def _chat(ask: ChatRequest, model_text: ModelText, max_tokens: int | None) -> Prompt:
    text = _render(ask, model_text, ask.messages)
    tokens = model_text.side.encode_rendered(text, max_tokens)
    pins = [
        Pin(0, end, ask.terms.keep_rank, message.keep)
        for count, message in enumerate(ask.messages, 1)
        if message.keep is not None and (end := _num_common(tokens, _head(ask, model_text, count)))
    ]
    begins_in_thought = model_text.reasoning is not None and model_text.reasoning.begins_in(text)
    return Prompt(tokens, text, (*pins, *_whole_pin(ask.terms, len(tokens))), begins_in_thought)


def _whole_pin(terms: Terms, num_tokens: int) -> tuple[Pin, ...]:
    return () if terms.keep is None or not num_tokens else (Pin(0, num_tokens, terms.keep_rank, terms.keep),)


def _render(ask: ChatRequest, model_text: ModelText, messages: Sequence[Message], opens: bool = True) -> str:
    """`opens`: end where the answer begins, or goes on."""
    variables: dict[str, Any] = {} if ask.think is None else {"enable_thinking": ask.think, "thinking": ask.think}
    variables |= ask.template_variables
    ready = model_text.style.prepare(messages, ask.tools) if ask.tools else Prepared(tuple(messages), ())
    talk, tools = as_template_messages(ready.messages), as_template_tools(ready.tools)
    if opens and ask.continue_last:
        return model_text.side.template.render_open(talk, tools=tools, variables=variables)
    return model_text.side.template.render(talk, tools=tools, add_generation_prompt=opens, variables=variables)


def _head(ask: ChatRequest, model_text: ModelText, count: int) -> tuple[int, ...]:
    """The tokens of the first `count` messages. What a template refuses alone it may take with a question after it."""
    head = ask.messages[:count]
    for messages in (head, (*head, Message("user", "\x00"))):
        try:
            return model_text.side.encode_rendered(_render(ask, model_text, messages, opens=False))
        except InvalidRequest:
            continue
    return ()


def _num_common(tokens: Sequence[int], head: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, head, strict=False)))
