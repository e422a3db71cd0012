"""Decodes the tokens of one choice into events: text up to a stop string, thoughts, tool calls, scores, and the end.

Law: the tokens of all events of a choice, joined, are its tokens, including those of marks and stop strings. Text lags
behind while a character is incomplete, or a stop string or a mark may be beginning; its tokens then wait with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from quire.text.output_format import OutputFormat
from quire.text.parsers.style import ArgumentsPiece, CallStart, Piece, ThoughtPiece
from quire.types.chat import Ending, Event, Finish, ReasoningDelta, ScoredToken, TextDelta, ToolDelta
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason
from quire.types.step import TokenLogprobs

ENDINGS = {
    FinishReason.STOP: Ending.STOP,
    FinishReason.LENGTH: Ending.LENGTH,
    FinishReason.CANCELLED: Ending.CANCELLED,
}


class ChoiceDecoder:
    """One choice. Once `is_over`, further output is dropped."""

    def __init__(self, choice: int, output_format: OutputFormat) -> None:
        self.choice = choice
        self.is_over = False
        self.num_tokens = 0
        self.num_reasoning = 0
        self._stop_ids = frozenset(output_format.sampling.stop_token_ids)
        self._end_ids = self._stop_ids.union(output_format.model_text.eos_ids)
        is_scored = output_format.with_scores and output_format.sampling.logprobs is not None
        self._scores = output_format.scores if is_scored else None
        self._detokenizer = output_format.model_text.detokenizer(
            output_format.sampling, continues=output_format.continues, shown=output_format.shown
        )
        self._parser = output_format.parser() if output_format.parser is not None else None
        self._tokens: tuple[int, ...] = ()  # whose text has not come yet
        self._scored: tuple[ScoredToken, ...] = ()
        self._is_parallel = output_format.parallel
        self._num_calls = 0
        self._call_seed = output_format.call_seed
        self._is_in_call = False  # the last piece belonged to a call
        self._has_enough = False  # a second call began, and calls are not parallel

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._detokenizer.stopped_by

    def take(self, output: Tokens | Finished, out: list[Event]) -> None:
        """Append the events of this output to `out`."""
        if self.is_over:
            return
        tokens = output.tokens
        last: tuple[int, ...] = ()
        if type(output) is Finished and output.reason is FinishReason.STOP and tokens and tokens[-1] in self._end_ids:
            tokens, last = tokens[:-1], tokens[-1:]  # like a stop string, it is not part of the text
        if self._parser is None:
            before = self._detokenizer.num_tokens
            text = self._detokenizer.push(tokens)
            count = self._detokenizer.num_tokens - before  # tokens after a stop string are not part of the answer
            self._hold(tokens[:count] if count < len(tokens) else tokens, output.logprobs)
            if text:
                self._add_text(text, out)
        else:
            for place, token in enumerate(tokens):
                text = self._detokenizer.push((token,))
                self._hold((token,), output.logprobs[place : place + 1])
                if text:
                    self._add_pieces(self._parser.push(text), out)
                if self.stopped_by is not None or self._has_enough:
                    break
        if type(output) is Finished or self.stopped_by is not None or self._has_enough:
            self._end(output, last, out)

    def _hold(self, tokens: tuple[int, ...], logprobs: Sequence[TokenLogprobs]) -> None:
        """Keep tokens until the next event."""
        self.num_tokens += len(tokens)
        self._tokens = self._tokens + tokens if self._tokens else tokens
        if self._scores is not None:
            self._scored += self._scores(logprobs[: len(tokens)])

    def _add_text(self, text: str, out: list[Event]) -> None:
        out.append(TextDelta(self.choice, text, self._tokens, self._scored))
        self._tokens, self._scored = (), ()

    def _add_pieces(self, pieces: Sequence[Piece], out: list[Event]) -> None:
        """Append events of parsed pieces. The held tokens go with the first of them."""
        for piece in pieces:
            if self._has_enough or (isinstance(piece, CallStart) and self._num_calls and not self._is_parallel):
                self._has_enough = True
                return
            self._is_in_call = isinstance(piece, CallStart | ArgumentsPiece)
            if isinstance(piece, CallStart):
                call_id = self._call_id(self._num_calls)
                out.append(ToolDelta(self.choice, self._num_calls, "", call_id, piece.name, self._tokens, self._scored))
                self._num_calls += 1
            elif isinstance(piece, ArgumentsPiece):
                self._add_arguments(piece.text, out)
            else:
                kind = ReasoningDelta if isinstance(piece, ThoughtPiece) else TextDelta
                self.num_reasoning += len(self._tokens) if kind is ReasoningDelta else 0
                _append_text(out, kind(self.choice, piece.text, self._tokens, self._scored))
            self._tokens, self._scored = (), ()

    def _call_id(self, call: int) -> str:
        """The id of a call: random, and the same when another server continues the answer."""
        facts = f"{self._call_seed}/{self.choice}/{call}".encode()
        return f"call_{hashlib.blake2b(facts, digest_size=12).hexdigest()}"

    def _add_arguments(self, text: str, out: list[Event]) -> None:
        """Append arguments of a call, joined with the event before if that has arguments too."""
        delta = ToolDelta(self.choice, self._num_calls - 1, text, None, None, self._tokens, self._scored)
        self._tokens, self._scored = (), ()
        before = out[-1] if out else None
        if type(before) is not ToolDelta or before.id is not None or before.choice != delta.choice:
            out.append(delta)
            return
        joined = (before.tokens + delta.tokens, before.logprobs + delta.logprobs)
        out[-1] = ToolDelta(self.choice, delta.call, before.arguments + text, None, None, *joined)

    def _end(self, output: Tokens | Finished, last: tuple[int, ...], out: list[Event]) -> None:
        self.is_over = True
        if last:
            self._hold(last, output.logprobs[-1:])
        text = self._detokenizer.flush()
        if self._parser is None:
            if text or self._tokens:
                self._add_text(text, out)
        else:
            ended_itself = self._has_enough or (type(output) is Finished and output.reason is FinishReason.STOP)
            is_cut_off = self.stopped_by is not None or not ended_itself
            rest = self._parser.push(text) if text else []
            self._add_pieces([*rest, *self._parser.flush(is_cut_off)], out)
            if self._tokens:
                (self._add_arguments if self._is_in_call else self._add_text)("", out)
        out.append(Finish(self.choice, *self._ending(output, last)))

    def _ending(self, output: Tokens | Finished, last: tuple[int, ...]) -> tuple[Ending, str | int | None]:
        """Why it ended, and the stop string or token."""
        if self.stopped_by is not None:
            return Ending.STOP_TEXT, self.stopped_by
        if self._has_enough:
            return Ending.TOOL_CALLS, None
        assert isinstance(output, Finished)
        if last and last[0] in self._stop_ids:
            return Ending.STOP_TEXT, last[0]
        if self._num_calls and output.reason is FinishReason.STOP:
            return Ending.TOOL_CALLS, None
        return ENDINGS[output.reason], None


def _append_text(out: list[Event], delta: TextDelta | ReasoningDelta) -> None:
    """Append a delta, joined with the event before if that is of the same kind and choice."""
    before = out[-1] if out else None
    if type(before) is not type(delta) or before.choice != delta.choice:
        out.append(delta)
        return
    joined = (before.text + delta.text, before.tokens + delta.tokens, before.logprobs + delta.logprobs)
    out[-1] = type(delta)(delta.choice, *joined)
