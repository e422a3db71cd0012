"""Messages as bytes, for the socket between two processes: a list of [kind, content], in MessagePack.

The kind is the place in a closed list, so nothing that comes over a socket can name a class. Errors travel as code,
status, sentence and plain facts; the other side has the class again if it is one of types/errors.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from quire.engine import messages
from quire.engine.messages import Inward, Outward
from quire.types import output
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
)
_KIND_OF = {kind: place for place, kind in enumerate(KINDS)}


def encode(said: Sequence[Inward | Outward]) -> bytes:
    """Messages, in their order, as one frame."""
    return _encoder().encode([(_KIND_OF[type(message)], message) for message in said])


def decode(frame: bytes) -> list[Any]:
    """The messages of a frame. Raises msgspec.DecodeError if it holds anything else."""
    said: list[Any] = []
    for kind, content in _envelope().decode(frame):
        if not 0 <= kind < len(KINDS):
            raise msgspec.DecodeError(f"there is no message of the kind {kind}")
        said.append(_decoders()[kind].decode(content))
    return said


@cache
def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_plain)


@cache
def _envelope() -> msgspec.msgpack.Decoder[list[tuple[int, msgspec.Raw]]]:
    return msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]])


@cache
def _decoders() -> tuple[msgspec.msgpack.Decoder[Any], ...]:
    return tuple(msgspec.msgpack.Decoder(kind, dec_hook=_error) for kind in KINDS)


def _plain(value: Any) -> Any:
    if isinstance(value, QuireError):
        facts = {name: fact for name, fact in vars(value).items() if isinstance(fact, str | int | float | None)}
        return {"code": value.code, "status": value.status, "facts": facts}
    raise NotImplementedError(f"{type(value).__name__} is in no message")


def _error(kind: type[Any], content: Any) -> Any:
    """An error of the class with this code, made without its constructor: the sentence is written already."""
    if not issubclass(kind, QuireError):
        raise NotImplementedError(f"{kind.__name__} is in no message")
    known = {each.code: each for each in _errors(QuireError)}
    found = known.get(content["code"])
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
