"""Products with quantized matrices in their packed layout: values of few bits, and the scales of their groups.

Columns are divided into blocks, and the values of a block into spans of neighbouring columns, all with one scale in a
row. A word of 16 bits has the values of four columns that are a span apart, so the i-th values of neighbouring words
are neighbouring columns: both sides of a product are read in memory order, without shuffles. Bits beyond four are in a
plane of their own. The scales of a block are a few words of 32 bits, apart from the values, with neighbouring rows side
by side.

A value becomes a bfloat16 by setting bits, two at a time: an integer q as 128 + q, from which 128 is subtracted, a
4-bit float as one with the smallest exponents, which is multiplied with the scale: all of that is exact. Products with
integers are summed over a span, and then scaled, for few tokens; for many, that would be more work than to scale the
integers and round them to the activations' format. `packing.py` beside this file makes the layout.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packing import PACKED

FEW = tl.constexpr(16)  # tokens of a program whose sums are scaled
NATIVE = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has no assembler


def _pairs(steps: list[str], temporaries: str = "a") -> str:
    return "{ .reg .b32 " + temporaries + ", c;\n" + "\n".join(steps) + "\n}"


def _subtract(offset: int, count: int) -> list[str]:
    """Subtract 128, from which on the last bits of a bfloat16 are integers, and the offset of a format."""
    bits = 0x4300 + offset
    return [f"mov.b32 c, 0x{bits:04X}{bits:04X};", *(f"sub.bf16x2 ${i}, ${i}, c;" for i in range(count))]


def _four(offset: int) -> str:
    cuts = [f"shr.b32 a, $4, {4 * i}; lop3.b32 ${i}, a, 0x000F000F, 0x43004300, 0xEA;" for i in range(4)]
    return _pairs([*cuts, *_subtract(offset, 4)])


def _more(offset: int, bits: int, first: int) -> str:
    """Four bits, and `bits` more from the plane ($5): the value of span i has them at (first + i) * bits."""
    steps = []
    mask = (1 << bits) - 1 << 4
    for i in range(4):
        left = 4 - (first + i) * bits
        steps += [
            f"shr.b32 a, $4, {4 * i}; lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA;",
            f"{'shl' if left >= 0 else 'shr'}.b32 b, $5, {abs(left)};",
            f"lop3.b32 ${i}, b, 0x{mask:04X}{mask:04X}, a, 0xEA;",
        ]
    return _pairs([*steps, *_subtract(offset, 4)], "a, b")


def _eight() -> str:
    """Two signed bytes: the seven low bits less 0 or 128, both with 128 added."""
    steps = []
    for i in range(2):
        steps += [
            f"shr.b32 a, $2, {8 * i};",
            f"lop3.b32 ${i}, a, 0x007F007F, 0x43004300, 0xEA;",
            "lop3.b32 c, a, 0x00800080, 0x43004300, 0xEA;",
            f"sub.bf16x2 ${i}, ${i}, c;",
        ]
    return _pairs(steps)


def _floats() -> str:
    """Sign to bit 15, exponent and mantissa to bits 8..6, for the order of bits that `packing.float_words` makes."""
    cuts = ["lop3.b32 $0, $4, 0x81C081C0, 0, 0xC0;"]
    cuts += [f"shl.b32 a, $4, {3 * i}; and.b32 ${i}, a, 0x81C081C0;" for i in (1, 2)]
    cuts += ["shl.b32 a, $4, 1; and.b32 $3, a, 0x80008000;"]
    cuts += ["shr.b32 a, $4, 3; lop3.b32 $3, a, 0x01800180, $3, 0xEA;"]
    cuts += ["shr.b32 a, $4, 7; lop3.b32 $3, a, 0x00400040, $3, 0xEA;"]
    return "{ .reg .b32 a;\n" + "\n".join(cuts) + "\n}"


FOUR_0, FOUR_4, FOUR_8 = (tl.constexpr(_four(offset)) for offset in (0, 4, 8))
FIVE_0, FIVE_0_NEXT = (tl.constexpr(_more(0, 1, first)) for first in (0, 4))
FIVE_16, FIVE_16_NEXT = (tl.constexpr(_more(16, 1, first)) for first in (0, 4))
SIX, SIX_NEXT = (tl.constexpr(_more(32, 2, first)) for first in (0, 4))
EIGHT = tl.constexpr(_eight())
FLOATS = tl.constexpr(_floats())


@triton.jit
def _integers(p, i: tl.constexpr, OFF: tl.constexpr):
    return (((p.to(tl.int32) >> (4 * i)) & 15) - OFF).to(tl.float32).to(tl.bfloat16)


@triton.jit
def _longer(p, high, i: tl.constexpr, MORE: tl.constexpr, OFF: tl.constexpr):
    top = (high.to(tl.int32) >> (i * MORE)) & ((1 << MORE) - 1)
    return ((((p.to(tl.int32) >> (4 * (i % 4))) & 15) | (top << 4)) - OFF).to(tl.float32).to(tl.bfloat16)


@triton.jit
def _float(p, i: tl.constexpr):
    """The bits of a 4-bit float at those of a bfloat16: its value times 2 ** -126. In float32, for the interpreter."""
    p = p.to(tl.int32)
    if i < 3:
        bits = (p << (3 * i)) & 0x81C0
    else:
        bits = ((p << 1) & 0x8000) | ((p >> 3) & 0x0180) | ((p >> 7) & 0x0040)
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _asm(CODE: tl.constexpr, p):
    return tl.inline_asm_elementwise(
        CODE, "=r,=r,=r,=r,r", [p], dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
    )


@triton.jit
def _asm_more(CODE: tl.constexpr, p, high):
    return tl.inline_asm_elementwise(
        CODE, "=r,=r,=r,=r,r,r", [p, high], dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True,
        pack=2,
    )  # fmt: skip


@triton.jit
def widen(p, high, BITS: tl.constexpr, OFF: tl.constexpr, FIRST: tl.constexpr):
    """The four values of words [BN, SPAN], less the offset, in bfloat16; `high`: bits beyond four, from value FIRST on.

    Of 8 bits there are two values, returned twice.
    """
    if BITS == 8:
        if NATIVE:
            one, other = tl.inline_asm_elementwise(
                EIGHT, "=r,=r,r", [p], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
            )
        else:
            one = (p.to(tl.int32) << 24 >> 24).to(tl.float32).to(tl.bfloat16)
            other = (p.to(tl.int32) >> 8).to(tl.float32).to(tl.bfloat16)
        return one, other, one, other
    elif BITS > 4:
        if not NATIVE:
            return (
                _longer(p, high, FIRST, BITS - 4, OFF), _longer(p, high, FIRST + 1, BITS - 4, OFF),
                _longer(p, high, FIRST + 2, BITS - 4, OFF), _longer(p, high, FIRST + 3, BITS - 4, OFF),
            )  # fmt: skip
        elif BITS == 6:
            return _asm_more(SIX if FIRST == 0 else SIX_NEXT, p, high)
        elif OFF == 16:
            return _asm_more(FIVE_16 if FIRST == 0 else FIVE_16_NEXT, p, high)
        else:
            return _asm_more(FIVE_0 if FIRST == 0 else FIVE_0_NEXT, p, high)
    elif NATIVE:
        return _asm(FLOATS if OFF == -1 else FOUR_8 if OFF == 8 else FOUR_4 if OFF == 4 else FOUR_0, p)
    elif OFF == -1:
        return _float(p, 0), _float(p, 1), _float(p, 2), _float(p, 3)
    else:
        return _integers(p, 0, OFF), _integers(p, 1, OFF), _integers(p, 2, OFF), _integers(p, 3, OFF)


@triton.jit
def _half(word, i: tl.constexpr):
    """One of the two float16 in words of 32 bits, as float32."""
    return (word >> (16 * i)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _byte(word, i: tl.constexpr):
    """One of the four bytes in words of 32 bits, as float32: set in the last bits of 2 ** 23, which is subtracted."""
    return (((word >> (8 * i)) & 255) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _times_power(values, meta, span: tl.constexpr):
    """4-bit floats with the exponents that `widen` gives them, times the power of two of their rows: exact."""
    exponent = (tl.load(meta) >> (8 * span)) & 255
    power = ((exponent + 126) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)[:, None]
    if NATIVE:
        return tl.inline_asm_elementwise(
            "mul.bf16x2 $0, $1, $2;", "=r,r,r", [values, tl.broadcast_to(power, values.shape)], dtype=tl.bfloat16,
            is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return (values.to(tl.float32) * power.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def scale_and_zero(meta, N, span: tl.constexpr, META: tl.constexpr):
    """Of a span in the block whose words begin at `meta` [BN]: weight = value * scale - zero, both float32 [BN].

    Words of a block are N apart:
    exponent       4 bytes: powers of two, see `_times_power`
    half           2 float16 in a word: scales
    pair           float16 scale, float16 minimum in a word for each span
    point          for each span, or with `points` for the block: a float32 scale whose lowest 6 bits are twice the zero
    super          float16 d and dmin, then 8 bytes of scales, 8 bytes of minima
    super_4        float16 d and dmin, then 16 bytes: a scale in the low nibble, a minimum in the high one
    super_16       float16 d, then 16 bytes of scales, 128 added to each
    """
    if META == "half":
        scale = _half(tl.load(meta + (span // 2) * N), span % 2)
        zero = tl.zeros_like(scale)
    elif META == "pair":
        word = tl.load(meta + span * N)
        scale = _half(word, 0)
        zero = -_half(word, 1)
    elif META == "point" or META == "points":
        word = tl.load(meta + span * N) if META == "point" else tl.load(meta)
        scale = (word & -64).to(tl.float32, bitcast=True)
        zero = scale * ((word & 63).to(tl.float32) * 0.5)
    elif META == "super":
        word = tl.load(meta)
        scale = _half(word, 0) * _byte(tl.load(meta + (1 + span // 4) * N), span % 4)
        zero = _half(word, 1) * _byte(tl.load(meta + (3 + span // 4) * N), span % 4)
    elif META == "super_4":
        word = tl.load(meta)
        both = tl.load(meta + (1 + span // 4) * N) >> (8 * (span % 4))
        scale = _half(word, 0) * _byte(both & 15, 0)
        zero = _half(word, 1) * _byte((both >> 4) & 15, 0)
    else:
        tl.static_assert(META == "super_16", "the kernel lacks a kind of scales")
        byte = _byte(tl.load(meta + (1 + span // 4) * N), span % 4)
        scale = _half(tl.load(meta), 0) * (byte - 128.0)
        zero = tl.zeros_like(scale)
    return scale, zero


@triton.constexpr_function
def is_packed(format: str) -> bool:
    """Is this a format of `packing.py`?"""
    return format in PACKED


@triton.constexpr_function
def _of(format: str, field: str):
    return getattr(PACKED[format], field)


@triton.constexpr_function
def _padded(format: str, columns: int) -> int:
    return PACKED[format].padded(columns)


@triton.jit
def load_words(address, rows, first, WIDTH: tl.constexpr, SPAN: tl.constexpr):
    """Words first .. first + SPAN - 1 of rows of WIDTH words: int16 [BN, SPAN]."""
    words = address.to(tl.pointer_type(tl.int16)) + rows[:, None] * WIDTH
    return tl.load(words + (first + tl.arange(0, SPAN))[None, :])


@triton.jit
def _load_high(address, rows, first, WIDTH: tl.constexpr, SPAN: tl.constexpr, BITS: tl.constexpr):
    """The bits beyond four of eight spans, one or two for each: int16 [BN, SPAN]."""
    inside = rows[:, None] * WIDTH + (first + tl.arange(0, SPAN))[None, :]
    if BITS == 5:
        return tl.load(address.to(tl.pointer_type(tl.uint8)) + inside).to(tl.int16)
    else:
        return tl.load(address.to(tl.pointer_type(tl.int16)) + inside)


@triton.jit
def add_block(acc, address, rows, N, block, x, at, is_there, K: tl.constexpr, FORMAT: tl.constexpr):
    """Add the product of one block of columns to acc [BN, BM]: of these rows [BN] of the matrix [N, K] at `address`,
    with rows `at` [BM] of x [., K], of which those in is_there are read."""
    BITS: tl.constexpr = _of(FORMAT, "bits")
    OFF: tl.constexpr = _of(FORMAT, "offset")
    SPAN: tl.constexpr = _of(FORMAT, "span")
    BLOCK: tl.constexpr = _of(FORMAT, "block")
    META: tl.constexpr = _of(FORMAT, "meta")
    KP: tl.constexpr = _padded(FORMAT, K)
    PER_WORD: tl.constexpr = 2 if BITS == 8 else 4
    DTYPE: tl.constexpr = x.dtype.element_ty
    plane = tl.multiple_of(address + N.to(tl.int64) * (KP // 2), 16)
    meta = tl.multiple_of(address + N.to(tl.int64) * (KP * BITS // 8), 4).to(tl.pointer_type(tl.int32))
    meta += block * _of(FORMAT, "meta_words") * N + rows
    for t in tl.static_range(BLOCK // (PER_WORD * SPAN)):
        words = load_words(address, rows, block * (BLOCK // PER_WORD) + t * SPAN, KP // PER_WORD, SPAN)
        high = words
        if BITS == 5 or BITS == 6:
            high = _load_high(plane, rows, block * (BLOCK // 8) + t * 4 // 8 * SPAN, KP // 8, SPAN, BITS)
        values = widen(words, high, BITS, OFF, t * 4 % 8)
        for i in tl.static_range(PER_WORD):
            columns = block * BLOCK + (t * PER_WORD + i) * SPAN + tl.arange(0, SPAN)
            mask = is_there[None, :] & (columns < K)[:, None] if K != KP else is_there[None, :]
            a = tl.load(x + at[None, :] * K + columns[:, None], mask=mask, other=0.0)
            if META == "exponent":
                w = _times_power(values[i], meta, t * PER_WORD + i)
                acc = tl.dot(w.to(DTYPE), a, acc, input_precision="ieee")
            else:
                scale, zero = scale_and_zero(meta, N, t * PER_WORD + i, META)
                if acc.shape[1] > FEW:
                    w = values[i].to(tl.float32) * scale[:, None] - zero[:, None]
                    acc = tl.dot(w.to(DTYPE), a, acc, input_precision="ieee")
                else:
                    acc += tl.dot(values[i].to(DTYPE), a, input_precision="ieee") * scale[:, None]
                if acc.shape[1] <= FEW and META != "half" and META != "super_16":
                    ones = tl.full([rows.shape[0], SPAN], 1.0, tl.float32).to(
                        DTYPE
                    )  # a product has its sums where `acc` needs them
                    acc -= tl.dot(ones, a, input_precision="ieee") * zero[:, None]
    return acc


@triton.jit
def packed_products(
    x, at, is_there, address, rows, N, share, num_shares, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, FORMAT: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """Return rows of the matrix at `address` times rows `at` of x: [BN, BM]; with a gate also those N further down.

    Of the blocks of columns, one of num_shares shares.
    """
    num_rows = N * 2 if GATE else N
    NUM_BLOCKS: tl.constexpr = _padded(FORMAT, K) // _of(FORMAT, "block")
    acc = tl.zeros([BN, BM], tl.float32)
    acc_up = tl.zeros([BN, BM], tl.float32)
    first = share * NUM_BLOCKS // num_shares
    last = (share + 1) * NUM_BLOCKS // num_shares
    for block in tl.range(first, last, num_stages=STAGES):
        acc = add_block(acc, address, rows, num_rows, block, x, at, is_there, K, FORMAT)
        if GATE:
            acc_up = add_block(acc_up, address, rows + N, num_rows, block, x, at, is_there, K, FORMAT)
    return acc, acc_up


@triton.jit
def sum_shares(
    acc, acc_up, partial, arrived, program, share, num_shares, BM: tl.constexpr, BN: tl.constexpr, GATE: tl.constexpr
):
    """Write a program's share of sums; the one that finishes last gets the sums of all, in the order of shares.

    Return them, and whether this is the last.
    """
    SIZE: tl.constexpr = 2 * BN * BM
    inside = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
    place = partial + (program * num_shares).to(tl.int64) * SIZE
    mine = place + share * SIZE + inside
    tl.store(mine, acc)
    if GATE:
        tl.store(mine + BN * BM, acc_up)
    tl.debug_barrier()
    is_last = tl.atomic_add(arrived + program, 1, sem="acq_rel") == num_shares - 1
    if is_last:
        tl.store(arrived + program, 0)
        acc = tl.zeros([BN, BM], tl.float32)
        acc_up = tl.zeros([BN, BM], tl.float32)
        for each in range(num_shares):
            acc += tl.load(place + each * SIZE + inside, cache_modifier=".cg")
            if GATE:
                acc_up += tl.load(place + each * SIZE + BN * BM + inside, cache_modifier=".cg")
    return acc, acc_up, is_last
