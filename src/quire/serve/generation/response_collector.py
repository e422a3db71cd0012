"""Events put together to whole answers, for a client that did not ask for a stream."""

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
class _Growing:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)  # id, name, arguments
    tokens: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)
    text_logprobs: list[ScoredToken] = field(default_factory=list)
    prompt: PromptEcho | None = None
    finish: Finish | None = None

    def score(self, event: TextDelta | ReasoningDelta | ToolDelta) -> None:
        """Its tokens."""
        self.tokens += event.tokens
        self.logprobs += event.logprobs


class ResponseCollector:
    """All choices of an answer."""

    def __init__(self) -> None:
        self._choices: dict[int, _Growing] = {}

    def take(self, events: Sequence[Event]) -> None:
        """Add these."""
        for event in events:
            growing = self._choices.setdefault(event.choice, _Growing())
            match event:
                case PromptEcho():
                    growing.prompt = event
                case TextDelta():
                    growing.text.append(event.text)
                    growing.text_logprobs += event.logprobs
                    growing.score(event)
                case ReasoningDelta():
                    growing.reasoning.append(event.text)
                    growing.score(event)
                case ToolDelta():
                    growing.score(event)
                    if event.id is not None:
                        growing.calls.append((event.id, event.name or "", []))
                    growing.calls[event.call][2].append(event.arguments)
                case Finish():
                    growing.finish = event

    def choices(self) -> tuple[Choice, ...]:
        """In their order."""
        return tuple(_choice(index, growing) for index, growing in sorted(self._choices.items()))


def _choice(index: int, growing: _Growing) -> Choice:
    finish = growing.finish or Finish(index, Ending.CANCELLED)
    return Choice(
        index=index,
        text="".join(growing.text),
        ending=finish.ending,
        reasoning="".join(growing.reasoning),
        tool_calls=tuple(ToolCall(id, name, "".join(arguments)) for id, name, arguments in growing.calls),
        stop=finish.stop,
        tokens=tuple(growing.tokens),
        logprobs=tuple(growing.logprobs),
        prompt=growing.prompt,
        text_logprobs=tuple(growing.text_logprobs),
    )
