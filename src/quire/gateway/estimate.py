"""Estimates of when a replica would answer a request, from its load. Pure.

    first token = (prompt tokens ahead of it + its own uncached ones) / prompt rate + wait for a row
    end         = first token + output tokens × seconds per token with all streams that will run

Reported prompts have been computed since the report: either their time has passed or they were answered, whichever
leaves less. Both describe the same prompts, so they are never added. Prompts sent since the report are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from quire.gateway.balancers.contract import Replica

PROMPT_RATE = 1000.0  # tokens per second, until any replica has reported
DECODE_SECONDS = 0.02  # per token, until any replica has reported
LEAST_RATE = 0.1  # smaller reported rates are ignored: they would make every estimate infinite
STALE_SECONDS = 10.0  # the queue of an older report is ignored


class Estimate(NamedTuple):
    """When a replica would answer, in seconds from now on."""

    queue: float  # until its prompt is computed
    first_token: float
    end: float


class ReplicaTerms(NamedTuple):
    """The parts of an estimate that depend on the replica alone."""

    replica: Replica
    rate: float  # prompt tokens per second
    ahead: float  # seconds of the prompts that were reported and are not answered
    done_at: float  # when all prompts that were reported would be computed
    fixed: float  # seconds: prompts sent since then, and the wait for a row
    pace: float  # seconds per output token
    num_others: int  # requests there, which wait while a prompt is computed
    reported_at: float


class Estimator:
    """Computes a replica's terms once per change of the replica: 1,000 replicas take about a millisecond."""

    def __init__(self) -> None:
        self._terms: dict[str, ReplicaTerms] = {}

    def terms(self, replicas: Sequence[Replica], now: float) -> list[ReplicaTerms]:
        """Return the terms of these replicas, in their order."""
        known, found, paces = self._terms, [], None
        for replica in replicas:
            terms = known.get(replica.name)
            if terms is None or terms[0] is not replica or now - terms[7] > STALE_SECONDS:
                paces = paces or common_paces(replicas)
                terms = known[replica.name] = replica_terms(replica, paces, now)
            found.append(terms)
        if len(known) > 2 * len(replicas) + 64:
            self._terms = {terms.replica.name: terms for terms in found}
        return found


def estimate(terms: ReplicaTerms, num_uncached: int, num_output: int, now: float) -> Estimate:
    """Return when a replica would answer a request with these numbers of tokens to compute and to generate."""
    _, rate, ahead, done_at, queue, pace, _, _ = terms
    if ahead:
        queue += max(min(ahead, done_at - now), 0.0)
    first = queue + max(num_uncached, 1) / rate
    return Estimate(queue, first, first + num_output * pace)


def common_paces(replicas: Sequence[Replica]) -> tuple[float, float]:
    """Return the median prompt rate and seconds per token: the defaults for replicas that have reported neither."""
    rates = [each.load.prompt_rate for each in replicas if each.load.prompt_rate >= LEAST_RATE]
    decodes = [each.load.decode_seconds for each in replicas if each.load.decode_seconds > 0.0]
    return median(rates) if rates else PROMPT_RATE, median(decodes) if decodes else DECODE_SECONDS


def replica_terms(replica: Replica, paces: tuple[float, float], now: float) -> ReplicaTerms:
    """Return a replica's terms. Without a recent report, its queue is what this gateway has sent."""
    load = replica.load
    rate = load.prompt_rate if load.prompt_rate >= LEAST_RATE else paces[0]
    num_ahead, num_others = 0, max(replica.sent_requests, replica.num_open)
    reported_at = now if replica.reported_at is None else replica.reported_at
    if now - reported_at <= STALE_SECONDS:
        num_ahead = load.backlog_tokens - replica.answered_tokens
        num_reported = load.num_running + load.num_waiting - replica.ended_requests
        num_others = max(num_others, replica.sent_requests + num_reported)
    fixed, num_there = replica.sent_tokens / rate, num_others
    if load.max_rows and num_others >= load.max_rows:
        fixed += (num_others + 1 - load.max_rows) * load.service_seconds / load.max_rows
        num_others = load.max_rows - 1
    pace = (load.decode_seconds or paces[1]) + num_others * load.decode_row_seconds
    done_at = reported_at + load.backlog_tokens / rate
    return ReplicaTerms(replica, rate, num_ahead / rate, done_at, fixed, pace, num_there, reported_at)
