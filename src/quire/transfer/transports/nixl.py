"""Bytes over NIXL: between hosts with RDMA, without the copies of a socket. It needs the package `nixl`.

    receiver's offer    [version of NIXL, backend]
    sender's offer      [name of its agent, metadata in base64, address, bytes of a slot, slots]

The sender copies a block into a slot of its registered host memory, and the ticket names the slot; the receiver reads
it into its own registered memory. So a sender never writes into a receiver's memory, and an abandoned block cannot
arrive later. The bytes are read into host memory, also between GPUs, because the receiver computes their tag. NIXL's
connections do not check the secret; the metadata that a read needs is sent in an authenticated frame.

A process has one agent. Its registered memory is reused and never deregistered, so metadata that other processes hold
stays valid; its size is that of the most transfers that were open at once. A read that exceeds its time limit keeps its
memory until NIXL reports its end.
"""

from __future__ import annotations

import ctypes
import json
import logging
import mmap
import re
import secrets
import threading
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quire.transfer.slots import MAX_SLOTS, FreeSlots, num_slots_of, slot_of, ticket_of
from quire.transfer.transports.contract import Parcel

RANK = 2
PACKAGE, BACKEND, MEMORY = "nixl", "UCX", "DRAM"
DISTRIBUTIONS = ("nixl", "nixl-cu13", "nixl-cu12")
RDMA_DEVICES = Path("/sys/class/infiniband")
NAME = re.compile(r"quire-[0-9a-f]{32}")
MAX_METADATA = 64 << 10  # bytes
MAX_REMOTES = 64  # agents that stay connected
MAX_LATE = 8  # unfinished reads past their time limit; with more, NIXL is not used
POLL_SECONDS = 0.0002  # between two polls of a read
RUNNING, DONE = "PROC", "DONE"  # NIXL's names for the states of a read


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredMemory:
    """Memory of this host that NIXL has registered."""

    memory: mmap.mmap
    address: int
    metadata: bytes  # what another agent needs to read it


@dataclass(slots=True, eq=False)
class RemoteAgent:
    """The agent of another process."""

    name: str
    num_users: int = 0
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class RemoteSlots:
    """Slots of a sender."""

    agent: RemoteAgent
    address: int
    slot_bytes: int
    num_slots: int


