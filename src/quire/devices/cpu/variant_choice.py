"""Measures which variant of the kernels multiplies fastest with a program's matrices.

Only variants that round a format's products alike are compared (`native.rounding`): they give the same bits, so the
choice affects speed and never text. It is cached with the lowered weights and read at the next start on this machine.

One variant computes a format's products of every step. Decoding one stream and reading prompts count alike, a few
streams half as much: the time of a variant is a geometric mean with these weights, so a variant that is 20 % slower
with one token must be 20 % faster with a prompt. A model that has no logits reads whole texts alone: it is measured
with a short text and with many tokens.
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

from .pack import LANES, QUANTIZED, Packed

Array = NDArray[Any]
logger = logging.getLogger("quire.devices.cpu")

MIN_BYTES = 16 << 20  # of matrices: with fewer, times are noise, and the widest variant is used
FEW_TOKENS_BYTES = 32 << 20  # of one format, for few tokens: more than a core's caches hold
MANY_TOKENS_BYTES = 4 << 20  # for many tokens, which are bound by arithmetic
FEW_TOKENS = 8  # up to here products are bound by reading weights
TOKEN_WEIGHTS = {1: 0.4, 4: 0.2, 64: 0.4}  # by tokens of a step: one stream, a few streams, a prompt or many streams
WHOLE_TEXT_WEIGHTS = {16: 0.2, 128: 0.8}  # one short text, long texts or several
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
TokenWeights = Mapping[int, float]  # by tokens of a step


def choose_variants(
    module: ModuleType, pool: Any, variant: str, matrices: list[Packed], weights: TokenWeights = TOKEN_WEIGHTS
) -> VariantChoices:
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
        probes = {
            num_tokens: ProductProbe(module, pool, variant, _sample(found, num_tokens), num_tokens)
            for num_tokens in weights
        }
        best, times = _fastest(probes, alike, variant, weights)
        chosen[format] = VariantChoice(best, {name: round(times[name] / times[best], 3) for name in alike})
        logger.info("%s products run on %s; relative times: %s", format, best, chosen[format].relative_times)
    return chosen


def _fastest(
    probes: Mapping[int, ProductProbe], variants: list[str], widest: str, weights: TokenWeights
) -> tuple[str, dict[str, float]]:
    """Return the fastest variant, and the times of all. A variant that beats the widest one is measured again, in more
    rounds: the choice is cached for later starts, and a busy machine may slow down one variant's first rounds."""
    times = _times(probes, variants, weights, NUM_ROUNDS)
    best = min(variants, key=times.__getitem__)
    if best != widest and times[best] < MARGIN * times[widest]:
        again = _times(probes, [widest, best], weights, 2 * NUM_ROUNDS)
        times |= {name: min(times[name], again[name]) for name in again}
    return (best if times[best] < MARGIN * times[widest] else widest), times


def _times(
    probes: Mapping[int, ProductProbe], variants: list[str], weights: TokenWeights, num_rounds: int
) -> dict[str, float]:
    """Return the weighted mean of the shortest times per size. Variants take turns, so that noise affects all."""
    shortest = {(name, count): math.inf for name in variants for count in probes}
    for _ in range(num_rounds):
        for name in variants:
            for count, probe in probes.items():
                shortest[name, count] = min(shortest[name, count], probe.seconds(name, count))
    return {name: math.prod(shortest[name, count] ** weights[count] for count in probes) for name in variants}


def _sample(matrices: list[Packed], num_tokens: int) -> list[Packed]:
    """Return evenly spaced matrices of as many bytes as that number of tokens needs to be measured."""
    total = sum(matrix.panels.nbytes for matrix in matrices)
    wanted = FEW_TOKENS_BYTES if num_tokens <= FEW_TOKENS else MANY_TOKENS_BYTES
    stride = max(1, round(total / wanted))
    sample, size = [], 0
    for matrix in matrices[::stride]:
        if size < wanted:
            sample.append(_beginning(matrix, wanted) if num_tokens > FEW_TOKENS else matrix)
            size += sample[-1].panels.nbytes
    return sample


def _beginning(matrix: Packed, num_bytes: int) -> Packed:
    """Return the first panels of a matrix, of about that many bytes: a large model has matrices of 100 MB."""
    rows, cols = matrix.shape
    num_panels = -(-rows // LANES)
    panel_bytes = matrix.panels.nbytes // num_panels
    kept = min(num_panels, max(1, num_bytes // panel_bytes))
    return Packed(matrix.format, (min(rows, kept * LANES), cols), matrix.panels[: kept * panel_bytes])


class ProductProbe:
    """A native program that only multiplies with these matrices, which are not copied."""

    def __init__(self, module: ModuleType, pool: Any, variant: str, matrices: list[Packed], most: int) -> None:
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
        self._step = _Step.of(most)

    def seconds(self, variant: str, num_tokens: int) -> float:
        """Measure one step of `num_tokens` tokens, with which the probe was made."""
        self._native.multiply_with(self._format, variant)
        began = time.perf_counter()
        self._native.launch(*self._step)
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


def to_bytes(module: ModuleType, pool: Any, choices: VariantChoices, weights: TokenWeights = TOKEN_WEIGHTS) -> Array:
    """Encode choices as an array, with the machine on which they were measured."""
    content = {
        "machine": _machine(module, pool, weights),
        "choices": {format: asdict(choice) for format, choice in choices.items()},
    }
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def from_bytes(
    module: ModuleType, pool: Any, array: Array | None, weights: TokenWeights = TOKEN_WEIGHTS
) -> VariantChoices | None:
    """Decode cached choices. None: there are none, or they were measured on another machine."""
    if array is None:
        return None
    try:
        content = json.loads(array.tobytes())
        if content["machine"] != _machine(module, pool, weights):
            return None
        return {format: VariantChoice(**choice) for format, choice in content["choices"].items()} or None
    except (ValueError, KeyError, TypeError):
        logger.warning("the cached choice of kernels cannot be read: measuring again")
        return None


def _machine(module: ModuleType, pool: Any, weights: TokenWeights) -> list[str]:
    """Return everything that a choice depends on."""
    sizes = ", ".join(f"{count} tokens {weight}" for count, weight in weights.items())
    return [*_processor(), *module.features(), *module.variants(), f"{pool.num_threads} threads", sizes]


def _processor() -> Iterator[str]:
    yield platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            yield next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        yield platform.processor()
