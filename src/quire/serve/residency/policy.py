"""Which engines are in memory: which to load, which to unload, and which requests wait. One memory budget covers all.

    UNLOADED ── LoadEngine ──> LOADING ── on_loaded ──> LOADED ── UnloadEngine ──> UNLOADING ── on_unloaded ──> UNLOADED

Every request holds a ticket. A ticket for a loaded engine is admitted at once. The others wait, and memory is freed
for the engine whose oldest ticket has waited longest. No other engine is loaded before it, so small models cannot
starve a large one:

 1. Idle engines give up spare KV memory. If all of that is not enough, idle engines are unloaded, least recently used
    first and those kept forever last.
 2. Then busy engines give up spare KV memory.
 3. Then the engines loaded longest are drained: running requests finish, new ones wait, until the engine is idle. An
    engine is drained only after `turn` seconds in memory, and only for a request that has waited that long.

When no ticket waits for memory, engines that are short of KV memory get what is free, then what idle ones can spare.

So every ticket is admitted eventually if every request ends. Each `plan` is computed from the current state alone: if
a waiting request gives up, there is nothing to undo.

Pure: the clock is an argument, and `plan` returns what to do. The caller does it and reports with `on_loaded`,
`on_load_failed`, `on_unloaded` and `on_resized`. Bytes count from the decision to load until the engine has ended, and
while an engine is resized the larger of its two sizes counts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Demand(NamedTuple):
    """Bytes that an engine takes: with KV memory for one full context, and with as much as it could use."""

    least: int
    most: int


class LoadEngine(NamedTuple):
    """Start an engine within this many bytes."""

    key: str
    num_bytes: int


class UnloadEngine(NamedTuple):
    """End an idle engine."""

    key: str


class ResizeEngine(NamedTuple):
    """Change the bytes that an engine may use."""

    key: str
    num_bytes: int


class AdmitRequest(NamedTuple):
    """Let the request with this ticket run."""

    ticket: int


Action = LoadEngine | UnloadEngine | ResizeEngine | AdmitRequest


class EngineStage(Enum):
    """Where an engine is in its life."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(slots=True, eq=False)
class Resident:
    """The policy's state of one engine."""

    key: str
    demand: Demand
    default_keep: float  # seconds in memory after the last request; negative: forever
    keep: float  # the same, as the last request set it
    stage: EngineStage = EngineStage.UNLOADED
    num_bytes: int = 0  # that it may use
    target_bytes: int = 0  # requested size; memory that it gives up is free only after its report
    floor_bytes: int = 0  # it could not shrink below this when it was last resized
    loaded_at: float = 0.0
    used_at: float = 0.0
    running: set[int] = field(default_factory=set)  # tickets
    waiting: dict[int, float] = field(default_factory=dict)  # ticket -> arrival, in order of arrival

    @property
    def is_idle(self) -> bool:
        """Is it loaded, with no request running or waiting?"""
        return self.stage is EngineStage.LOADED and not self.running and not self.waiting

    @property
    def reserved_bytes(self) -> int:
        """Bytes that no other engine can have."""
        return max(self.num_bytes, self.target_bytes)

    @property
    def spare_bytes(self) -> int:
        """Bytes that it could give up now and stay loaded."""
        if self.stage is not EngineStage.LOADED or self.target_bytes != self.num_bytes:
            return 0
        return max(0, self.num_bytes - max(self.demand.least, self.floor_bytes))

    @property
    def expires(self) -> float:
        """When it is unloaded if no request uses it."""
        return math.inf if self.keep < 0 else self.used_at + self.keep

    @property
    def waiting_since(self) -> float:
        """Arrival of its oldest waiting ticket."""
        return next(iter(self.waiting.values()), math.inf)

    def reset(self) -> None:
        """Mark it unloaded. Memory and keep-alive start from their defaults at the next load."""
        self.stage, self.num_bytes, self.target_bytes, self.floor_bytes = EngineStage.UNLOADED, 0, 0, 0
        self.keep = self.default_keep