class NixlAgent:
    """The agent of this process. Used by the threads of all transfers; a lock lets one thread at a time call NIXL."""

    def __init__(self) -> None:
        api = import_module(f"{PACKAGE}._api")
        logging.getLogger(PACKAGE).setLevel(logging.WARNING)  # it writes to stdout
        self.name = f"quire-{secrets.token_hex(16)}"
        self._api: Any = api.nixl_agent(self.name, api.nixl_agent_config(backends=[BACKEND]))
        if BACKEND not in self._api.backends:
            raise OSError(f"NIXL has no backend {BACKEND}")
        self._lock = threading.Lock()
        self._free: list[RegisteredMemory] = []
        self._late: list[tuple[Any, RegisteredMemory]] = []  # unfinished reads past their limit, and their targets
        self._remotes: dict[str, RemoteAgent] = {}  # least recently used first

    def take_memory(self, num_bytes: int) -> RegisteredMemory:
        """Return registered memory of at least `num_bytes`. Raises OSError if NIXL cannot register it."""
        with self._lock:
            self._end_late()
            if len(self._late) > MAX_LATE:
                raise OSError(f"{len(self._late)} reads by NIXL have not ended")
            fitting = [each for each in self._free if len(each.memory) >= num_bytes]
            if fitting:
                found = min(fitting, key=lambda each: len(each.memory))
                self._free.remove(found)
                return found
            memory = mmap.mmap(-1, num_bytes)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            try:
                regions = self._api.register_memory([(address, num_bytes, 0, "")], MEMORY, [BACKEND])
                known = self._api.get_partial_agent_metadata(regions, True, [BACKEND])
            except Exception as error:
                raise OSError(f"NIXL cannot register {num_bytes} bytes: {_described(error)}") from None
            return RegisteredMemory(memory, address, known)

    def give_back(self, memory: RegisteredMemory) -> None:
        """Keep memory for another transfer."""
        with self._lock:
            self._free.append(memory)

    def connect(self, name: str, known: bytes) -> RemoteAgent:
        """Connect to the agent of this metadata and return it. Raises OSError if NIXL cannot use it."""
        with self._lock:
            remote = self._remotes.pop(name, None) or RemoteAgent(name)
            if remote.is_broken:
                self._remotes[name] = remote
                raise OSError("NIXL's connection to this engine has failed, and other transfers still use it")
            try:
                if name != self.name:  # reading from itself needs no connection
                    added = self._api.add_remote_agent(known)
                    if (added.decode() if isinstance(added, bytes) else added) != name:
                        self._api.remove_remote_agent(added)
                        raise OSError("the metadata belongs to another agent")
            except OSError:
                raise
            except Exception as error:
                raise OSError(f"NIXL cannot connect: {_described(error)}") from None
            self._remotes[name] = remote
            remote.num_users += 1
            unused = [each for each in self._remotes.values() if not each.num_users]
            for each in unused[: max(0, len(self._remotes) - MAX_REMOTES)]:
                self._forget(each)
            return remote

    def disconnect(self, remote: RemoteAgent) -> None:
        """End one use of a connection. A working connection is kept for the next transfer."""
        with self._lock:
            remote.num_users -= 1
            if remote.is_broken and not remote.num_users:
                self._forget(remote)

    def read(self, remote: RemoteAgent, address: int, to: RegisteredMemory, num_bytes: int, seconds: float) -> bool:
        """Read bytes of another agent's memory. False: it exceeded its time limit, and `to` must not be used again.

        Raises OSError if the read fails.
        """
        deadline, handle = time.monotonic() + seconds, None
        try:
            with self._lock:
                sides = [self._api.get_xfer_descs([(at, num_bytes, 0)], MEMORY) for at in (to.address, address)]
                handle = self._api.initialize_xfer("READ", *sides, remote.name, b"", [BACKEND])
                state = self._api.transfer(handle)
            while state == RUNNING:
                if time.monotonic() >= deadline:
                    with self._lock:
                        self._late.append((handle, to))
                    remote.is_broken = True
                    return False
                time.sleep(POLL_SECONDS)
                with self._lock:
                    state = self._api.check_xfer_state(handle)
        except Exception as error:
            state = _described(error)
        with self._lock, suppress(Exception):
            if handle is not None:
                self._api.release_xfer_handle(handle)
        if state != DONE:
            remote.is_broken = True
            raise OSError(f"a NIXL read failed: {state}")
        return True

    def _end_late(self) -> None:
        """Reclaim the memory of late reads that have ended."""
        running = []
        for handle, memory in self._late:
            try:
                is_over = self._api.check_xfer_state(handle) != RUNNING
            except Exception:
                is_over = True  # NIXL has abandoned it
            if not is_over:
                running.append((handle, memory))
                continue
            with suppress(Exception):
                self._api.release_xfer_handle(handle)
            self._free.append(memory)
        self._late = running

    def _forget(self, remote: RemoteAgent) -> None:
        if self._remotes.get(remote.name) is remote:
            del self._remotes[remote.name]
        with suppress(Exception):
            if remote.name != self.name:
                self._api.remove_remote_agent(remote.name)


class NixlReceiving:
    """Reads slots of the sender."""

    def __init__(self, agent: NixlAgent, max_bytes: int) -> None:
        self.offer = json.dumps([version(), BACKEND])
        self._agent = agent
        self._slot_bytes = max_bytes
        self._memory: RegisteredMemory | None = agent.take_memory(max_bytes)
        self._slots: RemoteSlots | None = None

    def accept(self, offer: str) -> None:
        """Connect to the sender."""
        name, known, address, slot_bytes, num_slots = _sender_offer(offer)
        if slot_bytes != self._slot_bytes:
            raise ValueError(f"the sender's slots have {slot_bytes} bytes, blocks here have {self._slot_bytes}")
        self._slots = RemoteSlots(self._agent.connect(name, known), address, slot_bytes, num_slots)

    def take(self, parcel: Parcel, num_bytes: int, seconds: float) -> bytes:
        """Read a slot."""
        slots, memory = self._slots, self._memory
        if slots is None or memory is None:
            raise ValueError("there are no slots to read")
        slot = slot_of(parcel.ticket, slots.num_slots)
        if parcel.inline or not 0 <= num_bytes <= slots.slot_bytes:
            raise ValueError(f"a block of {num_bytes} bytes does not fit a slot of {slots.slot_bytes}")
        if not num_bytes:
            return b""
        if not self._agent.read(slots.agent, slots.address + slot * slots.slot_bytes, memory, num_bytes, seconds):
            self._memory = None  # the read may still write to it
            raise OSError(f"a NIXL read did not end within {seconds:g} s")
        return memory.memory[:num_bytes]

    def close(self) -> None:
        """Keep the memory and the connection for another transfer."""
        if self._memory is not None:
            self._agent.give_back(self._memory)
        if self._slots is not None:
            self._agent.disconnect(self._slots.agent)
        self._memory = self._slots = None


