"""A random model whose text is known: after token t comes t + 1. And a drafter that knows it, and errs at a given rate.

The table of embeddings is much larger than what the layers add to it, and the head's rows are those of the table, one
place further. All products, and so all times, are those of the random model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import DEFAULT_OPTIONS, Device, Limits, LoweringOptions, Program
from quire.devices.facts import DeviceFacts
from quire.graph.graph import Graph
from quire.graph.weight import Weight, Weights
from quire.spec.drafter import Draft, Text

SPREAD = 32.0  # of the embeddings; that of what a layer adds is about 2
HEAD_FACTOR = 2.0**-11  # of the head's rows
ERROR = 7  # by which a wrong draft differs from the right one


@dataclass(frozen=True, slots=True)
class ShiftedRows:
    """A table [rows, columns] in bf16: row r has the numbers from r + `shift` on of one random sequence."""

    name: str
    shape: tuple[int, int]
    shift: int = 0
    factor: float = 1.0
    format: str = "bf16"

    @property
    def num_bytes(self) -> int:
        return 2 * self.shape[0] * self.shape[1]

    @property
    def data(self) -> NDArray[np.uint8]:
        rows, columns = self.shape
        numbers = np.random.default_rng(0).standard_normal(rows + columns, np.float32)
        numbers *= np.float32(SPREAD * self.factor)
        short = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        windows = np.lib.stride_tricks.sliding_window_view(short, columns)[:rows]
        return np.roll(windows, -self.shift, axis=0).view(np.uint8).reshape(-1)

    def dequantize(self) -> NDArray[np.float32]:
        short: NDArray[Any] = self.data.view(np.uint16)
        return (short.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class PredictableDevice(Device):
    """A device that lowers every model with these embeddings and this head. They must not be tied."""

    inner: Device

    @property
    def name(self) -> str:
        return self.inner.name

    def facts(self) -> DeviceFacts:
        """The facts of the device."""
        return self.inner.facts()

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> Program:
        """Lower the model with the two tables."""
        if weights["embed"] is weights["head"]:
            raise ValueError("the text of a model with tied embeddings is not predictable: choose another shape")
        rows, columns = weights["embed"].shape
        tables = (ShiftedRows("embed", (rows, columns)), ShiftedRows("head", (rows, columns), -1, HEAD_FACTOR))
        known = {each.name: Weight(each.name, each.shape, each.format, each) for each in tables}
        return self.inner.lower(graph, {**weights, **known}, limits, options)


class KnowingDrafter:
    """Drafts the known text; each token of a draft is right with the probability `acceptance`."""

    name = "synthetic"
    priors = (0.5,)

    def __init__(self, vocab_size: int, acceptance: float) -> None:
        self._vocab_size = vocab_size
        self.acceptance = acceptance
        self._random = np.random.default_rng(0)

    def propose(self, texts: Sequence[Text], limit: int) -> list[Draft]:
        """Return a draft for each text."""
        last = np.array([text.tokens[-1] for text in texts])
        wrong = self._random.random((len(texts), limit)) >= self.acceptance
        tokens = (last[:, None] + np.arange(1, limit + 1) + ERROR * wrong) % self._vocab_size
        return [Draft(each) for each in tokens.tolist()]

    def forget(self, sample_id: str) -> None:
        """Nothing is kept."""
