"""Transfers of KV blocks between simulated engines: the blocks of a step are sent while the next step computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.gateway.prefix_sources import LATENCY, RECEIVE_RATE

if TYPE_CHECKING:
    from quire.bench.fleet.replica import SimulatedReplica
    from quire.bench.fleet.traffic import SimulatedRequest


@dataclass(frozen=True, slots=True)
class KVLink:
    """Speed of KV transfers. The defaults are those that the gateway assumes until an engine has measured them."""

    token_bytes: int  # KV bytes of a token
    rate: float = RECEIVE_RATE  # bytes per second, for sending and for receiving
    latency: float = LATENCY  # seconds


@dataclass(slots=True, eq=False)
class Handover:
    """A transfer of the KV of a prompt's first tokens from one replica to another."""

    request: SimulatedRequest
    source: SimulatedReplica
    target: SimulatedReplica
    link: KVLink
    num_tokens: int  # prompt tokens that the target should have in the end
    num_there: int  # of these, tokens at the target or in flight
    num_computed: int = 0  # tokens that the source computes for this
    num_sent: int = 0
    arrival: float = 0.0  # time at which the last blocks arrive
    is_over: bool = False

    def send(self, num_tokens: int, now: float) -> None:
        """Send the blocks of the first `num_tokens`. A replica sends, and receives, one transfer at a time."""
        count = min(num_tokens, self.num_tokens) - self.num_there
        if count <= 0:
            return
        begin = max(now, self.source.sends_until, self.target.receives_until)
        end = begin + count * self.link.token_bytes / self.link.rate
        self.source.sends_until = self.target.receives_until = end
        self.arrival = end + self.link.latency
        self.num_there += count
        self.num_sent += count
