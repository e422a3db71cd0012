"""The measured pace of an engine, for gateways: prompt tokens per second, and seconds per output token."""

from __future__ import annotations

from quire.types.step import StepPlan, StepResult


class Pace:
    """Learns from steps. With prompts: seconds = fixed + slope × prompt tokens, weighted towards recent ones."""

    DECAY = 0.95

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # sums; x: prompt tokens, y: seconds
        self.decode_seconds = 0.0  # between two tokens of a stream, in steps without prompts

    def record_step(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step."""
        parts, seconds = plan.parts, result.seconds
        if seconds <= 0.0 or not parts:
            return
        if plan.num_tokens == len(parts):  # hot path: one token per stream
            self._record_decode(seconds)
            return
        num_prompt = sum(len(part.tokens) for part in parts if part.tokens is not None and part.num_logits < 2)
        if num_prompt:
            self._weight = self._weight * self.DECAY + 1.0
            self._x = self._x * self.DECAY + num_prompt
            self._y = self._y * self.DECAY + seconds
            self._xx = self._xx * self.DECAY + num_prompt * num_prompt
            self._xy = self._xy * self.DECAY + num_prompt * seconds
        else:  # drafts: a stream gets several tokens
            num_output = sum(len(each.tokens) for each in result.parts)
            self._record_decode(seconds * len(parts) / max(num_output, 1))

    @property
    def prompt_rate(self) -> float:
        """Further prompt tokens per second of a step; 0 before the first step with a prompt."""
        if not self._weight:
            return 0.0
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        slope = (self._xy / self._weight - x * y) / variance if variance > 0.01 * x * x else 0.0
        # A fit over steps of similar sizes is noise. The part of the time that grows with the tokens is at least a
        # quarter of it, and at most all of it.
        return 1.0 / min(max(slope, 0.25 * y / x), y / x) if slope > 0.0 else x / y

    def _record_decode(self, seconds: float) -> None:
        before = self.decode_seconds
        self.decode_seconds = before * self.DECAY + seconds * (1 - self.DECAY) if before else seconds
