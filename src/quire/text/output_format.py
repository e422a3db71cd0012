"""The format of an answer: the grammar that the model is held to, and how its text is read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from quire.text.model_text import ModelText
from quire.text.parsers.compose import constraint_for, parser_for
from quire.text.parsers.style import Parser
from quire.text.prompts import Prompt
from quire.types.chat import Ask, ChatRequest, ScoredToken, Tool
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind, SamplingParams
from quire.types.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How the tokens of an answer become events."""

    sampling: SamplingParams
    model_text: ModelText
    continues: bool = False  # answers continue a text, so a leading space is kept
    echo: bool = False  # the prompt is the first event
    parser: Callable[[], Parser] | None = None  # None: all of it is text
    shown: Collection[int] = ()  # special tokens whose names the parser must see
    parallel: bool = True  # False: the answer ends before a second call
    call_seed: str = field(default_factory=partial(secrets.token_hex, 12))  # of the ids of its calls
    with_scores: bool = True  # events have scored tokens, if the sampling parameters request logprobs

    def scores(self, logprobs: Sequence[TokenLogprobs]) -> tuple[ScoredToken, ...]:
        """Tokens with their log probabilities and their text."""
        return tuple(
            self._scored(token, logprob, tuple(self._scored(*other) for other in top))
            for token, logprob, top in logprobs
        )

    def prompt_scores(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> tuple[ScoredToken, ...]:
        """The scores of a prompt, whose first token has no probability; empty if they were not requested."""
        if self.sampling.prompt_logprobs is None:
            return ()
        return (self._scored(tokens[0], None), *self.scores(logprobs))

    def _scored(self, token: int, logprob: float | None, top: tuple[ScoredToken, ...] = ()) -> ScoredToken:
        tokenizer = self.model_text.tokenizer
        data = tokenizer.token_bytes(token) if tokenizer is not None else b""
        return ScoredToken(token, data.decode("utf-8", "replace"), data, logprob, top)


def output_format_of(ask: Ask, prompts: Sequence[Prompt], model_text: ModelText) -> OutputFormat:
    """How the answers of a request are read. An answer that follows the client's grammar has no thoughts or calls."""
    if not isinstance(ask, ChatRequest):
        return OutputFormat(ask.sampling, model_text, continues=True, echo=ask.echo)
    plain = OutputFormat(
        ask.sampling, model_text, continues=ask.continue_last, echo=ask.echo, parallel=ask.tool_choice.parallel
    )
    is_text = ask.constraint is not None and ask.tool_choice.mode != "required"
    if is_text or not (ask.tools or model_text.reasoning):
        return plain
    parser = partial(parser_for, model_text.style, model_text.reasoning, ask.tools, prompts[0].begun)
    return replace(plain, parser=parser, shown=tuple(_marks(model_text).values()))


def constraint_of(
    ask: Ask, prompt: Prompt, model_text: ModelText, exact_parameters: Callable[[Tool], Mapping[str, Any]]
) -> Constraint | None:
    """The grammar that the answer must follow: the client's own, or that of a required tool call.

    `exact_parameters` returns the schema of a tool's arguments as grammars take it.
    """
    if not isinstance(ask, ChatRequest) or ask.tool_choice.mode != "required":
        return ask.constraint
    if ask.constraint is not None and ask.constraint.kind not in (ConstraintKind.JSON, ConstraintKind.SCHEMA):
        public = f"An answer that must be a call cannot have another form too: leave out the {ask.constraint.kind}."
        raise InvalidRequest(public, field="tool_choice")
    if not ask.tools:
        raise InvalidRequest("A call is required, and there are no tools.", field="tool_choice")
    tools = [replace(tool, parameters=exact_parameters(tool)) for tool in ask.tools]
    return constraint_for(
        model_text.style, tools, ask.tool_choice, _marks(model_text), model_text.reasoning, prompt.begun
    )


def _marks(model_text: ModelText) -> dict[str, int]:
    """The model's marks of calls and thoughts that are tokens of its vocabulary, with their ids."""
    thoughts = model_text.reasoning.marks if model_text.reasoning else ()
    return model_text.mark_tokens((*model_text.style.marks, *thoughts))
