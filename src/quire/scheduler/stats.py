"""The scheduler's figures."""

from __future__ import annotations

from dataclasses import dataclass

from quire.scheduler.limits import StepTimeModel
from quire.scheduler.queues import RunningList, WaitingQueue
from quire.scheduler.request_state import Phase, RequestState


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


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """Figures from which a gateway estimates when a request would be answered; see `types/load.py:LoadReport`."""

    num_waiting: int
    num_running: int
    max_rows: int
    waiting_tokens: int
    prompt_tokens: int
    num_decoding: int
    prompt_rate: float
    decode_seconds: float
    decode_row_seconds: float
    service_seconds: float


def measure_load(
    waiting: WaitingQueue, running: RunningList | set[RequestState], max_rows: int, step_times: StepTimeModel
) -> SchedulerLoad:
    """Return the load of the waiting and running requests, and the measured pace."""
    pace = step_times.pace
    prompts = [state for state in running if state.phase is Phase.PREFILLING]
    num_hit = sum(state.hit.num_tokens for state in waiting if state.hit is not None)
    return SchedulerLoad(
        num_waiting=len(waiting),
        num_running=len(running),
        max_rows=max_rows,
        waiting_tokens=max(waiting.num_tokens - num_hit, 0),
        prompt_tokens=sum(len(state.tokens) - state.computed for state in prompts),
        num_decoding=len(running) - len(prompts),
        prompt_rate=pace.prompt_rate,
        decode_seconds=pace.decode_seconds,
        decode_row_seconds=pace.decode_row_seconds,
        service_seconds=step_times.service_seconds,
    )
