"""Which models are in memory: who is loaded, who goes, who waits. One budget of bytes holds for all of them.

    away ── Load ──> loading ── loaded ──> here ── Unload ──> leaving ── gone ──> away

Requests hold tickets. A ticket of a model that is here is admitted at once. The others wait, and room is made for the
model that has been waited for longest; nobody overtakes it, so a large model is not starved by small ones:

 1. idle models give up memory for KV that they can spare; if all of that is not enough, idle models go, the least
    recently used first, those that are to stay for ever last;
 2. then busy models give up what they can spare;
 3. then those that have had the longest turn are drained: what runs there ends, what comes waits, until they are
    idle. A turn is at least `turn` seconds, and so long has whoever waits to wait.

When nobody waits for a model, models whose requests wait for KV memory get what is free, then what idle ones can spare.

So every ticket is admitted in the end if every request ends. What follows from the state is computed anew in each
`plan`: if whoever is waited for gives up, nothing has to be undone.

Pure: the clock is an argument, and `plan` answers what is to be done. Whoever does it tells `loaded`, `failed`, `gone`,
`resized`. Bytes are counted from the decision to load until a model is gone, and of two sizes the larger one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Demand(NamedTuple):
    """Bytes that a model takes: with KV for one full context, and with as much as it could use."""

    least: int
    most: int


class Load(NamedTuple):
    """Load a model, within so many bytes."""

    name: str
    num_bytes: int


class Unload(NamedTuple):
    """End an idle model's engine."""

    name: str


class Resize(NamedTuple):
    """Let a model have so many bytes."""

    name: str
    num_bytes: int


class Admit(NamedTuple):
    """This ticket's request may run."""

    ticket: int


Action = Load | Unload | Resize | Admit


class Stage(Enum):
    """Where a model is."""

    AWAY = "away"
    LOADING = "loading"
    HERE = "here"
    LEAVING = "leaving"


@dataclass(slots=True, eq=False)
class Resident:
    """One model that requests may ask for."""

    name: str
    demand: Demand
    usual_keep: float  # seconds that it stays when nobody uses it; negative: for ever
    keep: float  # the same, as its last request wanted it
    stage: Stage = Stage.AWAY
    num_bytes: int = 0  # that it may have
    wanted_bytes: int = 0  # that it was told to have; what it gives up is not free before it says so
    floor: int = 0  # bytes that it could not go below when it was last asked
    loaded_at: float = 0.0
    used_at: float = 0.0
    running: set[int] = field(default_factory=set)  # tickets
    waiting: dict[int, float] = field(default_factory=dict)  # ticket -> since when, in the order of arrival

    @property
    def is_idle(self) -> bool:
        """Could it go?"""
        return self.stage is Stage.HERE and not self.running and not self.waiting

    @property
    def taken(self) -> int:
        """Bytes that nobody else can have."""
        return max(self.num_bytes, self.wanted_bytes)

    @property
    def spare(self) -> int:
        """Bytes that it could give up now, and stay."""
        if self.stage is not Stage.HERE or self.wanted_bytes != self.num_bytes:
            return 0
        return max(0, self.num_bytes - max(self.demand.least, self.floor))

    @property
    def expires(self) -> float:
        """When it goes if nobody uses it."""
        return math.inf if self.keep < 0 else self.used_at + self.keep

    @property
    def since(self) -> float:
        """How long it has been waited for."""
        return next(iter(self.waiting.values()), math.inf)

    def leave(self) -> None:
        """It is not in memory, and what it was told there does not count for the next time."""
        self.stage, self.num_bytes, self.wanted_bytes, self.floor = Stage.AWAY, 0, 0, 0
        self.keep = self.usual_keep


