"""What an operator can ask of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Numbers for metrics."""

    num_running: int
    num_waiting: int
    num_in_flight: int  # steps
    num_preemptions: int
    promised_wait: float
