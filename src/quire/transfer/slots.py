"""Slots for one block each, filled by a sender and freed by a receiver. A ticket is the number of a slot."""

from __future__ import annotations

MAX_SLOTS = 16
MAX_BYTES = 8 << 20  # of all slots, unless one block is larger
TICKET_BYTES = 4


def num_slots_of(max_bytes: int) -> int:
    """Return the number of slots for blocks of up to `max_bytes`."""
    return max(2, min(MAX_SLOTS, MAX_BYTES // max(max_bytes, 1)))


def slot_of(ticket: bytes, num_slots: int) -> int:
    """Return the slot of a ticket. Raises ValueError if the ticket is invalid."""
    slot = int.from_bytes(ticket, "little")
    if len(ticket) != TICKET_BYTES or slot >= num_slots:
        raise ValueError("there is no such slot")
    return slot


class FreeSlots:
    """The slots that a sender may fill."""

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        self._num_slots = num_slots
        self._slot_bytes = slot_bytes
        self._free = list(range(num_slots))

    def take(self, num_bytes: int) -> int | None:
        """Return a free slot for a block; None: all are filled."""
        if num_bytes > self._slot_bytes:
            raise ValueError(f"a block of {num_bytes} bytes does not fit a slot of {self._slot_bytes}")
        return self._free.pop() if self._free else None

    def free(self, ticket: bytes) -> None:
        """Free the slot of a ticket. Raises ValueError if it is not filled."""
        slot = slot_of(ticket, self._num_slots)
        if slot in self._free:
            raise ValueError(f"slot {slot} is already free")
        self._free.append(slot)


def ticket_of(slot: int) -> bytes:
    """Return the ticket of a slot."""
    return slot.to_bytes(TICKET_BYTES, "little")
