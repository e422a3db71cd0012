"""What a transport does: it carries the bytes of blocks from a sender to a receiver, beside the frames of a channel.

A file of this folder is a transport; its name is what the two sides agree on. It defines

    RANK                                     of those that both sides have, the highest is used
    unavailable() -> str                     why it cannot be used on this machine; empty: it can
    suits(has_own_memory) -> bool            is it for `auto`, with blocks in the memory of a GPU, or in the host's?
    receiving(max_bytes) -> ReceivingSide    opened first; raises OSError where it cannot be used
    sending(offer, max_bytes) -> SendingSide | None    for a receiver's offer; None: not reachable from here

Each side's offer comes to the other in a frame whose tag is checked first: it is made by someone with the secret. Bytes
and tickets are not trusted: the tag of a block's frame covers the bytes that the receiver has taken, whatever carried
them, and it is checked after that.
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
    """How the bytes of one block travel: within the frame, or as a ticket for where they are."""

    ticket: bytes = b""
    inline: bytes = b""


class ReceivingSide(Protocol):
    """The end that takes bytes. Used by one thread."""

    offer: str  # what the sender needs to reach it

    def accept(self, offer: str) -> None:
        """Read the sender's offer, before the first parcel. Raises ValueError or OSError if it cannot be used."""
        ...

    def take(self, parcel: Parcel, num_bytes: int, seconds: float) -> bytes:
        """Return a private copy of the bytes, within so many seconds.

        Raises ValueError for a ticket that it cannot have got, and OSError if the bytes do not come.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class SendingSide(Protocol):
    """The end that sends bytes. Used by one thread."""

    offer: str  # what the receiver needs to reach it; empty: nothing

    def put(self, data: bytes) -> Parcel | None:
        """Send bytes. None: there is no room until the receiver has freed a ticket."""
        ...

    def freed(self, ticket: bytes) -> None:
        """The receiver has taken the bytes of a ticket. Raises ValueError for one that was not given."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class Transport(Protocol):
    """A file of this folder."""

    RANK: int

    def unavailable(self) -> str:
        """Say why it cannot be used on this machine, and what to do. Empty: it can."""
        ...

    def suits(self, has_own_memory: bool) -> bool:
        """Is it for `auto`? `has_own_memory`: the blocks lie in memory that is not the host's."""
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
