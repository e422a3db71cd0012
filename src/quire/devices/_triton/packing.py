"""The packed layout of quantized matrices (see packed.py), made of blocks as GGUF files store them, or of Int4.

A matrix [N, K] becomes a run of bytes: words of values [N, KP / 4], of 8 bits [N, KP / 2], row after row; the plane of
bits beyond four [N, KP / 8], of one or two bits for each of eight spans; then words of scales [blocks, words, N]. KP is
K, rounded up to whole blocks. No number is rounded. Sizes are those of the file, but for 2 % of q4_k and q5_k, whose
scales of 6 bits become bytes; q2_k and q3_k have 4 bits here, and values of a table (iq4_nl, iq4_xs) have 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.quant.iq4_nl import LEVELS

MAX_EXPONENT = 128  # of mxfp4: a larger power of two would overflow where it is multiplied with values
FLOATS = -1  # an "offset": values are 4-bit floats
POINT_BITS = 6  # of a word of `point`
FLOATS_STD = 2.94  # of the 4-bit floats, each equally likely


class PackedFormat(NamedTuple):
    """How one number format is packed. `constants` are those of the kernels."""

    bits: int  # of a value
    offset: int  # subtracted from values, or FLOATS
    span: int  # columns
    block: int  # columns
    meta: str  # kind of scales, see packed.scale_and_zero
    meta_words: int  # of a block

    def padded(self, columns: int) -> int:
        """Columns rounded up to whole blocks."""
        return -(-columns // self.block) * self.block

    def num_bytes(self, rows: int, columns: int) -> int:
        """Size of a matrix."""
        padded = self.padded(columns)
        return rows * (padded * self.bits // 8 + padded // self.block * self.meta_words * 4)


PACKED = {
    "q4_0": PackedFormat(4, 8, 32, 128, "half", 2),
    "q4_1": PackedFormat(4, 0, 32, 128, "pair", 4),
    "q5_0": PackedFormat(5, 16, 32, 256, "half", 4),
    "q5_1": PackedFormat(5, 0, 32, 256, "pair", 8),
    "q8_0": PackedFormat(8, 0, 32, 128, "half", 2),
    "q2_k": PackedFormat(4, 0, 16, 256, "super_4", 5),
    "q3_k": PackedFormat(4, 4, 16, 256, "super_16", 5),
    "q4_k": PackedFormat(4, 0, 32, 256, "super", 5),
    "q5_k": PackedFormat(5, 0, 32, 256, "super", 5),
    "q6_k": PackedFormat(6, 32, 16, 256, "super_16", 5),
    "iq4_nl": PackedFormat(8, 0, 32, 128, "half", 2),
    "iq4_xs": PackedFormat(8, 0, 16, 256, "super_16", 5),
    "mxfp4": PackedFormat(4, FLOATS, 32, 128, "exponent", 1),
    "int4": PackedFormat(4, 0, 32, 128, "point", 4),  # groups of 32 or 64
    "int4_128": PackedFormat(4, 0, 32, 128, "points", 1),  # groups of a multiple of 128
}


class Unpacked(NamedTuple):
    """A matrix as bytes: values before the offset is subtracted, and the words of scales."""

    values: Tensor  # uint8 [N, K]
    meta: Tensor  # int32 [N, blocks of the format, words]


class CannotPack(Exception):
    """A matrix has numbers that its packed format does not hold."""


def unpack_blocks(format: str, raw: Tensor) -> Unpacked:
    """Unpack a matrix of a GGUF format, uint8 [N, bytes of a row]."""
    unpacked = _UNPACK[format](raw)
    if PACKED[format].meta == "exponent" and int(unpacked.meta.view(torch.uint8).max()) > MAX_EXPONENT:
        raise CannotPack("powers of two above 2")
    return unpacked


def int4_format(group: int) -> str | None:
    """Return the packed format of 4-bit values in groups of this size. None: there is none."""
    if group % 128 == 0:
        return "int4_128"
    return "int4" if group in (32, 64) else None


def unpack_int4(packed: Tensor, scales: Tensor, zeros: Tensor) -> Unpacked:
    """Unpack values two per byte in order [N, K / 2], with float32 scales and zeros [N, groups]."""
    group = 2 * packed.shape[1] // scales.shape[1]
    name = int4_format(group)
    assert name is not None
    doubled = 2 * zeros / torch.where(scales == 0, 1.0, scales)
    points = doubled.round()
    if (doubled - points).abs().max() > 1e-2 or points.min() < 0 or points.max() >= 1 << POINT_BITS:
        raise CannotPack("zeros that are no halves of integers from 0 to 31")
    words = (scales.contiguous().view(torch.int32) & -(1 << POINT_BITS)) | points.to(torch.int32)
    words = words.repeat_interleave(group // (128 if name == "int4_128" else 32), 1)
    per_block = PACKED[name].meta_words
    words = torch.nn.functional.pad(words, (0, -words.shape[1] % per_block)).view(len(words), -1, per_block)
    return Unpacked(torch.stack([packed & 15, packed >> 4], -1).flatten(1), words)


def random_unpacked(packed: PackedFormat, shape: tuple[int, int], std: float, device: torch.device) -> Unpacked:
    """Make a random matrix of about this standard deviation, all values equally likely: for benchmarks."""
    (rows, columns), top = shape, 2 * packed.offset if packed.offset > 0 else 1 << packed.bits
    values = torch.randint(0, top, shape, dtype=torch.uint8, device=device)
    is_float = packed.offset == FLOATS
    scale = std / (FLOATS_STD if is_float else top / math.sqrt(12))
    middle = 0.0 if packed.bits == 8 else (top - 1) / 2
    is_added = packed.meta == "pair"  # other minima are subtracted
    halves = torch.tensor(
        [scale, middle * scale * (-1 if is_added else 1), scale / 32, middle * scale / 32], dtype=torch.float16
    ).view(torch.int16)
    one, minimum, of_32, minimum_of_32 = (int(each) & 0xFFFF for each in halves)
    point = (int(torch.tensor(scale).view(torch.int32)) & -(1 << POINT_BITS)) | round(2 * middle)
    words = {
        "half": [one << 16 | one] * packed.meta_words,
        "pair": [minimum << 16 | one] * packed.meta_words,
        "point": [point] * packed.meta_words,
        "points": [point],
        "super": [minimum_of_32 << 16 | of_32, *[0x20202020] * 4],
        "super_16": [of_32, *[0xA0A0A0A0] * 4],
        "super_4": [minimum << 16 | one, *[0x11111111] * 4],
        "exponent": [0x01010101 * (127 + round(math.log2(scale)))],
    }[packed.meta]
    signed = [word - (1 << 32) if word >= 1 << 31 else word for word in words]
    meta = torch.tensor(signed, dtype=torch.int32, device=device)
    return Unpacked(values, meta.expand(rows, packed.padded(columns) // packed.block, -1))


def join_rows(parts: Sequence[Unpacked]) -> Unpacked:
    """Concatenate the rows of matrices."""
    return Unpacked(*map(torch.cat, zip(*parts, strict=True)))


def pack(packed: PackedFormat, unpacked: Unpacked) -> Tensor:
    """Make the run of bytes of a matrix: uint8."""
    values, meta = unpacked
    rows, columns = values.shape
    padded = packed.padded(columns)
    zero = 0 if packed.bits == 8 else max(packed.offset, 0)
    values = torch.nn.functional.pad(values, (0, padded - columns), value=zero)
    missing = padded // packed.block - meta.shape[1]
    meta = torch.nn.functional.pad(meta, (0, 0, 0, missing))
    parts = [_words(packed, values)]
    if packed.bits in (5, 6):
        parts.append(_high(packed, values))
    parts.append(meta.permute(1, 2, 0).contiguous().view(torch.uint8).reshape(-1))
    out = torch.cat([part.reshape(-1) for part in parts])
    assert len(out) == packed.num_bytes(rows, columns)
    return out


def _words(packed: PackedFormat, values: Tensor) -> Tensor:
    """The words of values of 4 or 8 bits, as bytes."""
    rows, span = len(values), packed.span
    if packed.bits == 8:
        return values.view(rows, -1, 2, span).transpose(2, 3).contiguous()
    four = (values & 15).view(rows, -1, 4, span)
    if packed.offset == FLOATS:
        return float_words(four).contiguous().view(torch.uint8)
    low, high = four[:, :, 0] | (four[:, :, 1] << 4), four[:, :, 2] | (four[:, :, 3] << 4)
    return torch.stack([low, high], -1)


def float_words(four: Tensor) -> Tensor:
    """Words of four 4-bit floats [N, words, 4, span] in the order of bits that the kernel needs: int16.

    The first three: sign at bit 15, exponent and mantissa at bits 8..6, all 3 lower for each. The last: sign at bit 14,
    exponent at bits 11 and 10, mantissa at bit 13.
    """
    codes = four.to(torch.int32)
    sign, rest = codes >> 3, codes & 7
    out = torch.zeros_like(codes[:, :, 0])
    for i in range(3):
        out |= (sign[:, :, i] << (15 - 3 * i)) | (rest[:, :, i] << (6 - 3 * i))
    last = rest[:, :, 3]
    out |= (sign[:, :, 3] << 14) | (last >> 1 << 10) | ((last & 1) << 13)
    return out.to(torch.int16)


def _high(packed: PackedFormat, values: Tensor) -> Tensor:
    """The plane of bits beyond four, as bytes: of eight spans, the first in the lowest bits."""
    bits = packed.bits - 4
    spans = (values >> 4).to(torch.int32).view(len(values), -1, 8, packed.span)
    out = torch.zeros_like(spans[:, :, 0])
    for i in range(8):
        out |= spans[:, :, i] << (bits * i)
    return out.to(torch.uint8) if bits == 1 else out.to(torch.int16).contiguous().view(torch.uint8)


# --- blocks of GGUF files: see quire/quant for their layouts


def _blocks(raw: Tensor, num_bytes: int) -> Tensor:
    return raw.reshape(len(raw), -1, num_bytes)


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] bytes -> [..., 2 n]: the low halves, then the high halves."""
    return torch.cat([packed & 15, packed >> 4], -1)


