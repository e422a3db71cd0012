"""A token's spelling in the vocabulary, and the bytes it stands for.

Two alphabets exist. *Byte-level* vocabularies (GPT-2 and after) write every byte as one printable character.
*Marked* vocabularies (SentencePiece) write text as it is, with ▁ for a space and <0xNN> for a byte without a piece.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

MARK = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Lead(enum.Enum):
    """What the beginning of a text loses when it is decoded: the space that encoding put there."""

    NOTHING = "nothing"
    ONE_SPACE = "one space"
    MARKS = "every mark of the first piece"


@dataclass(frozen=True, slots=True)
class PieceStyle:
    """How pieces are spelled, and what their first one loses."""

    byte_level: bool
    byte_fallback: bool = False
    lead: Lead = Lead.NOTHING


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters are themselves, the other bytes are U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


BYTE_OF = _byte_alphabet()


def piece_bytes(piece: str, style: PieceStyle) -> bytes:
    """The bytes that an ordinary (not added) token stands for."""
    if style.byte_level:
        try:
            return bytes([BYTE_OF[char] for char in piece])
        except KeyError:  # padding entries such as "[PAD 7]" live in byte-level vocabularies, spelled plainly
            return piece.encode()
    if style.byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return piece.replace(MARK, " ").encode()


def opening_bytes(piece: str, style: PieceStyle) -> bytes:
    """The same for a token that begins a text."""
    if style.lead is Lead.MARKS:
        piece = piece.replace(MARK, "")
    data = piece_bytes(piece, style)
    return data.removeprefix(b" ") if style.lead is Lead.ONE_SPACE else data
