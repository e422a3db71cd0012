"""Where each string of a GGUF array begins. The array is a chain (u64 length, bytes, u64 length, ...): to find its end
one must walk it, and a vocabulary has 50,000 to 500,000 links.

Almost all strings are shorter than 256 bytes and hold no zero byte, so their length field is a byte and seven zeros,
which numpy finds everywhere at once. What it finds is a guess until it is seen to be a chain: each place plus its
length is the next place. Where the chain breaks (a long or empty string, a zero byte), a plain loop walks on.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from .mapped import MappedFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW_BYTES = 1 << 18
WALK_STRINGS = 256  # walked after a poor guess, so that bad input costs little more than a plain loop
GOOD_GUESS = 64  # links; fewer do not pay for the guess

U64 = Struct("<Q")


def string_offsets(file: MappedFile, start: int, count: int) -> NDArray[np.int64]:
    """The places of `count` length fields, and of the array's end: [count + 1]. Fewer, if the file ends before."""
    parts: list[NDArray[np.int64]] = []
    position, left = start, count
    while left and position + U64.size <= file.num_bytes:
        part = _guess(file, position, left)
        if len(part) - 1 < min(GOOD_GUESS, left):
            part = _walk(file, position, min(WALK_STRINGS, left))
        parts.append(part[:-1])
        position, left = int(part[-1]), left - (len(part) - 1)
    parts.append(np.array([position] if position <= file.num_bytes else [], np.int64))
    return np.concatenate(parts)


def _guess(file: MappedFile, position: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` links from `position` on, and the place after them; only links that are proven."""
    window = file.data[position : position + WINDOW_BYTES]
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
    """As `_guess`, one string after another; at least one, for the first length field is inside the file."""
    places = [position]
    for _ in range(limit):
        if position + U64.size > file.num_bytes:
            break
        position = min(position + U64.size + U64.unpack_from(file.buffer, position)[0], file.num_bytes + 1)
        places.append(position)
    return np.array(places, np.int64)
