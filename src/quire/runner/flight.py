"""A step between its launch and its result, and the parts that had to be taken out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from quire.devices.base import Pending
from quire.runner.batch import Built
from quire.runner.rows import Row
from quire.types.errors import QuireError
from quire.types.step import Part, PartResult, StepPlan, StepResult

Mask = NDArray[Any] | QuireError  # uint32 [num_logits, words] of one part, or why its grammar has none


@dataclass(frozen=True, slots=True)
class Masks:
    """Grammars' masks of one step, which are made while it runs."""

    parts: tuple[int, ...]  # places in the plan of those that have one, ascending
    wait: Callable[[], Mapping[int, Mask]]  # until they are there; by their places

    def without(self, place: int) -> Masks:
        """Of the same plan with one part less."""
        moved = {at: at - (at > place) for at in self.parts if at != place}
        return Masks(
            tuple(moved.values()), lambda: {moved[at]: mask for at, mask in self.wait().items() if at in moved}
        )


@dataclass(slots=True, eq=False)
class Flight:
    """A step that was launched. Owned by the runner; the engine only carries it from launch to collect."""

    plan: StepPlan  # without the parts that were taken out
    rows: list[Row]  # of its parts, as they were: another request may have taken the row meanwhile
    began: float
    masks: Masks | None = None
    built: Built | None = None
    pending: Pending | None = None
    error: QuireError | None = None
    result: StepResult | None = None
    busy_seconds: float | None = None  # of the device, where it can tell
    _taken_out: list[tuple[int, QuireError]] = field(default_factory=list)  # where each was when it was taken out

    def take_out_largest(self, error: QuireError) -> Part:
        """The part with the most tokens will not be computed; of equal ones the last, which is the least important.

        Copies stay in the plan: another request may have come by its blocks through this one.
        """
        parts = self.plan.parts
        place = max(range(len(parts)), key=lambda at: (parts[at].num_tokens, at))
        self._taken_out.append((place, error))
        self.plan = replace(self.plan, parts=parts[:place] + parts[place + 1 :])
        self.rows = self.rows[:place] + self.rows[place + 1 :]
        self.masks = None if self.masks is None else self.masks.without(place)
        self.built = None
        return parts[place]

    def whole(self, results: Sequence[PartResult]) -> tuple[PartResult, ...]:
        """What became of all parts that were planned, by the results of those that were launched."""
        found = list(results)
        for place, error in reversed(self._taken_out):
            found.insert(place, PartResult(error=error))
        return tuple(found)
