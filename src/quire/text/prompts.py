"""Turns what a client asks into prompts: tokens, through the chat template or as they are, with the pins of the cache.

A pin reaches to the end of a message. Templates do not say where that is among the tokens, so the head of the
conversation is rendered too, and the pin ends where the tokens of the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from quire.text.model_text import ModelText
from quire.text.parsers.conversation import as_template_messages, as_template_tools
from quire.text.preset import with_preset_messages
from quire.text.source_text import SourceText, refuse_chat, refuse_text
from quire.types.chat import Ask, ChatRequest, CompletionRequest, Terms
from quire.types.defaults import SamplingDefaults
from quire.types.errors import ContextTooLong, InvalidRequest
from quire.types.message import Message
from quire.types.request import Pin
from quire.types.source import EncoderInput
from quire.types.speech_rules import SpeechRules


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready for the engine."""

    tokens: tuple[int, ...]
    text: str | None  # None: token ids were given
    pins: tuple[Pin, ...] = ()
    begun: str = ""  # what the template has written of the answer: the mark of a thought, the header of a message
    ends: tuple[int, ...] = ()  # tokens that end the answer, beside the model's own
    predicted: tuple[int, ...] = ()  # tokens that much of the answer is expected to be
    source: EncoderInput | None = None  # of a model with an encoder: what that reads
    suppressed: tuple[int, ...] = ()  # tokens that are never written

    @property
    def rules(self) -> SpeechRules | None:
        """Rules by which tokens are sampled; None: any may follow."""
        return SpeechRules(self.suppressed) if self.suppressed else None

    @property
    def num_read(self) -> int:
        """Tokens that the model reads: its own, and those of its encoder."""
        return len(self.tokens) + (0 if self.source is None else self.source.num_tokens)

    @property
    def num_pinned(self) -> int:
        """Tokens that the pins cover."""
        return max((pin.end for pin in self.pins), default=0)


def encode_prompts(ask: Ask, model_text: ModelText, max_tokens: int | None = None) -> list[Prompt]:
    """Encode all prompts of a request. `max_tokens`: one that is far longer is refused before all of it is encoded."""
    if isinstance(ask, ChatRequest):
        messages = with_preset_messages(ask.messages, model_text.preset)
        return [_encode_chat(replace(ask, messages=messages), model_text, max_tokens)]
    return [_encode_plain(prompt, ask, model_text, max_tokens) for prompt in ask.prompts]


def fill_defaults(ask: Ask, defaults: SamplingDefaults) -> Ask:
    """Put the model's sampling defaults into every parameter that the client did not give."""
    sampling = defaults.fill(ask.sampling, ask.sampling_fields)
    return ask if sampling is ask.sampling else replace(ask, sampling=sampling)


def drop_forbidden_tools(ask: Ask) -> Ask:
    """Remove tools that must not be called: the model is not shown what it may not use."""
    if isinstance(ask, ChatRequest) and ask.tool_choice.mode == "none":
        return replace(ask, tools=())
    return ask


def _encode_plain(
    prompt: str | tuple[int, ...], ask: CompletionRequest, model_text: ModelText, max_tokens: int | None
) -> Prompt:
    if model_text.speech is not None:
        raise refuse_text("prompt")
    ends: tuple[int, ...] = ()
    if ask.suffix:
        tokens = model_text.encode_infill(prompt, ask.suffix, max_tokens)
        ends = model_text.infill.ends if model_text.infill else ()
    else:
        tokens = model_text.encode(prompt, max_tokens=max_tokens) if isinstance(prompt, str) else prompt
    if model_text.source is not None:
        return _encode_source(tokens, prompt if isinstance(prompt, str) else None, ask, model_text.source)
    text = prompt if isinstance(prompt, str) else model_text.decode(tokens) if ask.echo else None
    return Prompt(tokens, text, _whole_pin(ask.terms, len(tokens)), ends=ends)


