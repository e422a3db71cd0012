"""The measured pace of an engine, for gateways: prompt tokens per second, and seconds per output token."""

from __future__ import annotations

from quire.types.step import StepPlan, StepResult


class Line:
    """The line y = fixed + slope × x through measured points; older points count less."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # sums

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        decay = self._decay
        self._weight = self._weight * decay + 1.0
        self._x = self._x * decay + x
        self._y = self._y * decay + y
        self._xx = self._xx * decay + x * x
        self._xy = self._xy * decay + x * y

    @property
    def mean(self) -> tuple[float, float]:
        """The mean point; (0, 0) without points."""
        return (self._x / self._weight, self._y / self._weight) if self._weight else (0.0, 0.0)

    @property
    def slope(self) -> float:
        """Its slope, at most that of a line through 0. 0 if the points have similar x: then it would be noise."""
        x, y = self.mean
        if not self._weight or (variance := self._xx / self._weight - x * x) <= 0.01 * x * x:
            return 0.0
        return min(max((self._xy / self._weight - x * y) / variance, 0.0), y / x)


class Pace:
    """Learns from steps: of prompts, the tokens and seconds; of steps without prompts, the streams and seconds."""

    PROMPT_DECAY = 0.95
    DECODE_DECAY = 0.98
    LEAST_SHARE = 0.25  # of a prompt step's time that grows with its tokens, however steps vary

    def __init__(self) -> None:
        self._prompts, self._decodes = Line(self.PROMPT_DECAY), Line(self.DECODE_DECAY)

    def record_step(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step."""
        parts, seconds = plan.parts, result.seconds
        if seconds <= 0.0 or not parts:
            return
        if plan.num_tokens == len(parts):  # hot path: one token per stream
            self._decodes.add(len(parts), seconds)
            return
        num_prompt = sum(len(part.tokens) for part in parts if part.tokens is not None and part.num_logits < 2)
        if num_prompt:
            self._prompts.add(num_prompt, seconds)
        else:  # drafts: a stream gets several tokens
            num_output = sum(len(each.tokens) for each in result.parts)
            self._decodes.add(len(parts), seconds * len(parts) / max(num_output, 1))

    @property
    def prompt_rate(self) -> float:
        """Further prompt tokens per second of a step; 0 before the first step with a prompt."""
        tokens, seconds = self._prompts.mean
        if not tokens:
            return 0.0
        slope = self._prompts.slope
        return 1.0 / max(slope, self.LEAST_SHARE * seconds / tokens) if slope else tokens / seconds

    @property
    def decode_seconds(self) -> float:
        """Seconds between two tokens of a stream that runs alone; 0 before the first step without prompts."""
        rows, seconds = self._decodes.mean
        return max(seconds - self._decodes.slope * (rows - 1.0), 0.0)

    @property
    def decode_row_seconds(self) -> float:
        """Seconds that each further stream adds to that."""
        return self._decodes.slope
