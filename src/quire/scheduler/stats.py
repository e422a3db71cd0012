"""The scheduler's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftStats:
    """Drafted tokens, by drafter."""

    drafted_tokens: dict[str, int]  # verified
    accepted_drafts: dict[str, int]  # of these
    num_drafts: int  # each of one or more tokens
    accepted_by_position: list[int]  # accepted tokens, by their place in the draft


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Figures for metrics."""

    num_running: int
    num_waiting: int
    num_in_flight: int  # steps
    num_preemptions: int
    promised_wait: float  # seconds
    drafts: DraftStats
