"""The load of a group of replicas, from its engines' reports and the gateway's queue. Pure.

    role      tokens                                               queue time of a prompt that arrives now
    both      KV of running requests, prompts that wait            prompts before it, the wait for a row
    prefill   prompts that are not computed, there and at decode   prompts before it, those at decode replicas, the
              replicas, which compute what is not sent in time     wait for a row
    decode    as for both                                          the wait for a row; without a prefill replica: as
                                                                   for both

The role is the one that the engine reports: one that exchanges no blocks does both, whatever its group is.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.cluster.autoscale import FleetLoad
from quire.types.load import LoadReport
from quire.types.transfer import Role

DEFAULT_RATE = 1000.0  # prompt tokens per second of a replica that has not measured its own


def group_load(
    own: Sequence[LoadReport], others: Sequence[LoadReport], num_waiting: int, oldest_wait: float
) -> FleetLoad:
    """Return the load of a group. `others`: the reports of the model's other replicas."""
    has_prefill = any(each.role == Role.PREFILL for each in others)
    is_prefill = any(each.role == Role.PREFILL for each in own)
    taken = sum(each.prompt_tokens for each in others if each.role == Role.DECODE) if is_prefill else 0
    queue = min((_queue_seconds(each, has_prefill) for each in own), default=0.0)
    if taken:
        queue += taken / sum(each.prompt_rate or DEFAULT_RATE for each in own)
    return FleetLoad(
        num_ready=len(own),
        num_waiting=num_waiting,
        num_requests=sum(each.num_waiting + each.num_running for each in own),
        queue_seconds=max(queue, oldest_wait),
        tokens=sum(map(counted_tokens, own)) + taken,
        counted="prompt tokens to compute" if is_prefill else "tokens in flight",
        num_elsewhere=sum(each.num_waiting + each.num_running for each in others),
    )


def counted_tokens(load: LoadReport) -> int:
    """The tokens by which an engine's group is scaled."""
    if load.role == Role.PREFILL:
        return load.backlog_tokens
    return load.num_held_blocks * load.block_tokens + load.waiting_tokens


def _queue_seconds(load: LoadReport, has_prefill: bool) -> float:
    """Seconds until a prompt that arrives now is computed; at a decode replica that is spared prompts: has a row."""
    is_spared = load.role == Role.DECODE and has_prefill
    seconds = 0.0 if is_spared else load.backlog_tokens / (load.prompt_rate or DEFAULT_RATE)
    num_there = load.num_waiting + load.num_running
    if load.max_rows and num_there >= load.max_rows:
        seconds += (num_there + 1 - load.max_rows) * load.service_seconds / load.max_rows
    return seconds
