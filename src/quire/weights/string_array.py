"""Finds where each string of a GGUF array begins. The array is a chain (u64 length, bytes, u64 length, ...): finding
its end means walking it, and a vocabulary has 50,000 to 500,000 links.

Almost all strings are shorter than 256 bytes and hold no zero byte, so their length field is one byte and seven zeros,
which numpy finds in the whole window at once. The candidates are accepted while they form a chain: each offset plus its
length is the next offset. Where the chain breaks (a long or empty string, a zero byte), a plain loop continues.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from .mapped_file import MappedFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_WINDOW, MAX_WINDOW = 1 << 12, 1 << 18  # bytes scanned by a guess: few after a poor one, more after a good one
WALK_STRINGS = 256  # walked after a poor guess, so that unusual strings cost little more than in a plain loop
GOOD_GUESS = 64  # links; a guess that finds fewer costs more than it saves

U64 = Struct("<Q")


def string_offsets(file: MappedFile, start: int, count: int) -> NDArray[np.int64]:
    """Return the offsets of `count` length fields and of the end: [count + 1]. Fewer if the file ends early."""
    parts: list[NDArray[np.int64]] = []
    position, left, window = start, count, MAX_WINDOW
    while left and position + U64.size <= file.num_bytes:
        part = _guess(file.data[position : position + window], position, left)
        if len(part) - 1 >= min(GOOD_GUESS, left):
            window = min(4 * window, MAX_WINDOW)
        else:
            window = MIN_WINDOW
            part = _walk(file, position, min(WALK_STRINGS, left))
        parts.append(part[:-1])
        position, left = int(part[-1]), left - (len(part) - 1)
    parts.append(np.array([position] if position <= file.num_bytes else [], np.int64))
    return np.concatenate(parts)


def decode_strings(file: MappedFile, offsets: NDArray[np.int64]) -> tuple[str, ...]:
    """Decode the strings at the offsets of `string_offsets`. Raises UnicodeDecodeError if one is not UTF-8."""
    places, text = offsets[:-1] - offsets[0], file.data[offsets[0] : offsets[-1]].copy()
    if not len(places):
        return ()
    # Each length field is replaced by one zero byte. Then all strings are decoded and split at once, twice as fast as
    # one by one. A zero byte is a whole UTF-8 character, so the validity of the strings does not change.
    text[places] = 0
    kept = np.ones(len(text), np.bool_)
    for i in range(1, U64.size):
        kept[places + i] = False
    joined = text[kept].tobytes()
    if joined.count(0) == len(places):
        return tuple(str(joined, "utf-8").split("\0")[1:])
    raw, ends = text.tobytes(), (offsets[1:] - offsets[0]).tolist()
    begins = (places + U64.size).tolist()
    return tuple([str(raw[begin:end], "utf-8") for begin, end in zip(begins, ends, strict=True)])


def _guess(window: NDArray[np.uint8], position: int, limit: int) -> NDArray[np.int64]:
    """Return at most `limit` verified links in the window at `position`, and the offset after them."""
    zero = window == 0
    pairs = zero[:-1] & zero[1:]
    fours = pairs[:-2] & pairs[2:]
    sevens = fours[1:-3] & fours[4:]  # [i]: bytes i + 1 .. i + 7 are zero
    places = np.flatnonzero(sevens)
    if not len(places) or places[0] != 0:
        return np.array([position], np.int64)
    following = places + U64.size + window[places]
    broken = np.flatnonzero(following[:-1] != places[1:])
    num_links = min(int(broken[0]) + 1 if len(broken) else len(places), limit)
    return np.append(places[:num_links], following[num_links - 1]) + position


def _walk(file: MappedFile, position: int, limit: int) -> NDArray[np.int64]:
    """Do the same as `_guess`, one string at a time; at least one, as the first length field is inside the file."""
    places = [position]
    for _ in range(limit):
        if position + U64.size > file.num_bytes:
            break
        position = min(position + U64.size + U64.unpack_from(file.buffer, position)[0], file.num_bytes + 1)
        places.append(position)
    return np.array(places, np.int64)