def _encode_source(tokens: tuple[int, ...], text: str | None, ask: CompletionRequest, source: SourceText) -> Prompt:
    """The prompt goes to the model's encoder."""
    if ask.echo:
        raise InvalidRequest("echo and return_token_ids are not supported: this model's encoder reads the prompt.",
                             field="echo")  # fmt: skip
    if ask.sampling.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is not supported: this model's encoder reads the prompt.",
                             field="prompt_logprobs")  # fmt: skip
    read = EncoderInput.of_tokens(tokens)
    return Prompt(source.start, text, _whole_pin(ask.terms, len(source.start)), source=read,
                  suppressed=source.suppressed)  # fmt: skip


def _encode_chat(ask: ChatRequest, model_text: ModelText, max_tokens: int | None) -> Prompt:
    if model_text.source is not None:
        raise refuse_chat() if model_text.speech is None else refuse_text("messages")
    text = _render(ask, model_text, ask.messages)
    reasoning = model_text.reasoning
    begun = reasoning.begun_in(text) if reasoning else ""
    if reasoning and ask.constraint is not None and ask.tool_choice.mode != "required":
        text += reasoning.text_opening(begun)  # the client's grammar is one of text
    tokens = model_text.encode_rendered(text, max_tokens)
    pins = [
        Pin(0, end, ask.terms.keep_rank, message.keep)
        for count, message in enumerate(ask.messages, 1)
        if message.keep is not None and (end := _num_common(tokens, _encode_head(ask, model_text, count)))
    ]
    predicted = _encode_prediction(ask.prediction, model_text, max_tokens) if ask.prediction else ()
    return Prompt(tokens, text, (*pins, *_whole_pin(ask.terms, len(tokens))), begun, predicted=predicted)


def _encode_prediction(text: str, model_text: ModelText, max_tokens: int | None) -> tuple[int, ...]:
    try:
        return tuple(model_text.needed_tokenizer().encode_after(text, max_tokens))
    except ContextTooLong:
        public = f"prediction is far longer than the context of {max_tokens} tokens: no answer can be so long."
        raise InvalidRequest(public, field="prediction") from None


def _whole_pin(terms: Terms, num_tokens: int) -> tuple[Pin, ...]:
    return () if terms.keep is None or not num_tokens else (Pin(0, num_tokens, terms.keep_rank, terms.keep),)


def _render(ask: ChatRequest, model_text: ModelText, messages: Sequence[Message], opens: bool = True) -> str:
    """Write messages with the template. `opens`: end where the answer begins, or continues the last message."""
    variables: Mapping[str, Any] = {} if ask.think is None else {"enable_thinking": ask.think, "thinking": ask.think}
    variables = {**variables, **ask.template_variables}
    if model_text.reasoning:
        variables = model_text.reasoning.known_variables(variables)
    tools, with_calls = ask.tools, any(message.tool_calls for message in messages)
    if tools or with_calls or model_text.reasoning:  # most conversations have none of them, and need no style
        messages, tools = model_text.style.prepare(messages, tools)
    offered = as_template_tools(tools, model_text.style.sorts_keys) if tools else None
    written = as_template_messages(messages)
    if opens and ask.continue_last:
        return model_text.template.render_open(written, tools=offered, variables=variables)
    return model_text.template.render(written, tools=offered, add_generation_prompt=opens, variables=variables)


def _encode_head(ask: ChatRequest, model_text: ModelText, count: int) -> tuple[int, ...]:
    """Encode the first `count` messages. Templates that refuse them alone may accept them before a question."""
    head = ask.messages[:count]
    for messages in (head, (*head, Message("user", "\x00"))):
        try:
            return model_text.encode_rendered(_render(ask, model_text, messages, opens=False))
        except InvalidRequest:
            continue
    return ()


def _num_common(tokens: Sequence[int], head: Sequence[int]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, head, strict=False)))
