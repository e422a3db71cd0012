"""Measures which variant of the kernels multiplies fastest with a program's matrices.

Only variants that round a format's products alike are compared (`native.rounding`): they give the same bits, so the
choice affects speed and never text. It is cached with the lowered weights and read at the next start on this machine.
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

MIN_BYTES = 16 << 20  # of matrices: with fewer, times are noise, and the widest variant is used
SAMPLE_BYTES = 32 << 20  # of one format: more than a core's caches hold
NUM_TOKENS = (1, 16)  # decoding of one stream is bound by reading weights, 16 tokens by arithmetic
NUM_ROUNDS = 4
MARGIN = 0.97  # another variant is chosen only if its time is below this fraction of the widest one's
BLOCK_TOKENS = 16
KEY = "kernels"  # name of the array that stores the choices; no matrix has such a label


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The variant for one format's products, and how the others compare."""

    variant: str
    relative_times: Mapping[str, float]  # by variant, 1 for the chosen one; empty: nothing was measured


VariantChoices = Mapping[str, VariantChoice]  # by format


def choose_variants(module: ModuleType, pool: Any, variant: str, matrices: list[Packed]) -> VariantChoices:
    """Measure the variants that round as `variant` does, on samples of these matrices; takes about 0.1 s per format."""
    by_format: dict[str, list[Packed]] = {}
    for matrix in matrices:
        by_format.setdefault(matrix.format, []).append(matrix)
    chosen: dict[str, VariantChoice] = {}
    for format, found in sorted(by_format.items()):
        rounding = module.rounding(variant, format)
        alike = [name for name in module.variants() if module.rounding(name, format) == rounding]
        if len(alike) == 1 or sum(matrix.panels.nbytes for matrix in found) < MIN_BYTES:
            chosen[format] = VariantChoice(variant, {})
            continue
        best, times = _fastest(_Probe(module, pool, variant, _sample(found)), alike, variant)
        chosen[format] = VariantChoice(best, {name: round(times[name] / times[best], 3) for name in alike})
        logger.info("%s products run on %s; relative times: %s", format, best, chosen[format].relative_times)
    return chosen


def _fastest(probe: _Probe, variants: list[str], widest: str) -> tuple[str, dict[str, float]]:
    """Return the fastest variant, and the times of all. A variant that beats the widest one is measured again, in more
    rounds: the choice is cached for later starts, and a busy machine may slow down one variant's first rounds."""
    times = _times(probe, variants, NUM_ROUNDS)
    best = min(variants, key=times.__getitem__)
    if best != widest and times[best] < MARGIN * times[widest]:
        again = _times(probe, [widest, best], 2 * NUM_ROUNDS)
        times |= {name: min(times[name], again[name]) for name in again}
    return (best if times[best] < MARGIN * times[widest] else widest), times


def _times(probe: _Probe, variants: list[str], num_rounds: int) -> dict[str, float]:
    """Return the geometric mean of the shortest times per size. Variants take turns, so that noise affects all."""
    shortest = {(name, count): math.inf for name in variants for count in NUM_TOKENS}
    for _ in range(num_rounds):
        for name in variants:
            for count in NUM_TOKENS:
                shortest[name, count] = min(shortest[name, count], probe.seconds(name, count))
    return {name: math.sqrt(math.prod(shortest[name, count] for count in NUM_TOKENS)) for name in variants}


def _sample(matrices: list[Packed]) -> list[Packed]:
    """Return evenly spaced matrices of SAMPLE_BYTES in total."""
    total = sum(matrix.panels.nbytes for matrix in matrices)
    stride = max(1, round(total / SAMPLE_BYTES))
    sample, size = [], 0
    for matrix in matrices[::stride]:
        if size < SAMPLE_BYTES:
            sample.append(matrix)
            size += matrix.panels.nbytes
    return sample


class _Probe:
    """A native program that only multiplies with these matrices, which are not copied."""

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
        """Measure one step of that many tokens."""
        self._native.multiply_with(self._format, variant)
        began = time.perf_counter()
        self._native.launch(*self._steps[num_tokens])
        return time.perf_counter() - began


class _Step(NamedTuple):
    """The arguments of a native launch: tokens of one row, without logits. Inputs are zeros: the time is the same."""

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
        """Return a step with the first `num_tokens` tokens of a row."""
        positions, zeros = np.arange(num_tokens, dtype=np.int32), np.zeros(num_tokens, np.int32)
        ends = np.array([0, num_tokens], np.int32)
        table = np.arange(-(-num_tokens // BLOCK_TOKENS), dtype=np.int32)[None]
        none, no_triples = np.zeros(0, np.int32), np.zeros((0, 3), np.int32)
        outputs = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
        tokens = zeros, positions, positions, zeros
        return cls(*tokens, ends, ends[1:], table, none, no_triples, no_triples, none, *outputs)


def to_bytes(module: ModuleType, pool: Any, choices: VariantChoices) -> Array:
    """Encode choices as an array, with the machine on which they were measured."""
    content = {
        "machine": _machine(module, pool),
        "choices": {format: asdict(choice) for format, choice in choices.items()},
    }
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def from_bytes(module: ModuleType, pool: Any, array: Array | None) -> VariantChoices | None:
    """Decode cached choices. None: there are none, or they were measured on another machine."""
    if array is None:
        return None
    try:
        content = json.loads(array.tobytes())
        if content["machine"] != _machine(module, pool):
            return None
        return {format: VariantChoice(**choice) for format, choice in content["choices"].items()} or None
    except (ValueError, KeyError, TypeError):
        logger.warning("the cached choice of kernels cannot be read: measuring again")
        return None


def _machine(module: ModuleType, pool: Any) -> list[str]:
    """Return everything that a choice depends on."""
    return [*_processor(), *module.features(), *module.variants(), f"{pool.num_threads} threads"]


def _processor() -> Iterator[str]:
    yield platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            yield next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        yield platform.processor()