class Residency:
    """Owns the decision, not the engines."""

    def __init__(self, budget: int, turn: float = 5.0) -> None:
        self.budget = budget
        self._turn = turn
        self._residents: dict[str, Resident] = {}
        self._owners: dict[int, Resident] = {}  # of tickets
        self._pressed: Collection[str] = ()

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._residents.values())

    def __getitem__(self, name: str) -> Resident:
        return self._residents[name]

    def get(self, name: str) -> Resident | None:
        """One of the models, if there is such a one."""
        return self._residents.get(name)

    @property
    def free(self) -> int:
        """Bytes that are promised to nobody."""
        return self.budget - sum(each.taken for each in self)

    @property
    def room(self) -> int:
        """Bytes that could be had without anyone having to go."""
        return self.free + sum(each.spare for each in self)

    @property
    def _coming(self) -> int:
        """Bytes that will be free without anything more being done."""
        return sum(each.taken if each.stage is Stage.LEAVING else each.taken - each.wanted_bytes for each in self)

    # ── what happens ──

    def add(self, name: str, demand: Demand, keep: float) -> None:
        """There is such a model. It must fit alone."""
        assert demand.least <= min(demand.most, self.budget)
        self._residents.setdefault(name, Resident(name, demand, keep, keep))

    def stay(self, name: str) -> None:
        """This model is to stay for ever, unless a request wants otherwise."""
        self[name].usual_keep = self[name].keep = -1.0

    def ask(self, ticket: int, name: str, now: float) -> None:
        """A request wants to run."""
        self._owners[ticket] = self[name]
        self[name].waiting[ticket] = now

    def end(self, ticket: int, now: float, keep: float | None = None) -> None:
        """A request has ended, or waits no longer. Of one that ran, `keep` says how long its model stays now."""
        model = self._owners.pop(ticket, None)
        if model is None:
            return  # it was void
        model.waiting.pop(ticket, None)
        if ticket in model.running:
            model.running.remove(ticket)
            model.used_at, model.floor = now, 0
            model.keep = model.keep if keep is None else keep

    def release(self, name: str, now: float) -> None:
        """A model is to go as soon as nobody uses it."""
        self[name].keep, self[name].used_at = 0.0, now

    def loaded(self, name: str, now: float) -> None:
        """Its engine takes requests."""
        model = self[name]
        model.stage, model.loaded_at, model.used_at = Stage.HERE, now, now

    def failed(self, name: str) -> list[int]:
        """It could not be loaded. The tickets that waited for it are void."""
        tickets = list(self[name].waiting)
        for ticket in tickets:
            del self._owners[ticket]
        self[name].waiting.clear()
        self[name].leave()
        return tickets

    def gone(self, name: str) -> None:
        """Its engine has ended. Whoever came meanwhile still waits."""
        self[name].leave()

    def resized(self, name: str, num_bytes: int) -> None:
        """So many bytes it has now: it cannot give up what its requests hold."""
        model = self[name]
        if model.stage is Stage.HERE:
            model.floor = num_bytes if num_bytes > model.wanted_bytes else 0
            model.num_bytes = model.wanted_bytes = num_bytes

    def press(self, names: Collection[str]) -> None:
        """These models' requests wait for memory, as far as their engines have told."""
        self._pressed = names

    # ── what follows ──

    def plan(self, now: float) -> list[Action]:
        """All that is to be done now; it counts as begun."""
        actions: list[Action] = []
        for model in self:
            if model.is_idle and model.expires <= now:
                _unload(model, actions)
        queue = sorted((each for each in self if each.stage is Stage.AWAY and each.waiting), key=_arrival)
        drained: set[str] = set()
        for model in queue:
            if self.free < model.demand.least:
                drained = self._make_room(model, now, actions)
                break
            _resize(model, min(model.demand.most, self.free))
            model.stage, model.num_bytes = Stage.LOADING, model.wanted_bytes
            actions.append(Load(model.name, model.num_bytes))
        else:
            self._spread(actions)
        for model in self:
            if model.stage is Stage.HERE and model.name not in drained:
                actions += [Admit(ticket) for ticket in model.waiting]
                model.running |= model.waiting.keys()
                model.waiting.clear()
        return actions

    def wakes(self, now: float) -> float:
        """When to plan again though nothing has happened."""
        times = [each.expires for each in self if each.is_idle]
        since = min((each.since for each in self if each.stage is Stage.AWAY), default=math.inf)
        if since < math.inf:
            turns = [max(each.loaded_at, since) + self._turn for each in self if each.stage is Stage.HERE]
            times += [each for each in turns if each > now]
        return min(times, default=math.inf)

    def check(self) -> None:
        """The laws."""
        assert self.free >= 0, "more is promised than there is"
        for each in self:
            assert not each.running or each.stage is Stage.HERE, f"{each.name} went under a running request"
            assert (each.taken == 0) == (each.stage is Stage.AWAY)
            assert each.stage is not Stage.HERE or each.num_bytes >= each.demand.least

    def _make_room(self, model: Resident, now: float, actions: list[Action]) -> set[str]:
        """Begin what makes room for a model. The names of those that are drained for it."""
        short = model.demand.least - self.free - self._coming
        idle = sorted((each for each in self if each.is_idle), key=lambda each: (each.keep < 0, each.used_at))
        while idle and short > sum(each.spare for each in idle):
            short -= idle[0].taken
            _unload(idle.pop(0), actions)
        busy = sorted((each for each in self if each.stage is Stage.HERE and not each.is_idle), key=_loaded_at)
        for each in (*idle, *busy):
            if short > 0 and each.spare:
                given = min(each.spare, short)
                short -= given
                actions.append(_resize(each, each.num_bytes - given))
        drained: set[str] = set()
        for each in busy:
            if short > 0 and now >= max(each.loaded_at, model.since) + self._turn:
                short -= each.wanted_bytes
                drained.add(each.name)
                if not each.running:  # its tickets wait already
                    _unload(each, actions)
        return drained

    def _spread(self, actions: list[Action]) -> None:
        """Give models that need more KV memory what is free, and have idle ones give up what they can spare."""
        pressed = [each for each in self if each.name in self._pressed and each.stage is Stage.HERE]
        for model in pressed:
            more = model.demand.most - model.num_bytes
            if more <= 0 or model.num_bytes != model.wanted_bytes:
                continue
            if self.free > 0:
                actions.append(_resize(model, model.num_bytes + min(more, self.free)))
                continue
            idle = [each for each in self if each.is_idle and each.spare]
            if idle and not self._coming:
                oldest = min(idle, key=lambda each: each.used_at)
                actions.append(_resize(oldest, oldest.num_bytes - min(oldest.spare, more)))


def _unload(model: Resident, actions: list[Action]) -> None:
    model.stage = Stage.LEAVING
    actions.append(Unload(model.name))


def _resize(model: Resident, num_bytes: int) -> Resize:
    model.wanted_bytes = num_bytes
    return Resize(model.name, num_bytes)


def _arrival(model: Resident) -> tuple[float, int]:
    """Who came first; of those who came together, by their tickets."""
    return model.since, next(iter(model.waiting))


def _loaded_at(model: Resident) -> float:
    return model.loaded_at
