"""Bytes inline in the frames of the channel: between any two hosts."""

from __future__ import annotations

from quire.transfer.transports.contract import Parcel

RANK = 1


class TcpReceiving:
    """Reads the bytes from the frame."""

    offer = ""

    def accept(self, offer: str) -> None:
        """Do nothing: the sender's offer is empty."""

    def take(self, parcel: Parcel, num_bytes: int, seconds: float) -> bytes:
        """Return the frame's bytes."""
        if parcel.ticket or len(parcel.inline) != num_bytes:
            raise ValueError(f"the frame has {len(parcel.inline)} bytes of a block of {num_bytes}")
        return parcel.inline

    def close(self) -> None:
        """There is nothing to free."""


class TcpSending:
    """Puts the bytes into the frame. The socket's buffer bounds the bytes in flight."""

    offer = ""

    def put(self, data: bytes) -> Parcel:
        """Return the bytes as an inline parcel."""
        return Parcel(inline=data)

    def freed(self, ticket: bytes) -> None:
        """Raise ValueError: this transport has no tickets."""
        raise ValueError("this transport has no tickets")

    def close(self) -> None:
        """There is nothing to free."""


def unavailable() -> str:
    """Return an empty string: TCP can be used everywhere."""
    return ""


def suits(has_own_memory: bool) -> bool:
    """Always: the lowest rank makes it the fallback."""
    return True


def receiving(max_bytes: int) -> TcpReceiving:
    """Open the receiving end."""
    return TcpReceiving()


def sending(offer: str, max_bytes: int) -> TcpSending:
    """Open the sending end."""
    return TcpSending()