def _as_words(packed: Tensor, per_block: int) -> Tensor:
    """[N, blocks, bytes] of the file's blocks -> words of ours, int32 [N, blocks, per_block]; the last are padded."""
    rows = len(packed)
    flat = packed.reshape(rows, -1)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % (4 * per_block))).contiguous()
    return flat.view(torch.int32).view(rows, -1, per_block)


def _q4_0(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 18)
    return Unpacked(_nibbles(blocks[..., 2:]).flatten(1), _as_words(blocks[..., :2], 2))


def _q4_1(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 20)
    return Unpacked(_nibbles(blocks[..., 4:]).flatten(1), _as_words(blocks[..., :4], 4))


def _fifth_bits(packed: Tensor) -> Tensor:
    """4 bytes -> 32 bits of weight 16."""
    shifts = torch.arange(8, device=packed.device, dtype=torch.uint8)
    return (((packed[..., None] >> shifts) & 1) << 4).flatten(-2)


def _q5_0(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 22)
    values = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return Unpacked(values.flatten(1), _as_words(blocks[..., :2], 4))


def _q5_1(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 24)
    values = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return Unpacked(values.flatten(1), _as_words(blocks[..., :4], 8))


def _q8_0(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 34)
    return Unpacked(blocks[..., 2:].flatten(1), _as_words(blocks[..., :2], 2))


