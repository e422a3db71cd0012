"""The contract of a transport, which carries the bytes of blocks from sender to receiver, beside a channel's frames.

A file of this folder is a transport; both sides agree on its name. It defines

    RANK                                     the transport with the highest rank that both sides have is used
    unavailable() -> str                     why it cannot be used on this machine; empty: it can
    suits(has_own_memory) -> bool            whether `auto` may use it, for blocks in device memory or in host memory
    receiving(max_bytes) -> ReceivingSide    opened first; raises OSError where it cannot be used
    sending(offer, max_bytes) -> SendingSide | None    for a receiver's offer; None: the receiver cannot be reached

Each side's offer is sent in a frame whose tag is checked before the offer is read, so it comes from an engine with the
secret. Bytes and tickets are not trusted: the tag of a block's frame covers the bytes that the receiver has copied, and
is checked after that, whatever carried them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple, Protocol

from quire.types.setting import BadSetting

CONTRACT = "contract"
AUTO = "auto"


class Parcel(NamedTuple):
    """The bytes of one block, either inline in the frame, or as a ticket for the slot that has them."""

    ticket: bytes = b""
    inline: bytes = b""


class ReceivingSide(Protocol):
    """The end that takes bytes. Used by one thread."""

    offer: str  # what the sender needs to reach it

    def accept(self, offer: str) -> None:
        """Read the sender's offer, before the first parcel. Raises ValueError or OSError if it cannot be used."""
        ...

    def take(self, parcel: Parcel, num_bytes: int, seconds: float) -> bytes:
        """Return a private copy of the bytes, within `seconds`.

        Raises ValueError for an invalid ticket, and OSError if the bytes cannot be read in time.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class SendingSide(Protocol):
    """The end that sends bytes. Used by one thread."""

    offer: str  # what the receiver needs to reach it; empty: nothing

    def put(self, data: bytes) -> Parcel | None:
        """Send bytes. None: all slots are filled; try again after the receiver has freed a ticket."""
        ...

    def freed(self, ticket: bytes) -> None:
        """Free a ticket whose bytes the receiver has copied. Raises ValueError for a ticket that is not in use."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class Transport(Protocol):
    """A file of this folder."""

    RANK: int

    def unavailable(self) -> str:
        """Return why it cannot be used on this machine, and what to do. Empty: it can."""
        ...

    def suits(self, has_own_memory: bool) -> bool:
        """Return whether `auto` may use it. `has_own_memory`: the blocks are in device memory."""
        ...

    def receiving(self, max_bytes: int) -> ReceivingSide:
        """Open the receiving end for blocks of up to `max_bytes`."""
        ...

    def sending(self, offer: str, max_bytes: int) -> SendingSide | None:
        """Open the sending end for a receiver's offer."""
        ...


@cache
def all_transports() -> Mapping[str, Transport]:
    """The transports, the fastest first."""
    folder = import_module("quire.transfer.transports")
    names = [each.name for each in iter_modules(folder.__path__) if each.name != CONTRACT]
    found = {name: import_module(f"{folder.__name__}.{name}") for name in names}
    return dict(sorted(found.items(), key=lambda each: -each[1].RANK))


def usable_transports(setting: str, has_own_memory: bool = False) -> Mapping[str, Transport]:
    """The transports that the setting allows and this machine has, the fastest first."""
    found = all_transports()
    if setting == AUTO:
        found = {name: each for name, each in found.items() if each.suits(has_own_memory)}
    return {name: each for name, each in found.items() if setting in (AUTO, name) and not each.unavailable()}


def check_transport(setting: str) -> None:
    """Raise BadSetting if the setting names a transport that this machine does not have."""
    if setting != AUTO and (why := all_transports()[setting].unavailable()):
        raise BadSetting(f"transport is {setting!r}, but {why}. Or leave it at {AUTO!r}.", field="transport")
