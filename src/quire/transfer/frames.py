"""Frames between two engines, and the proof that both have the secret.

    bytes of the body, bytes of the payload (4 each, little endian), kind (1), tag (16)
    body       MessagePack of the struct of its kind
    payload    the bytes of a block, if the transport sends them in the frame

The sender of blocks begins with a Greeting that has its nonce; the receiver answers with a Want that has its own. A key
for each direction is derived from the secret and both nonces. Every frame from the Want on has a tag: keyed BLAKE2b of
its number, kind, body, and the block's bytes (the payload, or what the transport carries beside the frame). The tag is
wrong if a frame was changed, repeated or dropped, or made without the secret. Frames are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from contextlib import suppress
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

import msgspec

VERSION = 1
HEAD = Struct("<IIB16s")
TAG_BYTES, NONCE_BYTES, KEY_BYTES = 16, 32, 32
MAX_BODY = 8 << 20  # bytes: enough for the tokens of the longest prompts
MAX_PAYLOAD = 1 << 30
SEND_SECONDS = 30.0  # timeout for sending a frame
NO_TAG = b"\0" * TAG_BYTES
TO_RECEIVER, TO_SENDER = b"quire-blocks", b"quire-wants"  # each direction has its own key


class TransferBroken(Exception):
    """The other engine closed the connection, sent an unexpected frame, or took too long. The message has the cause."""


class Greeting(msgspec.Struct, frozen=True):
    """The first frame, from the sender of blocks."""

    version: int
    nonce: bytes


class Want(msgspec.Struct, frozen=True):
    """The receiver's request: the blocks of a prompt from `first` on."""

    nonce: bytes
    layout: str  # the model's digest and the layout of its blocks: must be equal on both sides
    key: tuple[str, str, str]  # model, adapter, salt
    tokens: bytes  # of all requested blocks and one more, 4 bytes each, little endian
    first: int  # number of blocks that the receiver already has
    computes: bool  # the sender computes what it has not cached
    offers: dict[str, str]  # transport -> the receiver's offer
    account: str = ""  # API key that is charged for computing
    weight: float = 1.0
    priority: int = 0


class Begin(msgspec.Struct, frozen=True):
    """The sender accepts, and names the transport."""

    transport: str
    offer: str = ""  # what the receiver needs to read from the sender


class Block(msgspec.Struct, frozen=True):
    """One block: its bytes are the payload, or in the slot of the ticket."""

    place: int  # index of the block in the prompt
    digest: bytes  # of all tokens up to its end, as in cache events
    parts: tuple[int, ...]  # bytes of the full-attention block, of each window group's, and of the state; 0: none
    ticket: bytes = b""


class StillComputing(msgspec.Struct, frozen=True):
    """A keep-alive: the sender is still computing."""


class Freed(msgspec.Struct, frozen=True):
    """The receiver has copied the bytes of a ticket; its slot is free."""

    ticket: bytes


class End(msgspec.Struct, frozen=True):
    """The last frame of a transfer."""

    num_sent: int  # blocks
    num_computed: int  # tokens that the sender computed for this transfer


class Refused(msgspec.Struct, frozen=True):
    """The sender refuses the request."""

    why: str


KINDS: tuple[type[Any], ...] = (Greeting, Want, Begin, Block, StillComputing, Freed, End, Refused)
_KIND_OF = {kind: place for place, kind in enumerate(KINDS)}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)


class TaggedFrame(NamedTuple):
    """A received frame. Its tag is still unchecked if a transport carries the block's bytes beside it."""

    body: Any
    payload: bytes
    number: int
    kind: int
    raw: bytes
    tag: bytes
    began: float  # clock when its head had been read


class DirectionKey:
    """Computes the tags of one direction."""

    def __init__(self, secret: str, nonces: bytes, direction: bytes) -> None:
        root = blake2b(secret.encode(), digest_size=KEY_BYTES, person=b"quire-secret").digest()
        self._key = blake2b(nonces, digest_size=KEY_BYTES, key=root, person=direction).digest()

    def tag(self, number: int, kind: int, body: bytes, data: bytes) -> bytes:
        """Return the tag of a frame."""
        made = blake2b(
            HEAD.pack(len(body), len(data), kind, number.to_bytes(16, "little")), key=self._key, digest_size=16
        )
        made.update(body)
        made.update(data)
        return made.digest()