def _mxfp4(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 17)
    return Unpacked(_nibbles(blocks[..., 1:]).flatten(1), _as_words(blocks[..., :1], 1))


def _super_words(blocks: Tensor) -> Tensor:
    """d and dmin, scales and minima of q4_k and q5_k: the first 16 bytes of a block."""
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    return _as_words(torch.cat([blocks[..., :4], scales, minima], -1), 5)


def _of_pairs(packed: Tensor, size: int) -> Tensor:
    """Nibbles of runs of `size` bytes: [N, blocks, bytes] -> [N, blocks, 2 * bytes]."""
    return _nibbles(packed.reshape(*packed.shape[:2], -1, size)).flatten(2)


def _planes(packed: Tensor, bits: int) -> Tensor:
    """Runs of 32 bytes, each with 8 / bits runs of 32 values: [N, blocks, bytes] -> [N, blocks, 8 / bits * bytes]."""
    shifts = torch.arange(0, 8, bits, device=packed.device, dtype=torch.uint8)[:, None]
    runs = packed.reshape(*packed.shape[:2], -1, 1, 32)
    return ((runs >> shifts) & ((1 << bits) - 1)).flatten(2)


def _q4_k(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 144)
    return Unpacked(_of_pairs(blocks[..., 16:], 32).flatten(1), _super_words(blocks))


