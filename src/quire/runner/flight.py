"""A step between its launch and its result, and the parts that were removed from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from quire.devices.base import Pending
from quire.ops.batch import StateSlots
from quire.runner.batch import BuiltBatch
from quire.runner.rows import Row
from quire.types.errors import QuireError
from quire.types.step import Part, PartResult, StepPlan, StepResult

Mask = NDArray[Any] | QuireError  # uint32 [num_logits, words] of one part, or the error of its grammar


@dataclass(frozen=True, slots=True)
class Masks:
    """Grammar masks of one step, computed while the step runs."""

    parts: tuple[int, ...]  # indices of the plan's parts that have a mask, ascending
    wait: Callable[[], Mapping[int, Mask]]  # blocks until they are computed; by part index

    def without(self, index: int) -> Masks:
        """Return the masks for the same plan without the part at this index."""
        moved = {at: at - (at > index) for at in self.parts if at != index}
        return Masks(
            tuple(moved.values()), lambda: {moved[at]: mask for at, mask in self.wait().items() if at in moved}
        )


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step. Owned by the runner; the engine only passes it from `launch` to `collect`."""

    plan: StepPlan  # without the removed parts
    rows: list[Row]  # of its parts at launch: by now another request may have joined a row
    began: float
    masks: Masks | None = None
    built: BuiltBatch | None = None
    pending: Pending | None = None
    error: QuireError | None = None
    result: StepResult | None = None
    busy_seconds: float | None = None  # of the device, if it measures them
    is_typical: bool = True  # False: the device prepared something that steps like it will not wait for
    states: StateSlots | None = None  # a copy of those of the batch, if states are checked
    _removed: list[tuple[int, QuireError]] = field(default_factory=list)  # index of each part when it was removed

    def remove_largest(self, error: QuireError) -> Part:
        """Remove the part with the most tokens, so that it is not computed; of equal ones the last, which ranks lowest.

        Copies stay in the plan: another request may share the copied blocks.
        """
        parts = self.plan.parts
        index = max(range(len(parts)), key=lambda at: (parts[at].num_tokens, at))
        self._removed.append((index, error))
        self.plan = replace(self.plan, parts=parts[:index] + parts[index + 1 :])
        self.rows = self.rows[:index] + self.rows[index + 1 :]
        self.masks = None if self.masks is None else self.masks.without(index)
        self.built = None
        return parts[index]

    def with_removed(self, results: Sequence[PartResult]) -> tuple[PartResult, ...]:
        """Return the results of all planned parts, from the results of those that were launched."""
        found = list(results)
        for index, error in reversed(self._removed):
            found.insert(index, PartResult(error=error))
        return tuple(found)
