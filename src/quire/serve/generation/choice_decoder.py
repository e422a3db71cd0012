"""News of one choice become its events: text up to a stop string, thoughts, calls, scored tokens, and the end.

Law: the tokens of all events of a choice, joined, are its tokens, those of marks and stop strings among them. Text lags
behind while a character is incomplete, or a stop string or a mark may be beginning; its tokens then wait with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from quire.engine.messages import Finished, Tokens
from quire.engine.text_side import TextSide
from quire.text.parsers.style import Arguments, CallBegins, Parser, Piece, Thought
from quire.types.chat import Ending, Event, Finish, ReasoningDelta, ScoredToken, TextDelta, ToolDelta
from quire.types.request import FinishReason, SamplingParams
from quire.types.step import TokenLogprobs

ENDINGS = {
    FinishReason.STOP: Ending.STOP,
    FinishReason.LENGTH: Ending.LENGTH,
    FinishReason.CANCELLED: Ending.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How the answers of an exchange are to be told."""

    sampling: SamplingParams
    side: TextSide
    continues: bool = False  # answers go on from text, so that their first space is their own
    echo: bool = False  # the prompt is told first
    parser: Callable[[], Parser] | None = None  # None: all of it is text
    shown: Collection[int] = ()  # special tokens whose names the parser must see
    parallel: bool = True  # where a second call begins, the answer goes on; else it has ended

    def scores(self, logprobs: Sequence[TokenLogprobs]) -> tuple[ScoredToken, ...]:
        """Tokens with their log probabilities and their spelling."""
        return tuple(
            self._scored(token, logprob, tuple(self._scored(*other) for other in top))
            for token, logprob, top in logprobs
        )

    def prompt_scores(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> tuple[ScoredToken, ...]:
        """Those of a prompt, whose first token has no probability; none if they were not asked for."""
        if self.sampling.prompt_logprobs is None:
            return ()
        return (self._scored(tokens[0], None), *self.scores(logprobs))

    def _scored(self, token: int, logprob: float | None, top: tuple[ScoredToken, ...] = ()) -> ScoredToken:
        data = self.side.tokenizer.token_bytes(token) if self.side.tokenizer is not None else b""
        return ScoredToken(token, data.decode("utf-8", "replace"), data, logprob, top)


class ChoiceDecoder:
    """One choice's. `is_over` says that it has ended; whatever still comes is dropped."""

    def __init__(self, choice: int, output_format: OutputFormat) -> None:
        self.choice = choice
        self.is_over = False
        self.num_tokens = 0
        self.num_reasoning = 0
        self._stop_ids = frozenset(output_format.sampling.stop_token_ids)
        self._end_ids = self._stop_ids.union(output_format.side.eos_ids)
        self._scores = output_format.scores if output_format.sampling.logprobs is not None else None
        self._detokenizer = output_format.side.detokenizer(
            output_format.sampling, continues=output_format.continues, shown=output_format.shown
        )
        self._parser = output_format.parser() if output_format.parser is not None else None
        self._tokens: tuple[int, ...] = ()  # those whose text has not come yet
        self._scored: tuple[ScoredToken, ...] = ()
        self._is_parallel = output_format.parallel
        self._num_calls = 0
        self._is_in_call = False  # what was told last
        self._has_enough = False  # of calls

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._detokenizer.stopped_by

    def take(self, news: Tokens | Finished, out: list[Event]) -> None:
        """Add the events that these news are."""
        if self.is_over:
            return
        tokens = news.tokens
        last: tuple[int, ...] = ()
        if type(news) is Finished and news.reason is FinishReason.STOP and tokens and tokens[-1] in self._end_ids:
            tokens, last = tokens[:-1], tokens[-1:]  # like a stop string, it is not part of the text
        if self._parser is None:
            before = self._detokenizer.num_tokens
            text = self._detokenizer.push(tokens)
            count = self._detokenizer.num_tokens - before  # those after a stop string are not part of the answer
            self._hold(tokens[:count] if count < len(tokens) else tokens, news.logprobs)
            if text:
                self._tell_text(text, out)
        else:
            for place, token in enumerate(tokens):
                text = self._detokenizer.push((token,))
                self._hold((token,), news.logprobs[place : place + 1])
                if text:
                    self._tell_pieces(self._parser.push(text), out)
                if self.stopped_by is not None or self._has_enough:
                    break
        if type(news) is Finished or self.stopped_by is not None or self._has_enough:
            self._end(news, last, out)

    def _hold(self, tokens: tuple[int, ...], logprobs: Sequence[TokenLogprobs]) -> None:
        self.num_tokens += len(tokens)
        self._tokens = self._tokens + tokens if self._tokens else tokens
        if self._scores is not None:
            self._scored += self._scores(logprobs[: len(tokens)])

    def _tell_text(self, text: str, out: list[Event]) -> None:
        out.append(TextDelta(self.choice, text, self._tokens, self._scored))
        self._tokens, self._scored = (), ()

    def _tell_pieces(self, pieces: Sequence[Piece], out: list[Event]) -> None:
        """The tokens that waited go with the first piece that they may have become."""
        for piece in pieces:
            if self._has_enough or (isinstance(piece, CallBegins) and self._num_calls and not self._is_parallel):
                self._has_enough = True
                return
            self._is_in_call = isinstance(piece, CallBegins | Arguments)
            if isinstance(piece, CallBegins):
                call_id = f"call_{secrets.token_hex(12)}"
                out.append(ToolDelta(self.choice, self._num_calls, "", call_id, piece.name, self._tokens, self._scored))
                self._num_calls += 1
            elif isinstance(piece, Arguments):
                self._tell_arguments(piece.text, out)
            else:
                kind = ReasoningDelta if isinstance(piece, Thought) else TextDelta
                self.num_reasoning += len(self._tokens) if kind is ReasoningDelta else 0
                _append_text(out, kind(self.choice, piece.text, self._tokens, self._scored))
            self._tokens, self._scored = (), ()

    def _tell_arguments(self, text: str, out: list[Event]) -> None:
        """Put them together with the event before, if that has arguments too."""
        delta = ToolDelta(self.choice, self._num_calls - 1, text, None, None, self._tokens, self._scored)
        self._tokens, self._scored = (), ()
        before = out[-1] if out else None
        if type(before) is not ToolDelta or before.id is not None or before.choice != delta.choice:
            out.append(delta)
            return
        joined = (before.tokens + delta.tokens, before.logprobs + delta.logprobs)
        out[-1] = ToolDelta(self.choice, delta.call, before.arguments + text, None, None, *joined)

    def _end(self, news: Tokens | Finished, last: tuple[int, ...], out: list[Event]) -> None:
        self.is_over = True
        if last:
            self._hold(last, news.logprobs[-1:])
        text = self._detokenizer.flush()
        if self._parser is None:
            if text or self._tokens:
                self._tell_text(text, out)
        else:
            ended_itself = self._has_enough or (type(news) is Finished and news.reason is FinishReason.STOP)
            is_cut_off = self.stopped_by is not None or not ended_itself
            rest = self._parser.push(text) if text else []
            self._tell_pieces([*rest, *self._parser.flush(is_cut_off)], out)
            if self._tokens:
                (self._tell_arguments if self._is_in_call else self._tell_text)("", out)
        out.append(Finish(self.choice, *self._ending(news, last)))

    def _ending(self, news: Tokens | Finished, last: tuple[int, ...]) -> tuple[Ending, str | int | None]:
        if self.stopped_by is not None:
            return Ending.STOP_TEXT, self.stopped_by
        if self._has_enough:
            return Ending.TOOL_CALLS, None
        assert isinstance(news, Finished)
        if last and last[0] in self._stop_ids:
            return Ending.STOP_TEXT, last[0]
        if self._num_calls and news.reason is FinishReason.STOP:
            return Ending.TOOL_CALLS, None
        return ENDINGS[news.reason], None


def _append_text(out: list[Event], delta: TextDelta | ReasoningDelta) -> None:
    """Put it together with the event before, if that is of its kind."""
    before = out[-1] if out else None
    if type(before) is not type(delta) or before.choice != delta.choice:
        out.append(delta)
        return
    joined = (before.text + delta.text, before.tokens + delta.tokens, before.logprobs + delta.logprobs)
    out[-1] = type(delta)(delta.choice, *joined)