def _q5_k(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 176)
    values = _of_pairs(blocks[..., 48:], 32) | (_planes(blocks[..., 16:48], 1) << 4)
    return Unpacked(values.flatten(1), _super_words(blocks))


def _signed_words(d: Tensor, scales: Tensor) -> Tensor:
    """d, and signed scales, as bytes with 128 added: 128 more or less flips the top bit."""
    return _as_words(torch.cat([d, torch.zeros_like(d), scales ^ 128], -1), 5)


def _q6_k(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 210)
    values = _of_pairs(blocks[..., :128], 64) | (_planes(blocks[..., 128:192], 2) << 4)
    return Unpacked(values.flatten(1), _signed_words(blocks[..., 208:], blocks[..., 192:208]))


def _q3_k(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 110)
    values = _planes(blocks[..., 32:96], 2) | (_planes(blocks[..., :32], 1) << 2)
    low, high = _nibbles(blocks[..., 96:104]), blocks[..., 104:108]
    shifts = torch.arange(0, 8, 2, device=raw.device, dtype=torch.uint8)[:, None]
    top = ((high[..., None, :] >> shifts) & 3).flatten(2)
    scales = (low | (top << 4)) - 32  # wraps to the bytes of signed numbers
    return Unpacked(values.flatten(1), _signed_words(blocks[..., 108:], scales))


def _q2_k(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 84)
    return Unpacked(_planes(blocks[..., 16:80], 2).flatten(1), _as_words(blocks[..., [*range(80, 84), *range(16)]], 5))


def _from_table(packed: Tensor) -> Tensor:
    """Values of the table of iq4_nl and iq4_xs, as signed bytes."""
    return torch.from_numpy(LEVELS).to(packed.device)[packed.long()].view(torch.uint8)


def _iq4_nl(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 18)
    return Unpacked(_from_table(_nibbles(blocks[..., 2:])).flatten(1), _as_words(blocks[..., :2], 2))


def _iq4_xs(raw: Tensor) -> Unpacked:
    blocks = _blocks(raw, 136)
    high = blocks[..., 2:4].contiguous().view(torch.int16).int() & 0xFFFF
    group = torch.arange(8, device=raw.device, dtype=torch.int32)
    low = (blocks[..., 4:8].repeat_interleave(2, -1).int() >> (4 * (group % 2))) & 15
    scales = ((low | (((high >> (2 * group)) & 3) << 4)) - 32).to(torch.int8).view(torch.uint8)
    values = _from_table(_of_pairs(blocks[..., 8:], 16))
    return Unpacked(values.flatten(1), _signed_words(blocks[..., :2], scales.repeat_interleave(2, -1)))


_UNPACK: dict[str, Callable[[Tensor], Unpacked]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
}
