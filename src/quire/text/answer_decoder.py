"""Decodes the output of one request into events, and counts what the answer costs.

Choice `first_choice + s` is sample s. With `echo`, the prompt is the first event of every choice; its log probabilities
arrive in pieces from the first sample, and output that comes earlier is held back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from quire.text.choice_decoder import ChoiceDecoder
from quire.text.output_format import OutputFormat
from quire.text.prompts import Prompt
from quire.types.answer import Usage
from quire.types.chat import Event, Finish, PromptEcho
from quire.types.output import Finished, Tokens
from quire.types.step import PREDICTION, DraftCount, TokenLogprobs

StopSample = Callable[[str, int], None]  # ends a sample in the engine: request id, sample


class AnswerDecoder:
    """One request. A sample whose text has ended before its tokens is ended in the engine by `stop_sample`."""

    def __init__(
        self, prompt: Prompt, output_format: OutputFormat, stop_sample: StopSample, first_choice: int = 0
    ) -> None:
        self.choices = [ChoiceDecoder(first_choice + s, output_format) for s in range(output_format.sampling.n)]
        self.prompt = prompt
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.num_hit = 0  # prompt tokens that came from the prefix tree
        self.num_forced = 0
        self.drafts: Counter[tuple[str, bool]] = Counter()  # tokens by drafter, drafted (False) and accepted (True)
        self.waited = 0.0  # seconds in the queue
        self.endings: list[str] = []
        self.is_over = False  # all samples have ended
        self._format = output_format
        self._stop_sample = stop_sample
        self._num_open = len(self.choices)
        self._held: list[Tokens | Finished] | None = [] if output_format.echo else None

    def take(self, output: Tokens | Finished, out: list[Event]) -> None:
        """Append the events of this output to `out`."""
        if not output.sample and output.num_hit > self.num_hit:
            self.num_hit = output.num_hit  # the other samples share the prompt of the first
        if type(output) is Tokens and output.prompt_logprobs:
            self.prompt_logprobs += output.prompt_logprobs
        if self._held is None:
            self._decode(output, out)
            return
        self._held.append(output)
        num_expected = len(self.prompt.tokens) - 1 if self._format.sampling.prompt_logprobs is not None else 0
        has_ended = type(output) is Finished and not output.sample
        if len(self.prompt_logprobs) >= num_expected or has_ended:
            self._add_prompt(out)

    def _decode(self, output: Tokens | Finished, out: list[Event]) -> None:
        choice = self.choices[output.sample]
        if type(output) is Finished:
            self.waited = max(self.waited, output.waited)
        if choice.is_over:
            return
        before = choice.num_tokens
        choice.take(output, out)
        if output.num_forced:
            self.num_forced += min(output.num_forced, choice.num_tokens - before)
        for drafter, num_drafted, num_accepted in output.drafts:
            self.drafts[drafter, False] += num_drafted
            self.drafts[drafter, True] += min(num_accepted, choice.num_tokens - before)
        if choice.is_over:
            self._num_open -= 1
            self.is_over = not self._num_open
            last = out[-1]
            assert isinstance(last, Finish)
            self.endings.append(last.ending)
            if type(output) is not Finished:
                self._stop_sample(output.request_id, output.sample)

    def _add_prompt(self, out: list[Event]) -> None:
        scores = self._format.prompt_scores(self.prompt.tokens, self.prompt_logprobs)
        for choice in self.choices:
            out.append(PromptEcho(choice.choice, self.prompt.text or "", self.prompt.tokens, scores))
        held, self._held = self._held or [], None
        for output in held:
            self._decode(output, out)


def total_usage(decoders: Sequence[AnswerDecoder], first_token_seconds: float, seconds: float) -> Usage:
    """What the answers of these requests have cost so far. The seconds are those since the submit."""
    choices = [choice for decoder in decoders for choice in decoder.choices]
    return Usage(
        prompt=sum(decoder.prompt.num_read for decoder in decoders),
        cached=sum(decoder.num_hit for decoder in decoders),
        output=sum(choice.num_tokens for choice in choices),
        first_token_seconds=first_token_seconds,
        seconds=seconds,
        forced=sum(decoder.num_forced for decoder in decoders),
        reasoning=sum(choice.num_reasoning for choice in choices),
        kept=sum(max(0, decoder.prompt.num_pinned - decoder.num_hit) for decoder in decoders),
        drafts=_draft_counts(decoders),
    )


def _draft_counts(decoders: Sequence[AnswerDecoder]) -> tuple[DraftCount, ...]:
    """The counts of each drafter; those of a prediction also if nothing of it was tried."""
    counts = sum((decoder.drafts for decoder in decoders), Counter[tuple[str, bool]]())
    names = {name for name, _ in counts} | {PREDICTION for decoder in decoders if decoder.prompt.predicted}
    return tuple(DraftCount(name, counts[name, False], counts[name, True]) for name in sorted(names))
