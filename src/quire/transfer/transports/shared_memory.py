"""Bytes in a file of /dev/shm that the receiver creates: between two engines of one user on one host.

    offer    [name, nonce, bytes of a slot, slots]
    file     32 bytes of nonce, then the slots

The sender compares the nonce in the file with that of the offer, so a file of the same name on another host is not
used. The file is removed when the receiver closes; a sender that dies leaves nothing behind.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from quire.transfer.slots import MAX_SLOTS, FreeSlots, num_slots_of, slot_of, ticket_of
from quire.transfer.transports.contract import Parcel

RANK = 3
FOLDER = Path("/dev/shm")
NAME = re.compile(r"quire-[0-9a-f]{32}")
NONCE_BYTES = 32


class SharedReceiving:
    """Creates and owns the file."""

    def __init__(self, max_bytes: int) -> None:
        self._slot_bytes, self._num_slots = max_bytes, num_slots_of(max_bytes)
        nonce, name = secrets.token_bytes(NONCE_BYTES), f"quire-{secrets.token_hex(16)}"
        self._path = FOLDER / name
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            size = NONCE_BYTES + self._slot_bytes * self._num_slots
            os.posix_fallocate(descriptor, 0, size)  # a full /dev/shm is an error here instead of SIGBUS later
            self._memory = mmap.mmap(descriptor, size)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._memory[:NONCE_BYTES] = nonce
        self.offer = json.dumps([name, nonce.hex(), self._slot_bytes, self._num_slots])

    def accept(self, offer: str) -> None:
        """Do nothing: the sender uses the receiver's file."""

    def take(self, parcel: Parcel, num_bytes: int, seconds: float) -> bytes:
        """Return a copy of a slot. The sender wrote it before it sent the ticket."""
        slot = slot_of(parcel.ticket, self._num_slots)
        if parcel.inline or not 0 <= num_bytes <= self._slot_bytes:
            raise ValueError(f"a block of {num_bytes} bytes does not fit a slot of {self._slot_bytes}")
        start = NONCE_BYTES + slot * self._slot_bytes
        return self._memory[start : start + num_bytes]

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._path.unlink()
        self._memory.close()


class SharedSending:
    """Writes blocks into free slots."""

    offer = ""

    def __init__(self, memory: mmap.mmap, slot_bytes: int, num_slots: int) -> None:
        self._memory = memory
        self._slot_bytes = slot_bytes
        self._slots = FreeSlots(num_slots, slot_bytes)

    def put(self, data: bytes) -> Parcel | None:
        """Write a block into a free slot."""
        slot = self._slots.take(len(data))
        if slot is None:
            return None
        start = NONCE_BYTES + slot * self._slot_bytes
        self._memory[start : start + len(data)] = data
        return Parcel(ticket=ticket_of(slot))

    def freed(self, ticket: bytes) -> None:
        """Free a slot."""
        self._slots.free(ticket)

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()


def unavailable() -> str:
    """Return why it cannot be used here."""
    return "" if FOLDER.is_dir() else f"this system has no {FOLDER}"


def suits(has_own_memory: bool) -> bool:
    """Always: on one host nothing is faster, for blocks in host or device memory."""
    return True


def receiving(max_bytes: int) -> SharedReceiving:
    """Create the file. Raises OSError where /dev/shm is missing or full."""
    return SharedReceiving(max_bytes)


def sending(offer: str, max_bytes: int) -> SharedSending | None:
    """Open the receiver's file. None: it is on another host, belongs to another user, or has another layout."""
    try:
        name, nonce, slot_bytes, num_slots = json.loads(offer)
        if not NAME.fullmatch(name) or slot_bytes != max_bytes or not 2 <= num_slots <= MAX_SLOTS:
            return None
        descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW)
    except (OSError, ValueError, TypeError):
        return None
    try:
        size = NONCE_BYTES + slot_bytes * num_slots
        if os.fstat(descriptor).st_size != size:
            return None
        memory = mmap.mmap(descriptor, size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    if memory[:NONCE_BYTES].hex() != nonce:
        memory.close()
        return None
    return SharedSending(memory, slot_bytes, num_slots)
