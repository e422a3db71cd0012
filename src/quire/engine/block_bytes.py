"""Copies of blocks between the device's memory and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.cache.lease import NO_SLOT
from quire.cache.moving import BlockPlace
from quire.cache.radix import NO_BLOCK
from quire.devices.base import MovesBlocks


def read_places(mover: MovesBlocks, places: Sequence[BlockPlace]) -> list[tuple[bytes, ...]]:
    """Return the bytes of each block, its window blocks and its state. A group is read in one call: one GPU copy."""
    columns = []
    for group, blocks in enumerate(_blocks_of_groups(places)):
        found = [block for block in blocks if block != NO_BLOCK]
        rows = iter(mover.read_blocks(group, np.array(found, np.int32)) if found else ())
        columns.append([b"" if block == NO_BLOCK else next(rows).tobytes() for block in blocks])
    states = [b"" if each.state == NO_SLOT else mover.read_state(each.state).tobytes() for each in places]
    return list(zip(*columns, states, strict=True))


def write_places(mover: MovesBlocks, places: Sequence[BlockPlace], parts: Sequence[tuple[bytes, ...]]) -> None:
    """Write the bytes of each block, its window blocks and its state; parts without a reserved place are skipped."""
    for group, blocks in enumerate(_blocks_of_groups(places)):
        pairs = [(to, each[group]) for to, each in zip(blocks, parts, strict=True) if to != NO_BLOCK and each[group]]
        if pairs:
            data = np.frombuffer(b"".join(data for _, data in pairs), np.uint8)
            mover.write_blocks(group, np.array([to for to, _ in pairs], np.int32), data.reshape(len(pairs), -1))
    for place, each in zip(places, parts, strict=True):
        if place.state != NO_SLOT:
            mover.write_state(place.state, np.frombuffer(each[-1], np.uint8))


def _blocks_of_groups(places: Sequence[BlockPlace]) -> list[tuple[int, ...]]:
    """Return the blocks of each group, one for each place."""
    return list(zip(*((each.block, *each.windows) for each in places), strict=True))
