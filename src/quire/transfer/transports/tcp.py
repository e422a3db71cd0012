"""Bytes within the frames of the channel: between any two hosts."""

from __future__ import annotations

from quire.transfer.transports.contract import Parcel

RANK = 1


class TcpReceiving:
    """Takes the bytes that came with the frame."""

    offer = ""

    def accept(self, offer: str) -> None:
        """The sender has nothing to say of itself."""

    def take(self, parcel: Parcel, num_bytes: int, seconds: float) -> bytes:
        """Return the frame's bytes."""
        if parcel.ticket or len(parcel.inline) != num_bytes:
            raise ValueError(f"the frame has {len(parcel.inline)} bytes and says {num_bytes}")
        return parcel.inline

    def close(self) -> None:
        """There is nothing to free."""


class TcpSending:
    """Puts the bytes into the frame. The socket's buffer bounds what is on its way."""

    offer = ""

    def put(self, data: bytes) -> Parcel:
        """Return the bytes themselves."""
        return Parcel(inline=data)

    def freed(self, ticket: bytes) -> None:
        """There are no tickets."""
        raise ValueError("no ticket was given")

    def close(self) -> None:
        """There is nothing to free."""


def unavailable() -> str:
    """It can be used everywhere."""
    return ""


def suits(has_own_memory: bool) -> bool:
    """Everywhere, if nothing else does."""
    return True


def receiving(max_bytes: int) -> TcpReceiving:
    """Open the receiving end."""
    return TcpReceiving()


def sending(offer: str, max_bytes: int) -> TcpSending:
    """Open the sending end."""
    return TcpSending()