class ResidencyPolicy:
    """Decides; it starts and ends no engine itself."""

    def __init__(self, budget: int, turn: float = 5.0) -> None:
        self.budget = budget
        self._turn = turn
        self._residents: dict[str, Resident] = {}
        self._owners: dict[int, Resident] = {}  # by ticket
        self._pressed: Collection[str] = ()

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._residents.values())

    def __getitem__(self, key: str) -> Resident:
        return self._residents[key]

    def get(self, key: str) -> Resident | None:
        """The engine's state, or None if it was never added."""
        return self._residents.get(key)

    @property
    def free_bytes(self) -> int:
        """Bytes reserved by no engine."""
        return self.budget - sum(each.reserved_bytes for each in self)

    @property
    def available_bytes(self) -> int:
        """Bytes to be had without unloading an engine."""
        return self.free_bytes + sum(each.spare_bytes for each in self)

    @property
    def _pending_bytes(self) -> int:
        """Bytes that become free by actions already under way."""
        return sum(
            each.reserved_bytes if each.stage is EngineStage.UNLOADING else each.reserved_bytes - each.target_bytes
            for each in self
        )

    # ── events ──

    def add(self, key: str, demand: Demand, keep: float) -> None:
        """Register an engine. It must fit into the budget alone."""
        assert demand.least <= min(demand.most, self.budget)
        self._residents.setdefault(key, Resident(key, demand, keep, keep))

    def keep_forever(self, key: str) -> None:
        """Never unload this engine for being idle, unless a request says otherwise."""
        self[key].default_keep = self[key].keep = -1.0

    def enter(self, ticket: int, key: str, now: float) -> None:
        """A request needs this engine."""
        self._owners[ticket] = self[key]
        self[key].waiting[ticket] = now

    def finish(self, ticket: int, now: float, keep: float | None = None) -> None:
        """A request has ended, or has stopped waiting. If it ran, `keep` is the engine's new keep-alive."""
        resident = self._owners.pop(ticket, None)
        if resident is None:
            return  # void: its engine could not be loaded
        resident.waiting.pop(ticket, None)
        if ticket in resident.running:
            resident.running.remove(ticket)
            resident.used_at, resident.floor_bytes = now, 0
            resident.keep = resident.keep if keep is None else keep

    def unload_when_idle(self, key: str, now: float) -> None:
        """Unload the engine as soon as no request uses it."""
        self[key].keep, self[key].used_at = 0.0, now

    def on_loaded(self, key: str, now: float) -> None:
        """The engine accepts requests."""
        resident = self[key]
        resident.stage, resident.loaded_at, resident.used_at = EngineStage.LOADED, now, now

    def on_load_failed(self, key: str) -> list[int]:
        """The engine could not be loaded. Returns the tickets that waited for it, which are now void."""
        tickets = list(self[key].waiting)
        for ticket in tickets:
            del self._owners[ticket]
        self[key].waiting.clear()
        self[key].reset()
        return tickets

    def on_unloaded(self, key: str) -> None:
        """The engine has ended. Tickets that arrived meanwhile still wait."""
        self[key].reset()

    def on_resized(self, key: str, num_bytes: int) -> None:
        """The engine now uses this many bytes: it cannot give up what its requests hold."""
        resident = self[key]
        if resident.stage is EngineStage.LOADED:
            resident.floor_bytes = num_bytes if num_bytes > resident.target_bytes else 0
            resident.num_bytes = resident.target_bytes = num_bytes

    def set_pressed(self, keys: Collection[str]) -> None:
        """These engines are short of KV memory."""
        self._pressed = keys

    # ── decisions ──

    def plan(self, now: float) -> list[Action]:
        """Everything to do now. The state counts it as begun."""
        actions: list[Action] = []
        for resident in self:
            if resident.is_idle and resident.expires <= now:
                _unload(resident, actions)
        queue = sorted((each for each in self if each.stage is EngineStage.UNLOADED and each.waiting), key=_arrival)
        drained: set[str] = set()
        for resident in queue:
            if self.free_bytes < resident.demand.least:
                drained = self._make_room(resident, now, actions)
                break
            _resize(resident, min(resident.demand.most, self.free_bytes))
            resident.stage, resident.num_bytes = EngineStage.LOADING, resident.target_bytes
            actions.append(LoadEngine(resident.key, resident.num_bytes))
        else:
            self._grow_pressed(actions)
        for resident in self:
            if resident.stage is EngineStage.LOADED and resident.key not in drained:
                actions += [AdmitRequest(ticket) for ticket in resident.waiting]
                resident.running |= resident.waiting.keys()
                resident.waiting.clear()
        return actions

    def next_wakeup(self, now: float) -> float:
        """When to plan again even if nothing happens."""
        times = [each.expires for each in self if each.is_idle]
        since = min((each.waiting_since for each in self if each.stage is EngineStage.UNLOADED), default=math.inf)
        if since < math.inf:
            turns = [max(each.loaded_at, since) + self._turn for each in self if each.stage is EngineStage.LOADED]
            times += [each for each in turns if each > now]
        return min(times, default=math.inf)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.free_bytes >= 0, "more bytes are reserved than the budget has"
        for each in self:
            assert not each.running or each.stage is EngineStage.LOADED, f"{each.key} was unloaded under a request"
            assert (each.reserved_bytes == 0) == (each.stage is EngineStage.UNLOADED)
            assert each.stage is not EngineStage.LOADED or each.num_bytes >= each.demand.least

    def _make_room(self, resident: Resident, now: float, actions: list[Action]) -> set[str]:
        """Begin to free memory for an engine. Returns the keys of those that are drained for it."""
        short = resident.demand.least - self.free_bytes - self._pending_bytes
        idle = sorted((each for each in self if each.is_idle), key=lambda each: (each.keep < 0, each.used_at))
        while idle and short > sum(each.spare_bytes for each in idle):
            short -= idle[0].target_bytes  # the rest is pending already
            _unload(idle.pop(0), actions)
        busy = sorted((each for each in self if each.stage is EngineStage.LOADED and not each.is_idle), key=_loaded_at)
        for each in (*idle, *busy):
            if short > 0 and each.spare_bytes:
                num_bytes = min(each.spare_bytes, short)
                short -= num_bytes
                actions.append(_resize(each, each.num_bytes - num_bytes))
        drained: set[str] = set()
        for each in busy:
            if short > 0 and now >= max(each.loaded_at, resident.waiting_since) + self._turn:
                short -= each.target_bytes
                drained.add(each.key)
                if not each.running:  # it has only waiting tickets
                    _unload(each, actions)
        return drained

    def _grow_pressed(self, actions: list[Action]) -> None:
        """Give engines that are short of KV memory what is free; otherwise shrink an idle engine for them."""
        pressed = [each for each in self if each.key in self._pressed and each.stage is EngineStage.LOADED]
        for resident in pressed:
            more = resident.demand.most - resident.num_bytes
            if more <= 0 or resident.num_bytes != resident.target_bytes:
                continue
            if self.free_bytes > 0:
                actions.append(_resize(resident, resident.num_bytes + min(more, self.free_bytes)))
                continue
            idle = [each for each in self if each.is_idle and each.spare_bytes]
            if idle and not self._pending_bytes:
                oldest = min(idle, key=lambda each: each.used_at)
                actions.append(_resize(oldest, oldest.num_bytes - min(oldest.spare_bytes, more)))


def _unload(resident: Resident, actions: list[Action]) -> None:
    resident.stage = EngineStage.UNLOADING
    actions.append(UnloadEngine(resident.key))


def _resize(resident: Resident, num_bytes: int) -> ResizeEngine:
    resident.target_bytes = num_bytes
    return ResizeEngine(resident.key, num_bytes)


def _arrival(resident: Resident) -> tuple[float, int]:
    """Oldest ticket first; of those that arrived together, the lowest number."""
    return resident.waiting_since, next(iter(resident.waiting))


def _loaded_at(resident: Resident) -> float:
    return resident.loaded_at
