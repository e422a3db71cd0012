"""Messages as bytes, for the socket between two processes: a list of [kind, content], in MessagePack.

The kind is an index into a closed list, so bytes from a socket cannot name a class. Errors are sent as code, status,
message and plain attributes; the receiver restores the class if it has one with that code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from quire.engine import messages
from quire.engine.messages import Inward, Outward
from quire.types import load, output
from quire.types.errors import QuireError

KINDS: tuple[type[Any], ...] = (
    messages.Configure,
    messages.Submit,
    messages.Cancel,
    messages.Snapshot,
    messages.Explain,
    messages.PinPrefix,
    messages.UnpinPrefix,
    messages.Flush,
    messages.Resize,
    messages.Shutdown,
    messages.Hello,
    messages.Loading,
    messages.Ready,
    messages.Accepted,
    output.Tokens,
    output.Finished,
    messages.Failed,
    messages.Cancelled,
    messages.Counters,
    messages.Explained,
    messages.Changed,
    messages.Resized,
    messages.Unanswered,
    messages.Dead,
    messages.Probe,
    messages.Alive,
    messages.ReadEvents,
    messages.CacheEvents,
    messages.ReadLoad,
    load.LoadReport,
)
_KIND_OF = {kind: place for place, kind in enumerate(KINDS)}


def encode(sent: Sequence[Inward | Outward]) -> bytes:
    """Encode messages, in order, as one frame."""
    return _encoder().encode([(_KIND_OF[type(message)], message) for message in sent])


def decode(frame: bytes) -> list[Any]:
    """Decode the messages of a frame. Raises msgspec.DecodeError if it holds anything else."""
    received: list[Any] = []
    for kind, content in _envelope().decode(frame):
        if not 0 <= kind < len(KINDS):
            raise msgspec.DecodeError(f"there is no message of kind {kind}")
        received.append(_decoders()[kind].decode(content))
    return received


@cache
def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=plain_error)


@cache
def _envelope() -> msgspec.msgpack.Decoder[list[tuple[int, msgspec.Raw]]]:
    return msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]])


@cache
def _decoders() -> tuple[msgspec.msgpack.Decoder[Any], ...]:
    return tuple(msgspec.msgpack.Decoder(kind, dec_hook=error_of) for kind in KINDS)


def plain_error(value: Any) -> Any:
    """An error as plain values, for msgspec."""
    if isinstance(value, QuireError):
        facts = {name: fact for name, fact in vars(value).items() if isinstance(fact, str | int | float | None)}
        return {"kind": type(value).__name__, "code": value.code, "status": value.status, "facts": facts}
    raise NotImplementedError(f"{type(value).__name__} cannot be sent in a message")


def error_of(kind: type[Any], content: Any) -> Any:
    """Restore the error that `plain_error` encoded, without its constructor: the message is complete already."""
    if not issubclass(kind, QuireError):
        raise NotImplementedError(f"{kind.__name__} cannot be sent in a message")
    known = {each.__name__: each for each in _errors(QuireError)}
    found = known.get(content["kind"])
    if found is None:  # an error of a package that this process has not loaded
        found = type("QuireError", (QuireError,), {"code": content["code"], "status": content["status"]})
    error = found.__new__(found)
    Exception.__init__(error, content["facts"].get("public", ""))
    vars(error).update(content["facts"])
    return error


def _errors(root: type[QuireError]) -> Iterator[type[QuireError]]:
    yield root
    for each in root.__subclasses__():
        yield from _errors(each)
