"""What handlers ask of residency. `LocalResidency` (local.py) answers in the process that owns the engines;
`RemoteResidency` (serve/processes/remote.py) passes the questions of a front on to the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from quire.engine.client import Client
from quire.engine.messages import Counters, Ready
from quire.serve.residency.shelf import StoreFacts
from quire.types.errors import QuireError

RETRY_SECONDS = 2.0  # for Retry-After while a model is loading

Gone = asyncio.Future[None]  # done when the client has disconnected


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """Whether a model can answer now."""

    name: str
    is_named: bool  # on the command line
    is_loaded: bool = False
    trouble: str | None = None  # of its engine, as the end of a sentence

    @property
    def is_ready(self) -> bool:
        """Is it loaded, with an engine that responds?"""
        return self.is_loaded and self.trouble is None


@dataclass(frozen=True, slots=True)
class ResidencyStatus:
    """The state of a server's models."""

    models: tuple[ModelStatus, ...] = ()  # those on the command line, and those requested since
    is_started: bool = False  # the models on the command line have been loaded once
    error: QuireError | None = None  # why one of them could not be


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """The engine of a loaded model."""

    ready: Ready
    shared_with: str  # the first model that it serves, if that is another one
    allowed_bytes: int
    fixed_bytes: int  # without KV blocks and states
    expires: float | None  # seconds since 1970; None: never

    def used_bytes(self, counters: Counters) -> int:
        """Bytes in use: weights, buffers, and the KV blocks and states that hold something."""
        ready = self.ready
        used = self.fixed_bytes + (counters.num_blocks - counters.num_free_blocks) * ready.block_bytes
        if counters.num_window_blocks:
            share = (counters.num_held_window_blocks + counters.num_cached_window_blocks) / counters.num_window_blocks
            used += int(share * sum(each.num_blocks * each.block_bytes for each in ready.windows))
        num_states = min(counters.num_states, counters.num_held_states + counters.num_checkpoints)
        return used + num_states * ready.state_bytes


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """Everything that residency knows about one model."""

    name: str
    identity: str
    is_named: bool = False  # on the command line
    is_in_store: bool = False
    was_requested: bool = False  # or is named
    facts: StoreFacts | None = None
    path: str = ""  # once it was measured
    context: int = 0  # the same
    engine: EngineRecord | None = None  # while it is loaded


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory budget and its use by each engine."""

    unit: str
    budget: int
    reserved: Mapping[str, int] = field(default_factory=dict)  # by the names that an engine serves
    num_loads: int = 0
    num_unloads: int = 0


@dataclass(frozen=True, slots=True)
class ModelLease:
    """The right to use a loaded model: its engine stays until the lease is released."""

    ticket: int
    name: str
    identity: str
    facts: StoreFacts | None
    path: Path
    client: Client


class Residency(Protocol):
    """The models of a server. Used in the event loop's thread."""

    @property
    def status(self) -> ResidencyStatus:
        """The state of all models. A front's copy is at most a moment old."""

    def knows(self, name: str) -> bool | None:
        """May a request use this name? None: only the hub can tell."""

    async def acquire(self, name: str, gone: Gone | None = None) -> ModelLease:
        """Wait until the model is loaded. Raises if that takes longer than `load_patience`, or it cannot be loaded."""

    def release(self, lease: ModelLease, keep_alive: float | None = None) -> None:
        """The request has ended. `keep_alive`: seconds that the model stays loaded from now on."""

    async def records(self) -> list[ModelRecord]:
        """All models: those on the command line, then the store's, then others that were requested."""

    async def record(self, name: str) -> ModelRecord:
        """The model with this name, measured. Raises if it is not here, or does not fit into the memory."""

    async def unload(self, name: str) -> ModelRecord:
        """Unload a model: now if it is idle, otherwise when its last request has ended."""

    async def forget(self, name: str) -> None:
        """Stop serving a model that is about to be deleted, unless it is on the command line."""

    async def memory(self) -> MemoryReport:
        """The memory budget and its use by each engine."""

    async def counters(self) -> dict[str, Counters]:
        """The counters of every engine that answers, by the first model that it serves."""

    async def load(self) -> None:
        """Load the models of the command line that fit. Raises if one cannot be loaded."""

    async def watch(self) -> None:
        """Move memory to the engines that need it, until cancelled."""

    async def close(self) -> None:
        """End all engines."""