class NixlSending:
    """Fills its own slots, which the receiver reads."""

    def __init__(self, agent: NixlAgent, slot_bytes: int) -> None:
        num_slots = num_slots_of(slot_bytes)
        self._agent = agent
        self._slot_bytes = slot_bytes
        self._slots = FreeSlots(num_slots, slot_bytes)
        self._memory = memory = agent.take_memory(slot_bytes * num_slots)
        known = b64encode(memory.metadata).decode()
        self.offer = json.dumps([agent.name, known, memory.address, slot_bytes, num_slots])

    def put(self, data: bytes) -> Parcel | None:
        """Fill a free slot."""
        slot = self._slots.take(len(data))
        if slot is None:
            return None
        start = slot * self._slot_bytes
        self._memory.memory[start : start + len(data)] = data
        return Parcel(ticket=ticket_of(slot))

    def freed(self, ticket: bytes) -> None:
        """Free a slot."""
        self._slots.free(ticket)

    def close(self) -> None:
        """Keep the memory for another transfer. A receiver that still reads it gets bytes with a wrong tag."""
        self._agent.give_back(self._memory)


_opening = threading.Lock()


def unavailable() -> str:
    """Return why NIXL cannot be used here. The first call starts the agent of this process, which takes 0.5 s."""
    with _opening:
        return _agent_or_reason()[1]


@cache
def _agent_or_reason() -> tuple[NixlAgent | None, str]:
    if find_spec(PACKAGE) is None:
        return None, f"the package {PACKAGE} is not installed: install it with `pip install {PACKAGE}`"
    try:
        return NixlAgent(), ""
    except Exception as error:
        return None, f"the package {PACKAGE} cannot be used here: {_described(error)}"


def suits(has_own_memory: bool) -> bool:
    """Only between GPUs on hosts with RDMA: elsewhere NIXL would use sockets or shared memory like the others."""
    return has_own_memory and find_spec(PACKAGE) is not None and has_rdma()


@cache
def has_rdma() -> bool:
    """Return whether this host has an RDMA device."""
    return RDMA_DEVICES.is_dir() and any(RDMA_DEVICES.iterdir())


@cache
def version() -> str:
    """Return the installed version: agents of different versions cannot read each other's metadata."""
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def receiving(max_bytes: int) -> NixlReceiving:
    """Open the receiving end. Raises OSError where NIXL cannot be used."""
    return NixlReceiving(_agent(), max_bytes)


def sending(offer: str, max_bytes: int) -> NixlSending | None:
    """Open the sending end. None: the receiver has another version, or NIXL cannot be used here."""
    try:
        return NixlSending(_agent(), max_bytes) if json.loads(offer) == [version(), BACKEND] else None
    except (OSError, ValueError):
        return None


def _agent() -> NixlAgent:
    if why := unavailable():
        raise OSError(why)
    agent = _agent_or_reason()[0]
    assert agent is not None
    return agent


def _sender_offer(offer: str) -> tuple[str, bytes, int, int, int]:
    """Return the agent's name, its metadata, the address of the slots, their bytes and their number."""
    try:
        name, encoded, *numbers = json.loads(offer)
        known = b64decode(encoded, validate=True)
        address, slot_bytes, num_slots = numbers
    except (ValueError, TypeError):
        raise ValueError("the sender's offer cannot be decoded") from None
    is_named = isinstance(name, str) and NAME.fullmatch(name) is not None
    are_whole = all(type(each) is int for each in numbers)
    if not is_named or not are_whole or not 0 < len(known) <= MAX_METADATA:
        raise ValueError("the sender's offer has invalid fields")
    if not 1 <= num_slots <= MAX_SLOTS or not 0 < address < address + num_slots * slot_bytes < 1 << 64:
        raise ValueError("the sender's slots are outside its memory")
    return name, known, address, slot_bytes, num_slots


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
