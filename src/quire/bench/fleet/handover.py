"""KV blocks on their way between simulated engines: those of each step are sent while the next step computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.gateway.prefix_sources import LATENCY, RECEIVE_RATE

if TYPE_CHECKING:
    from quire.bench.fleet.replica import SimulatedReplica
    from quire.bench.fleet.traffic import SimulatedRequest


@dataclass(frozen=True, slots=True)
class KVLink:
    """How replicas exchange KV blocks. The defaults are what the gateway assumes until an engine has measured them."""

    token_bytes: int  # KV bytes of a token
    rate: float = RECEIVE_RATE  # bytes per second that a replica sends, and that it receives
    latency: float = LATENCY  # seconds


@dataclass(slots=True, eq=False)
class Handover:
    """The first tokens of a prompt, whose KV one replica sends to another."""

    request: SimulatedRequest
    source: SimulatedReplica
    target: SimulatedReplica
    link: KVLink
    num_tokens: int  # of the prompt, that are to be sent
    num_there: int  # of these, that are at the target or on their way
    num_computed: int = 0  # that the source has computed for this
    num_sent: int = 0
    arrival: float = 0.0  # of what was sent last
    is_over: bool = False

    def send(self, num_tokens: int, now: float) -> None:
        """Send the blocks up to this token. A replica sends, and receives, one after the other."""
        count = min(num_tokens, self.num_tokens) - self.num_there
        if count <= 0:
            return
        begin = max(now, self.source.sends_until, self.target.receives_until)
        end = begin + count * self.link.token_bytes / self.link.rate
        self.source.sends_until = self.target.receives_until = end
        self.arrival = end + self.link.latency
        self.num_there += count
        self.num_sent += count
