"""Times products with matrices of zeros, with any number of threads and by every variant of the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quire.devices.base import Peaks
from quire.quant.registry import all_formats

from .bindings import native
from .pack import LANES, Packed
from .threads import allowed_threads
from .variant_choice import ProductProbe

COLS = 4096
FEW_TOKENS, MANY_TOKENS = (1, 8), (64, 512)  # bound by reading weights, and by arithmetic
MANY_TOKENS_SHARE = 16  # many tokens are multiplied with one part in so many of the matrix
NUM_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """The fastest times of one variant's products with one matrix."""

    format: str
    variant: str
    read_bytes: dict[int, float]  # a second, by tokens
    multiply_adds: dict[int, float]  # a second, by tokens


def thread_counts() -> tuple[int, ...]:
    """Return the powers of two below the threads that this process may use, and all of these."""
    allowed = allowed_threads()
    return (*(1 << i for i in range(allowed.bit_length()) if 1 << i < allowed), allowed)


def peaks_with(num_threads: int, seconds: float = 0.5) -> Peaks:
    """Measure the machine's peak rates with so many threads, by the widest variant."""
    module = native()
    assert module is not None
    variant, pool = module.variants()[0], module.Pool(num_threads)
    rates = (
        module.read_bytes_per_second(variant, pool, seconds),
        module.multiply_adds_per_second(variant, pool, seconds),
    )
    return Peaks(*rates, num_threads, variant)


def time_products(num_threads: int, formats: Sequence[str], num_bytes: int) -> Iterator[ProductTimes]:
    """Time products with a matrix of about that many bytes in each format, by all variants but the portable one."""
    module = native()
    assert module is not None
    pool = module.Pool(num_threads)
    for format in formats:
        matrix = _matrix(format, num_bytes)
        part = _first_rows(matrix, max(LANES, matrix.shape[0] // MANY_TOKENS_SHARE))
        variants = [name for name in module.variants() if name != "baseline"] or ["baseline"]
        samples = {**dict.fromkeys(FEW_TOKENS, matrix), **dict.fromkeys(MANY_TOKENS, part)}
        seconds: dict[tuple[str, int], float] = {}
        for count, sample in samples.items():
            # A probe for each variant: the chunks of tokens depend on the one that a program is made for.
            probes = {name: ProductProbe(module, pool, name, [sample], count) for name in variants}
            for _ in range(NUM_ROUNDS):
                for name, probe in probes.items():
                    seconds[name, count] = min(probe.seconds(name, count), seconds.get((name, count), np.inf))
        for name in variants:
            read = {count: matrix.panels.nbytes / seconds[name, count] for count in FEW_TOKENS}
            products = {count: count * part.shape[0] * COLS / seconds[name, count] for count in MANY_TOKENS}
            yield ProductTimes(format, name, read, products)


def _matrix(format: str, num_bytes: int) -> Packed:
    row_bytes = COLS // all_formats()[format].block_weights * all_formats()[format].block_bytes
    rows = max(1, num_bytes // row_bytes // LANES) * LANES
    module = native()
    assert module is not None
    program = module.Program("baseline", module.Pool(1), [1, 1, 1, 1, 1, 16])
    index = program.matrix(format, COLS, np.zeros((rows, row_bytes), np.uint8))
    return Packed(format, (rows, COLS), program.panels(index))


def _first_rows(matrix: Packed, rows: int) -> Packed:
    kept = rows // LANES * LANES
    return Packed(matrix.format, (kept, COLS), matrix.panels[: matrix.panels.nbytes // matrix.shape[0] * kept])
