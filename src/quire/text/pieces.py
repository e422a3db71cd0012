"""A token's spelling in the vocabulary, and its bytes.

Three kinds exist. *Byte-level* vocabularies (GPT-2 and after) write every byte as one printable character. *Marked*
vocabularies (SentencePiece) write text as it is, with ▁ for a space and <0xNN> for a byte without a piece. Vocabularies
of *words* (WordPiece, or no decoder at all) have no spaces: decoding puts one before each word.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

MARK = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_TIDIED = (  # by the decoder of WordPiece, in this order
    *((f" {mark}", mark) for mark in ".?!,"), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class Lead(enum.Enum):
    """What decoding removes from the beginning of a text: the space that encoding has added."""

    NOTHING = "nothing"
    ONE_SPACE = "one space"
    MARKS = "every mark of the first piece"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters are themselves, the other bytes are U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


BYTE_OF = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class PieceStyle:
    """How pieces are spelled, and what is removed from the first one."""

    byte_level: bool
    byte_fallback: bool = False
    lead: Lead = Lead.NOTHING
    marked: bool = True  # unless byte-level: ▁ is a space

    def piece_bytes(self, piece: str) -> bytes:
        """The bytes of a token."""
        if self.byte_level:
            try:
                return bytes([BYTE_OF[char] for char in piece])
            except KeyError:  # added tokens, and padding entries such as "[PAD 7]", are spelled plainly
                return piece.encode()
        if self.byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return (piece.replace(MARK, " ") if self.marked else piece).encode()

    def opening_bytes(self, piece: str) -> bytes:
        """The bytes of a token that begins a text."""
        if self.lead is Lead.MARKS:
            piece = piece.replace(MARK, "")
        data = self.piece_bytes(piece)
        return data.removeprefix(b" ") if self.lead is Lead.ONE_SPACE else data


@dataclass(frozen=True, slots=True)
class WordStyle:
    """Words with a space between them. A piece that begins with `continuation` belongs to the word before it."""

    continuation: str = ""
    tidy: bool = False  # no space before punctuation and contractions

    def piece_bytes(self, piece: str) -> bytes:
        """The bytes of a token."""
        belongs = self.continuation and piece.startswith(self.continuation)
        return self._tidied(piece.removeprefix(self.continuation) if belongs else f" {piece}").encode()

    def opening_bytes(self, piece: str) -> bytes:
        """The bytes of a token that begins a text."""
        return self._tidied(piece).encode()

    def _tidied(self, text: str) -> str:
        for spaced, close in _TIDIED if self.tidy else ():
            text = text.replace(spaced, close)
        return text
