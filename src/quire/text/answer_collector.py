"""Joins events to whole answers, for a client that did not request a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.types.chat import (
    Choice,
    Ending,
    Event,
    Finish,
    PromptEcho,
    ReasoningDelta,
    ScoredToken,
    TextDelta,
    ToolDelta,
)
from quire.types.message import ToolCall


@dataclass(slots=True)
class _PartialChoice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)  # id, name, arguments
    tokens: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)
    text_logprobs: list[ScoredToken] = field(default_factory=list)
    prompt: PromptEcho | None = None
    finish: Finish | None = None

    def add_tokens(self, event: TextDelta | ReasoningDelta | ToolDelta) -> None:
        """Add the tokens of an event, and their scores."""
        self.tokens += event.tokens
        self.logprobs += event.logprobs


class AnswerCollector:
    """All choices of an answer."""

    def __init__(self) -> None:
        self._choices: dict[int, _PartialChoice] = {}

    def take(self, events: Sequence[Event]) -> None:
        """Add these events."""
        for event in events:
            partial = self._choices.setdefault(event.choice, _PartialChoice())
            match event:
                case PromptEcho():
                    partial.prompt = event
                case TextDelta():
                    partial.text.append(event.text)
                    partial.text_logprobs += event.logprobs
                    partial.add_tokens(event)
                case ReasoningDelta():
                    partial.reasoning.append(event.text)
                    partial.add_tokens(event)
                case ToolDelta():
                    partial.add_tokens(event)
                    if event.id is not None:
                        partial.calls.append((event.id, event.name or "", []))
                    partial.calls[event.call][2].append(event.arguments)
                case Finish():
                    partial.finish = event

    def choices(self) -> tuple[Choice, ...]:
        """All choices by their index."""
        return tuple(_whole(index, partial) for index, partial in sorted(self._choices.items()))


def _whole(index: int, partial: _PartialChoice) -> Choice:
    finish = partial.finish or Finish(index, Ending.CANCELLED)
    return Choice(
        index=index,
        text="".join(partial.text),
        ending=finish.ending,
        reasoning="".join(partial.reasoning),
        tool_calls=tuple(ToolCall(id, name, "".join(arguments)) for id, name, arguments in partial.calls),
        stop=finish.stop,
        tokens=tuple(partial.tokens),
        logprobs=tuple(partial.logprobs),
        prompt=partial.prompt,
        text_logprobs=tuple(partial.text_logprobs),
    )
