"""The scheduler's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Figures for metrics."""

    num_running: int
    num_waiting: int
    num_in_flight: int  # steps
    num_preemptions: int
    promised_wait: float  # seconds
