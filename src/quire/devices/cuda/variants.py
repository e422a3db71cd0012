"""The variants of a program: ways to compute a whole step with the same weights and caches, one of which is chosen for
each step. The last one, its list of instructions, supports every step. In deterministic mode it is the only one: other
variants sum in other orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


class OutputValues(NamedTuple):
    """The values that a program returns, and which instructions compute rows of logits or of vectors alone."""

    logits: int | None  # None: it computes none
    pooled: int | None = None  # vectors or scores of pools; None: it computes none
    no_vectors: Tensor | None = None  # [0, dim]: those of a step without pools
    of_logits: frozenset[int] = frozenset()  # indices of instructions
    of_pools: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class InstructionList:
    """The variant that supports every step."""

    instructions: list[Instruction]
    outputs: OutputValues

    def __call__(self, run: Run, has_logits: bool = True) -> tuple[Tensor | None, Tensor | None]:
        """Run all instructions that the step needs; return its logits and its vectors, if it has any.

        For a step without either, these are the ones up to the last write to a cache.
        """
        has_pools, outputs = run.pools is not None, self.outputs
        skipped = outputs.of_pools if not has_pools else frozenset() if has_logits else outputs.of_logits
        count = len(self.instructions) if has_logits or has_pools else self._tail
        for index, instruction in enumerate(self.instructions[:count]):
            if index not in skipped:
                instruction(run)
        logits = run.values[outputs.logits] if has_logits and outputs.logits is not None else None
        return logits, run.whole(outputs.pooled) if has_pools and outputs.pooled is not None else None

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
