"""Answers of the Python API: pieces of text (`Delta`) and complete answers (`Completion`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.types.message import ToolCall
from quire.types.request import FinishReason
from quire.types.step import DraftCount, TokenLogprobs

if TYPE_CHECKING:
    from quire.types.chat import ToolDelta


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and times of an answer."""

    prompt: int  # tokens
    cached: int  # of the prompt, tokens found in the cache
    output: int  # tokens, of all samples
    first_token_seconds: float  # since the submit
    seconds: float  # from the submit to the end
    forced: int = 0  # of the output, tokens that a grammar forced: they were not sampled
    reasoning: int = 0  # of the output, tokens of reasoning
    kept: int = 0  # of the prompt, tokens that this request pinned and computed
    drafts: tuple[DraftCount, ...] = field(default=(), repr=False)  # by drafter; how many pay depends on the machine

    @property
    def drafted(self) -> int:
        """Tokens that were drafted and verified."""
        return sum(each.num_drafted for each in self.drafts)

    @property
    def accepted(self) -> int:
        """Of the output, tokens that were drafted."""
        return sum(each.num_accepted for each in self.drafts)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second after the first; 0 if there was no second one."""
        after = self.seconds - self.first_token_seconds
        return (self.output - 1) / after if self.output > 1 and after > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of an answer. The last piece of a sample has `finish` and `usage`.

    Text, reasoning and calls lag behind tokens while a character is incomplete, or a stop string or a mark may be
    beginning.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None
    sample: int = 0
    reasoning: str = ""  # more of what the model thinks before it answers
    tool_calls: tuple[ToolDelta, ...] = ()  # calls that begin, and more of their arguments


@dataclass(frozen=True, slots=True)
class Sample:
    """One of a request's `n` answers."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    reasoning: str | None = None  # what the model thought before it answered
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: str | int | None = None  # the stop string or token of the request that ended it

    @property
    def token_ids(self) -> tuple[int, ...]:
        """`tokens`, as vLLM names them."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Completion:
    """The whole answer to one prompt. What a `Sample` has, the completion has too: that of its first sample."""

    samples: tuple[Sample, ...]
    prompt_tokens: tuple[int, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of all prompt tokens except the first
    prompt: str | None = None  # its text as the model received it; None: token ids were given

    @property
    def text(self) -> str:
        """The text that the model wrote, without the stop string."""
        return self.samples[0].text

    @property
    def reasoning(self) -> str | None:
        """What the model thought before it answered; None: nothing."""
        return self.samples[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the model calls."""
        return self.samples[0].tool_calls

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its tokens, including those of a stop string and the end token."""
        return self.samples[0].tokens

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended."""
        return self.samples[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or token of the request that ended it."""
        return self.samples[0].stop_reason

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of each token, if requested."""
        return self.samples[0].logprobs

    @property
    def outputs(self) -> tuple[Sample, ...]:
        """`samples`, as vLLM names them."""
        return self.samples

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """`prompt_tokens`, as vLLM names them."""
        return self.prompt_tokens
