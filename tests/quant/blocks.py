"""Random blocks in every format: with scales of any magnitude, or like the weights of a model."""

from __future__ import annotations

import numpy as np

from quire.quant.format import QuantFormat

# Offsets of the float16 scales in a block. Random bytes there would sometimes be NaN, which tests nothing.
FLOAT16_AT = {
    "f16": [0], "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "q2_k": [80, 82],
    "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "iq4_nl": [0], "iq4_xs": [0],
}  # fmt: skip
# The minimum in units of the scale: minus the middle of the quants, so that weights have both signs. The first two
# formats add it, the others subtract it.
MIDDLES = {"q4_1": -7.5, "q5_1": -15.5, "q2_k": 1.5, "q4_k": 7.5, "q5_k": 15.5}


def random_blocks(fmt: QuantFormat, num_blocks: int, seed: int) -> np.ndarray:
    """Random bytes with finite float16 scales of every magnitude and sign."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (num_blocks, fmt.block_bytes), dtype=np.uint8)
    for at in FLOAT16_AT.get(fmt.name, []):
        bits = raw[:, at : at + 2].view("<u2")
        bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF  # infinities and NaN become subnormal numbers
    return raw


def weight_blocks(fmt: QuantFormat, num_blocks: int, seed: int, deviation: float = 0.05) -> np.ndarray:
    """Random quants with scales of similar magnitude and either sign, so that every block matters in a product."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (num_blocks, fmt.block_bytes), dtype=np.uint8)
    if fmt.name == "mxfp4":
        raw[:, 0] = rng.integers(120, 123, num_blocks)
        return raw
    scales = rng.uniform(0.5, 1.5, num_blocks) * rng.choice([-1, 1], num_blocks)
    put_scales(fmt, raw, scales)
    put_scales(fmt, raw, scales * deviation / fmt.dequantize(raw).std())
    return raw


def put_scales(fmt: QuantFormat, raw: np.ndarray, scales: np.ndarray) -> None:
    """Write each block's scale, and its minimum where the format has one."""
    for at, times in zip(FLOAT16_AT[fmt.name], (1.0, MIDDLES.get(fmt.name, 0.0)), strict=False):
        raw[:, at : at + 2] = (scales * times).astype("<f2")[:, None].view(np.uint8)
