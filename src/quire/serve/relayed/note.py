"""What a gateway adds to a client's request, and how a server reads it.

    x-quire-client: {"name": "alice", …}      the client's key, in place of the gateway's
    x-quire-note: 1234                        the body's first 1234 bytes are the client's, the rest is a `RelayNote`

Both need an API key with `admin = true`, or a server without keys. The prompts of a note are used only if
`text_digest` is the digest of the tokenizer and template that the server itself would use (text/bundle.py); otherwise
the server encodes the prompts again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import msgspec

from quire.serve.access.keys import ApiKey
from quire.text.prompts import Prompt
from quire.types.errors import InvalidRequest
from quire.types.transfer import PrefixSource

CLIENT, NOTE = "x-quire-client", "x-quire-note"


@dataclass(frozen=True, slots=True)
class RelayedClient:
    """The client of a gateway: what a server needs of its API key. Quotas are the gateway's."""

    name: str = ""
    salt: str = ""
    priority: int | None = None
    weight: float = 1.0
    max_n: int | None = None

    def header(self) -> str:
        """The value of the header."""
        return json.dumps({name: value for name, value in asdict(self).items() if value not in (None, "")})

    def key(self) -> ApiKey:
        """The key that stands for the client in this server."""
        return ApiKey(self.name, salt=self.salt, priority=self.priority, weight=self.weight, max_n=self.max_n)


@dataclass(frozen=True, slots=True)
class RelayNote:
    """Sent behind the client's body, as MessagePack."""

    model: str = ""  # in place of the one that the body names, which is an alias of the gateway
    reply_id: str = ""  # of the answer: the same for all servers that have a part in it
    created: float = 0.0  # seconds since 1970, when the answer began
    elapsed: float = 0.0  # seconds of the request's timeout that have passed
    in_frames: bool = False  # a stream is sent in frames (frames.py)
    is_begun: bool = False  # the client has received a part of the answer: it is `journal`
    journal: list[bytes] = field(default_factory=list)  # of the frames that the client has received
    prompts: list[Prompt] = field(default_factory=list)  # empty: the server encodes them
    text_digest: str = ""  # of the text side that encoded the prompts
    prefix_source: PrefixSource | None = None  # another server's engine that may send the prompt's blocks


NO_NOTE = RelayNote()
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(RelayNote)
_client_decoder = msgspec.json.Decoder(RelayedClient)


def encode_note(note: RelayNote) -> bytes:
    """The note's bytes."""
    return _encoder.encode(note)


def split_note(body: bytes, header: str) -> tuple[bytes, RelayNote]:
    """Separate the client's body from the note behind it."""
    if not header.isdecimal() or int(header) > len(body):
        raise InvalidRequest(f"{NOTE} must be the length of the client's body, at most {len(body)} bytes.", field=NOTE)
    try:
        return body[: int(header)], _decoder.decode(body[int(header) :])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"The note behind the body cannot be read: {error}", field=NOTE) from None


def read_client(header: str) -> ApiKey:
    """The key that the header describes."""
    try:
        return _client_decoder.decode(header).key()
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{CLIENT} cannot be read: {error}", field=CLIENT) from None
