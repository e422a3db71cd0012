"""Estimates of when a replica would answer a request, from its load. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from quire.gateway.balancers.contract import Replica

PROMPT_RATE = 1000.0  # tokens per second, until any replica has reported
DECODE_SECONDS = 0.02  # per token, until any replica has reported
STALE_SECONDS = 10.0  # an older report says nothing about the queue


class Estimate(NamedTuple):
    """When a replica would answer, in seconds from now on."""

    replica: Replica
    queue: float  # until its prompt is computed
    first_token: float
    end: float


class Paces(NamedTuple):
    """The paces to assume for replicas that have not reported theirs: the medians of the others."""

    prompt_rate: float
    decode_seconds: float


def common_paces(replicas: Sequence[Replica]) -> Paces:
    """Return the medians of the reported paces."""
    rates = [each.load.prompt_rate for each in replicas if each.load.prompt_rate > 0.0]
    decodes = [each.load.decode_seconds for each in replicas if each.load.decode_seconds > 0.0]
    return Paces(median(rates) if rates else PROMPT_RATE, median(decodes) if decodes else DECODE_SECONDS)


def estimate(replica: Replica, num_uncached: int, num_output: int, paces: Paces, now: float) -> Estimate:
    """Return when a replica would answer a request with so many tokens to compute and to generate.

        first token = (prompt tokens ahead of it + its own uncached ones) / prompt rate + wait for a row
        end         = first token + output tokens × seconds per token with all streams that will run

    The prompts that were reported are being computed since then; those that were sent since are still to come.
    """
    load = replica.load
    rate = load.prompt_rate or paces.prompt_rate
    age = 0.0 if replica.reported_at is None else now - replica.reported_at
    backlog, num_others = 0.0, replica.sent_requests
    if age <= STALE_SECONDS:
        backlog = max(load.waiting_tokens + load.prompt_tokens - age * rate, 0.0)
        num_others += load.num_running + load.num_waiting
    else:
        num_others = max(num_others, replica.num_open)
    queue = (backlog + replica.sent_tokens) / rate
    if load.max_rows and num_others >= load.max_rows:
        queue += (num_others + 1 - load.max_rows) * load.service_seconds / load.max_rows
        num_others = load.max_rows - 1
    first = queue + max(num_uncached, 1) / rate
    pace = (load.decode_seconds or paces.decode_seconds) + num_others * load.decode_row_seconds
    return Estimate(replica, queue, first, first + num_output * pace)
