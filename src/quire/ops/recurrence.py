"""How a recurrent op walks a step: row by row, token by token, with the row's state read before and written after.

A token's numbers depend on its row's text only, and a state has the same bits whatever the chunks were (law 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quire.ops.batch import Batch, RowPart, StateSlots
from quire.ops.cache import State, StateCache
from quire.ops.registry import Array, ArrayMaker

Step = Callable[[Array, int], Array]  # changes the state by one token of the step, in place; returns the token's output

STEPS = (  # computed, new tokens of each row
    [(0, 1)],
    [(5, 1), (40, 1), (0, 1)],
    [(0, 7), (3, 1), (20, 70)],
)


def recur(cache: StateCache, batch: Batch, width: int, step: Step) -> Array:
    """Run `step` for every token of every row; return the outputs, float32 [T, width]."""
    states = batch.states
    assert states is not None, "a recurrent layer needs the slots of its rows"
    saves = {(int(token), int(slot)) for token, slot in states.saves}
    out = np.empty((len(batch.token_ids), width), np.float32)
    for row in range(len(batch.lengths)):
        state = cache.read(int(states.source[row]))
        for token in range(batch.starts[row], batch.starts[row + 1]):
            out[token] = step(state, token)
            for _, slot in (save for save in saves if save[0] == token):
                cache.write(slot, state)
        cache.write(int(states.target[row]), state)
    return out


def example_step(make: ArrayMaker, rows: Sequence[tuple[int, int]], spec: State) -> tuple[StateCache, Batch]:
    """A step of rows with (computed, new) tokens, and states of noise, as after long use.

    Every second row writes to another slot than it reads from, and the last row saves a state in its middle.
    """
    num_slots = 3 * len(rows) + 1
    order = make.rng.permutation(num_slots).astype(np.int32)
    parts = [RowPart([0] * new, computed, range((computed + new) // 16 + 1)) for computed, new in rows]
    source, target, (slot, *_) = order[: len(rows)], order[: len(rows)].copy(), order[2 * len(rows) :]
    target[1::2] = order[len(rows) : 2 * len(rows)][1::2]
    began = np.array([computed > 0 for computed, _ in rows])
    batch = Batch.of([part._replace(blocks=[0] * len(part.blocks)) for part in parts], 16)
    saves = np.array([[(batch.starts[-2] + batch.starts[-1]) // 2, slot]], np.int32)
    states = StateSlots(np.where(began, source, -1).astype(np.int32), target, saves)
    cache = StateCache(spec, make(num_slots, *spec.shape))
    return cache, Batch(**{**{name: getattr(batch, name) for name in Batch.__slots__}, "states": states})
