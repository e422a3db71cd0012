"""What a request gives to the encoder of an encoder-decoder model."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import NamedTuple

from quire.types.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """Token ids, or rows of numbers (features), and a digest of them. Requests with equal digests share the result."""

    digest: str
    num_tokens: int  # rows that the encoder makes of it
    tokens: tuple[int, ...] = ()
    features: bytes = b""  # float32 [num_tokens, width], row after row; empty: the source is tokens

    @classmethod
    def of_tokens(cls, tokens: tuple[int, ...]) -> EncoderInput:
        """A source of token ids."""
        if not tokens:
            raise InvalidRequest("The text for the encoder is empty: send at least one token.", field="prompt")
        digest = hashlib.blake2b(array("q", tokens).tobytes(), digest_size=16).hexdigest()
        return cls(digest, len(tokens), tokens)

    @classmethod
    def of_features(cls, features: bytes, num_tokens: int) -> EncoderInput:
        """A source of numbers."""
        return cls(hashlib.blake2b(features, digest_size=16).hexdigest(), num_tokens, features=features)


class SourceBlocks(NamedTuple):
    """The blocks of a row's source."""

    num_tokens: int
    blocks: tuple[int, ...]
    source: (
        EncoderInput | None
    )  # to be encoded before anything is computed in this step; None: the blocks hold it already
