"""Measures which variant of the kernels multiplies fastest with a program's own matrices.

Variants that round a format's products alike give the same bits (`native.rounding`), so the measurement decides speed
and never text. The result is kept with the lowered weights: the next start of the same machine reads it.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pack import QUANTIZED, Packed

Array = NDArray[Any]
logger = logging.getLogger("quire.devices.cpu")

MIN_BYTES = 16 << 20  # of matrices: the time of fewer is noise, and the widest variant serves
SAMPLE_BYTES = 32 << 20  # of one format: more than the caches near a core hold
NUM_TOKENS = (1, 16)  # decoding of one stream is bound by reading weights, 16 tokens by arithmetic
NUM_ROUNDS = 4
MARGIN = 0.97  # another variant is chosen only if it needs less than this share of the widest one's time
BLOCK_TOKENS = 16
KEY = "kernels"  # of the array that keeps a choice; no label of a matrix looks like it


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant for one format's products, and how the others compare."""

    variant: str
    relative_times: Mapping[str, float]  # by variant, the chosen one's is 1; empty: nothing was measured


Choices = Mapping[str, Choice]  # by format


def choose(module: ModuleType, pool: Any, variant: str, matrices: list[Packed]) -> Choices:
    """Measure the variants that round as `variant` does, on samples of these matrices; takes about 0.1 s a format."""
    by_format: dict[str, list[Packed]] = {}
    for matrix in matrices:
        by_format.setdefault(matrix.format, []).append(matrix)
    chosen: dict[str, Choice] = {}
    for format, found in sorted(by_format.items()):
        rounding = module.rounding(variant, format)
        alike = [name for name in module.variants() if module.rounding(name, format) == rounding]
        if len(alike) == 1 or sum(matrix.panels.nbytes for matrix in found) < MIN_BYTES:
            chosen[format] = Choice(variant, {})
            continue
        best, times = _fastest(_Probe(module, pool, variant, _sample(found)), alike, variant)
        chosen[format] = Choice(best, {name: round(times[name] / times[best], 3) for name in alike})
        logger.info("%s products run on %s; relative times: %s", format, best, chosen[format].relative_times)
    return chosen


def _fastest(probe: _Probe, variants: list[str], widest: str) -> tuple[str, dict[str, float]]:
    """The fastest variant, and the times of all. What beats the widest must do so again, in more rounds: a choice is
    kept for all later starts, and a busy machine may slow one variant's first rounds."""
    times = _times(probe, variants, NUM_ROUNDS)
    best = min(variants, key=times.__getitem__)
    if best != widest and times[best] < MARGIN * times[widest]:
        again = _times(probe, [widest, best], 2 * NUM_ROUNDS)
        times |= {name: min(times[name], again[name]) for name in again}
    return (best if times[best] < MARGIN * times[widest] else widest), times


def _times(probe: _Probe, variants: list[str], num_rounds: int) -> dict[str, float]:
    """The geometric mean of the shortest times of each size; variants take turns, so that noise meets all of them."""
    shortest = {(name, count): math.inf for name in variants for count in NUM_TOKENS}
    for _ in range(num_rounds):
        for name in variants:
            for count in NUM_TOKENS:
                shortest[name, count] = min(shortest[name, count], probe.seconds(name, count))
    return {name: math.sqrt(math.prod(shortest[name, count] for count in NUM_TOKENS)) for name in variants}


def _sample(matrices: list[Packed]) -> list[Packed]:
    """Matrices evenly from all of them, until they have SAMPLE_BYTES."""
    total = sum(matrix.panels.nbytes for matrix in matrices)
    stride = max(1, round(total / SAMPLE_BYTES))
    sample, size = [], 0
    for matrix in matrices[::stride]:
        if size < SAMPLE_BYTES:
            sample.append(matrix)
            size += matrix.panels.nbytes
    return sample


class _Probe:
    """A native program of nothing but products with these matrices. They are not copied."""

    def __init__(self, module: ModuleType, pool: Any, variant: str, matrices: list[Packed]) -> None:
        most = max(NUM_TOKENS)
        num_blocks = -(-most // BLOCK_TOKENS)
        self._native = module.Program(variant, pool, [most, 1, 1, num_blocks, num_blocks, BLOCK_TOKENS])
        self._format = matrices[0].format
        inputs: dict[int, tuple[int, int]] = {}  # columns -> float rows, quantized rows
        outputs: dict[int, int] = {}
        for matrix in matrices:
            rows, cols = matrix.shape
            if cols not in inputs:
                inputs[cols] = self._native.rows(cols), -1
                if self._format in QUANTIZED:
                    inputs[cols] = inputs[cols][0], self._native.quants(cols)
            if rows not in outputs:
                outputs[rows] = self._native.rows(rows)
            floats, quants = inputs[cols]
            self._native.product(
                matrices=[self._native.adopt(matrix.format, matrix.shape, matrix.panels)],
                biases=[-1],
                x=(floats, 0, cols),
                quants=quants,
                out=(outputs[rows], 0, rows),
                residual=(-1, 0, 0),
            )
        self._steps = {count: _Step.of(count) for count in NUM_TOKENS}

    def seconds(self, variant: str, num_tokens: int) -> float:
        """The time of one step of that many tokens."""
        self._native.multiply_with(self._format, variant)
        began = time.perf_counter()
        self._native.launch(*self._steps[num_tokens])
        return time.perf_counter() - began


class _Step(NamedTuple):
    """The arguments of a native launch: tokens of one row, without logits. Inputs are zeros, which take as long."""

    token_ids: Array
    positions: Array
    slots: Array
    row_of_token: Array
    starts: Array
    lengths: Array
    block_tables: Array
    logits_at: Array
    copies: Array
    groups: Array
    num_top: Array
    logits: Array
    top_tokens: Array
    top_logits: Array

    @classmethod
    def of(cls, num_tokens: int) -> _Step:
        """The first `num_tokens` tokens of a row."""
        places, zeros = np.arange(num_tokens, dtype=np.int32), np.zeros(num_tokens, np.int32)
        ends = np.array([0, num_tokens], np.int32)
        table = np.arange(-(-num_tokens // BLOCK_TOKENS), dtype=np.int32)[None]
        none, no_triples = np.zeros(0, np.int32), np.zeros((0, 3), np.int32)
        answers = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
        return cls(zeros, places, places, zeros, ends, ends[1:], table, none, no_triples, no_triples, none, *answers)


def to_bytes(module: ModuleType, pool: Any, choices: Choices) -> Array:
    """A choice as an array that can be kept, with the machine that it was measured on."""
    said = {
        "machine": _machine(module, pool),
        "choices": {format: asdict(choice) for format, choice in choices.items()},
    }
    return np.frombuffer(json.dumps(said).encode(), np.uint8)


def from_bytes(module: ModuleType, pool: Any, kept: Array | None) -> Choices | None:
    """A choice that was kept. None: nothing was measured, or on another machine."""
    if kept is None:
        return None
    try:
        said = json.loads(kept.tobytes())
        if said["machine"] != _machine(module, pool):
            return None
        return {format: Choice(**choice) for format, choice in said["choices"].items()} or None
    except (ValueError, KeyError, TypeError):
        logger.warning("the choice of kernels beside the lowered weights cannot be read: measuring again")
        return None


def _machine(module: ModuleType, pool: Any) -> list[str]:
    """All that a choice depends on."""
    return [*_processor(), *module.features(), *module.variants(), f"{pool.num_threads} threads"]


def _processor() -> Iterator[str]:
    yield platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            yield next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        yield platform.processor()
