"""The replicas of one model as a gateway sees them: reported loads, and what it has sent since."""

from __future__ import annotations

from dataclasses import replace

from quire.gateway.balancers.contract import BalancerChoice, Replica
from quire.types.load import LoadReport


class Fleet:
    """Keeps the replicas of one model. Pure: time is an argument.

    A report counts the requests that were sent before it; those that are sent while it is on its way are counted here
    until the next one. A replica that reports nothing is judged by its open requests alone.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, Replica] = {}
        self._unreported: dict[str, dict[str, tuple[float, int]]] = {}  # replica -> request -> (sent at, tokens)
        self._open: dict[str, str] = {}  # request -> replica

    def add(self, name: str, weight: float = 1.0, is_available: bool = True) -> None:
        """Add a replica, or change the weight and availability of one that is known."""
        known = self._replicas.get(name, Replica(name))
        self._replicas[name] = replace(known, weight=weight, is_available=is_available)
        self._unreported.setdefault(name, {})

    def remove(self, name: str) -> None:
        """Forget a replica. Its open requests are forgotten too."""
        self._replicas.pop(name, None)
        self._unreported.pop(name, None)
        self._open = {request: replica for request, replica in self._open.items() if replica != name}

    def report(self, name: str, load: LoadReport, asked_at: float) -> None:
        """Take a load report that was asked for at `asked_at`: it counts what was sent before."""
        waiting = self._unreported[name]
        for request in [request for request, (sent_at, _) in waiting.items() if sent_at < asked_at]:
            del waiting[request]
        self._replicas[name] = replace(self._replicas[name], load=load, reported_at=asked_at)
        self._recount(name)

    def sent(self, request_id: str, choice: BalancerChoice, num_tokens: int, now: float) -> None:
        """Count a request of `num_tokens` prompt tokens that is sent to the chosen replica."""
        self._open[request_id] = choice.replica
        if choice.replica in self._replicas:
            self._unreported[choice.replica][request_id] = (now, max(num_tokens - choice.num_cached, 0))
            self._change_open(choice.replica, 1)

    def ended(self, request_id: str) -> None:
        """Count the end of a request, whatever its result. Unknown requests are ignored."""
        name = self._open.pop(request_id, None)
        if name is not None:
            self._unreported[name].pop(request_id, None)
            self._change_open(name, -1)

    def replicas(self) -> list[Replica]:
        """Return all replicas, in the order in which they were added."""
        return list(self._replicas.values())

    def _change_open(self, name: str, change: int) -> None:
        known = self._replicas[name]
        self._replicas[name] = replace(known, num_open=known.num_open + change)
        self._recount(name)

    def _recount(self, name: str) -> None:
        waiting = self._unreported[name].values()
        self._replicas[name] = replace(
            self._replicas[name], sent_requests=len(waiting), sent_tokens=sum(tokens for _, tokens in waiting)
        )
