"""The figures of a sample that are reported and charged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Accounting:
    """Queue time, prefix hit and charges of one sample. Planning does not depend on them."""

    arrival_time: float
    num_charged: int  # output tokens charged to its key
    admission_time: float | None = None  # of the first admission
    num_hit: int = 0  # prompt tokens found in the prefix tree at the first admission

    def queue_seconds(self, now: float) -> float:
        """Return the seconds in the queue before the first admission, or until now."""
        return (now if self.admission_time is None else self.admission_time) - self.arrival_time
