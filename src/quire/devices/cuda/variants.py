"""The variants of a program: ways to compute a whole step with the same weights and caches, one of which is chosen for
each step. The last one, its list of instructions, supports every step. In deterministic mode it is the only one: other
variants sum in other orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .attention import AttendCache
from .inputs import StepSizes
from .instructions import Attend, Instruction, Run
from .latent import AttendLatent
from .recurrent import WRITE_STATES


class Variant(Protocol):
    """A way to compute steps of up to `max_rows` rows and `max_tokens` tokens that it supports."""

    @property
    def max_rows(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def row_tokens(self) -> int:
        """The most tokens of a row with drafts; 1: it computes no drafts."""

    @property
    def num_ctas(self) -> int:
        """The blocks over which attention of its steps is split."""

    def supports(self, run: Run) -> bool:
        """Return whether it can compute a step within its maximum, in which every token yields logits."""

    def __call__(self, run: Run) -> Tensor:
        """Compute a step; return its logits [T, vocab], in float32."""


def variant_within(variants: Sequence[Variant], sizes: StepSizes) -> Variant | None:
    """Return the first variant for steps of such sizes. None: the list of instructions."""
    return next((each for each in variants if sizes.rows <= each.max_rows and sizes.tokens <= each.max_tokens), None)


@dataclass(slots=True, eq=False)
class InstructionList:
    """The variant that supports every step."""

    instructions: list[Instruction]
    output: int  # the value that has the logits

    def __call__(self, run: Run, has_logits: bool = True) -> Tensor | None:
        """Run all instructions, or, for a step without logits, those up to the last write to a cache."""
        for instruction in self.instructions if has_logits else self.instructions[: self._tail]:
            instruction(run)
        return run.values[self.output] if has_logits else None

    @property
    def _tail(self) -> int:
        """Number of instructions up to the last one that writes KV or states."""
        writes = (
            i
            for i, each in enumerate(self.instructions)
            if isinstance(each, (Attend, AttendLatent, *WRITE_STATES))
            or (isinstance(each, AttendCache) and each.writes)
        )
        return 1 + max(writes, default=-1)
