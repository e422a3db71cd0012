"""What the controller does next: start, drain and remove replicas. Pure.

A rollout is a group whose version has changed: replicas of the new one are started beside those of the old one, at most
`surge` more than there should be; for each that becomes ready an old one is drained. If none becomes ready, all old
ones stay.

A group that is not in the file any more, of a model that is (its roles have changed), is replaced in the same way by
the model's other groups. Those that answer come first: prefill replicas are started when the old group has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

STARTING, READY, FAILING, DRAINING, STOPPED = "starting", "ready", "failing", "draining", "stopped"


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica, as far as the plan needs it."""

    id: str
    model: str
    group: str
    version: str
    state: str
    num_requests: int = 0
    started_at: float = 0.0
    answers: bool = True  # False: it computes prompts for others

    @property
    def is_live(self) -> bool:
        """Does it count? One that drains does not."""
        return self.state not in (DRAINING, STOPPED)


@dataclass(frozen=True, slots=True)
class Target:
    """How many replicas of which version a group should have."""

    model: str
    version: str
    count: int
    surge: int = 1
    answers: bool = True  # False: its replicas compute prompts for others


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start a replica of the group's version."""

    group: str
    version: str


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """Let a replica finish its requests, and end it."""

    id: str


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    """Give back the place of a replica that has ended."""

    id: str


Action = StartReplica | DrainReplica | RemoveReplica


def plan_actions(targets: Mapping[str, Target], replicas: Sequence[ReplicaView]) -> list[Action]:
    """Return what to do to come closer to the targets of the groups. A model without a target is drained."""
    actions: list[Action] = [RemoveReplica(each.id) for each in replicas if each.state == STOPPED]
    models = dict.fromkeys([*(each.model for each in targets.values()), *(each.model for each in replicas)])
    for model in models:
        groups = {name: each for name, each in targets.items() if each.model == model}
        actions += _of_model(groups, [each for each in replicas if each.model == model and each.is_live])
    return actions


def _of_model(groups: Mapping[str, Target], live: Sequence[ReplicaView]) -> Iterable[Action]:
    left = [each for each in live if each.group not in groups]
    answering = {name: each for name, each in groups.items() if each.answers}
    num_answering = sum(each.count for each in answering.values())
    surge = max((each.surge for each in answering.values()), default=0)
    room = num_answering + surge - sum(each.answers for each in live)
    for name in sorted(groups, key=lambda each: not groups[each].answers):
        for action in _of_group(name, groups[name], [each for each in live if each.group == name]):
            if isinstance(action, StartReplica) and left:
                room -= 1
                if name not in answering or room < 0:
                    continue
            yield action
    num_ready = sum(each.state == READY for each in live if each.group in answering)
    num_kept = min(max(num_answering - num_ready, 0), sum(each.answers and each.state == READY for each in left))
    for each in sorted(_least_useful(left), key=lambda each: each.answers)[: len(left) - num_kept]:
        yield DrainReplica(each.id)


def _of_group(group: str, target: Target, live: Sequence[ReplicaView]) -> Iterable[Action]:
    new = [each for each in live if each.version == target.version]
    old = [each for each in live if each.version != target.version]
    num_missing = target.count - len(new)
    if num_missing > 0:
        room = target.count + (target.surge if old else 0) - len(live)
        for _ in range(min(num_missing, max(room, 0))):
            yield StartReplica(group, target.version)
    for each in _least_useful(new)[: max(-num_missing, 0)]:
        yield DrainReplica(each.id)
    num_ready = sum(each.state == READY for each in new)
    num_kept = min(max(target.count - num_ready, 0), sum(each.state == READY for each in old))
    for each in _least_useful(old)[: len(old) - num_kept]:
        yield DrainReplica(each.id)


def _least_useful(replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
    """Those that are not ready first, then those with the fewest requests, then the newest."""
    return sorted(replicas, key=lambda each: (each.state == READY, each.num_requests, -each.started_at))