class BlockChannel:
    """One end of a connection. Used by one thread; `close` may be called from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending: DirectionKey | None = None
        self._receiving: DirectionKey | None = None
        self._num_sent = self._num_received = 0

    def secure(self, sending: DirectionKey, receiving: DirectionKey, num_received: int = 0) -> None:
        """Tag all frames from now on. `num_received`: tagged frames that were already received."""
        self._sending, self._receiving = sending, receiving
        self._num_sent, self._num_received = 0, num_received

    def send(self, body: Any, data: bytes = b"", inline: bool = True) -> None:
        """Send a frame. `data`: a block's bytes, covered by the tag. Not `inline`: a transport carries them."""
        kind, raw = _KIND_OF[type(body)], _ENCODER.encode(body)
        tag = NO_TAG if self._sending is None else self._sending.tag(self._num_sent, kind, raw, data)
        payload = data if inline else b""
        self._num_sent += 1
        try:
            self._socket.settimeout(SEND_SECONDS)
            self._socket.sendall(HEAD.pack(len(raw), len(payload), kind, tag) + raw)
            if payload:
                self._socket.sendall(payload)
        except (OSError, ValueError) as error:
            raise TransferBroken(f"sending failed: {error}") from None

    def receive(self, seconds: float, max_payload: int = 0, is_checked: bool = True) -> TaggedFrame:
        """Wait for a frame. `is_checked`: False if the caller checks the tag, with bytes from a transport."""
        deadline = time.monotonic() + seconds
        num_body, num_payload, kind, tag = HEAD.unpack(self._read(HEAD.size, deadline))
        began = time.monotonic()
        if kind >= len(KINDS) or num_body > MAX_BODY or num_payload > min(max_payload, MAX_PAYLOAD):
            raise TransferBroken(f"the other engine sent a frame of kind {kind} with {num_body} + {num_payload} bytes")
        raw, payload = self._read(num_body, deadline), self._read(num_payload, deadline)
        number, self._num_received = self._num_received, self._num_received + 1
        try:
            frame = TaggedFrame(_DECODERS[kind].decode(raw), payload, number, kind, raw, tag, began)
        except msgspec.MsgspecError as error:
            raise TransferBroken(f"the other engine sent a frame that cannot be decoded: {error}") from None
        if is_checked:
            self.check(frame, payload)
        return frame

    def check(self, frame: TaggedFrame, data: bytes) -> None:
        """Raise TransferBroken if the tag does not match the frame and the bytes of its block."""
        if self._receiving is None:
            return
        if not hmac.compare_digest(self._receiving.tag(frame.number, frame.kind, frame.raw, data), frame.tag):
            raise TransferBroken("a frame has a wrong tag: it was damaged, or the two secrets differ")

    def finish(self, seconds: float) -> None:
        """Wait until the other side has read everything and closed. Closing first could discard unread bytes."""
        with suppress(OSError, ValueError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(seconds)
            while self._socket.recv(1 << 16):
                pass

    def close(self) -> None:
        """Close the connection, even while another thread waits on it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, count: int, deadline: float) -> bytes:
        data, at = bytearray(count), 0
        view = memoryview(data)
        while at < count:
            left = deadline - time.monotonic()
            if left <= 0.0:
                raise TransferBroken("the other engine did not answer in time")
            try:
                self._socket.settimeout(left)
                num_read = self._socket.recv_into(view[at:])
            except TimeoutError:
                raise TransferBroken("the other engine did not answer in time") from None
            except (OSError, ValueError) as error:
                raise TransferBroken(f"the connection failed: {error}") from None
            if not num_read:
                raise TransferBroken("the other engine closed the connection")
            at += num_read
        return bytes(data)


def new_nonce() -> bytes:
    """Return a random nonce."""
    return secrets.token_bytes(NONCE_BYTES)
