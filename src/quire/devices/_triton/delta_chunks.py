"""The gated delta rule of long rows in chunks of up to 64 tokens, with products of matrices.

What a token changes in the state depends on the changes of the tokens before it in its chunk: with g the sum of decays
from the chunk's first token on, k keys of unit length, and S the state before the chunk,

    change_i + beta_i * sum over j < i of (k_i · k_j) * exp(g_i - g_j) * change_j = beta_i * (v_i - exp(g_i) * k_i · S)

The left side is a unit lower triangular matrix. It does not depend on S, so that all chunks are inverted at once
(`_invert_chunks`); then one kernel walks over the chunks of each row (`_delta_chunks`). All exponents are at most 0.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .delta_steps import DeltaInputs, DeltaRule
from .state_work import CHUNK, StateRows

CHUNK_TOKENS = tl.constexpr(CHUNK)
PART = tl.constexpr(16)  # tokens whose decays are relative to one token, if channels differ
PARTS = tl.constexpr(CHUNK // 16)
# of a token and a head: what is kept of the state before the chunk; that times the factor of unit length of the key,
# and of the query; that of the key times what is left of its change after the chunk
FACTORS = tl.constexpr(4)
# Triton 3.6 compiles these products wrongly for groups of warps on Hopper: with 4 warps the results are wrong, with 8
# they read memory beyond a chunk.
SHAPE = LaunchShape(4, 1, by_groups=False)


@triton.jit
def chunk_tokens(chunks, item):
    """The tokens of a chunk, and which of them are there."""
    start, end = tl.load(chunks + 2 * item), tl.load(chunks + 2 * item + 1)
    token = start + tl.arange(0, CHUNK_TOKENS)
    return token.to(tl.int64), token < end, end


@triton.jit
def tile(x, token, is_token, stride, first, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Load `SIZE` columns of some tokens, from the column `first` on."""
    column = tl.arange(0, PADDED)
    mask = is_token[:, None] & (column < SIZE)[None, :]
    return tl.load(x + token[:, None] * stride + first + column[None, :], mask=mask, other=0.0)


@triton.jit
def kept_between(rates):
    """How much of every token's change is left at each later one [64, 64]. Sums are of the tokens between: a
    difference of sums from the first token on would lose digits."""
    at = tl.arange(0, CHUNK_TOKENS)
    between = tl.cumsum(tl.where(at[:, None] > at[None, :], rates[:, None], 0.0), 0)
    return tl.where(at[:, None] >= at[None, :], tl.exp(between), 0.0)


@triton.jit
def _lengths(x, eps, IS_UNIT: tl.constexpr):
    """The factor that gives every vector unit length."""
    factor = tl.full([x.shape[0]], 1.0, tl.float32)
    if IS_UNIT:
        x = x.to(tl.float32)
        factor = 1.0 / tl.sqrt(tl.sum(x * x, 1) + eps)
    return factor


@triton.jit
def _invert(lower, PRECISION: tl.constexpr):
    """The inverse of 1 + lower, which is strictly lower triangular [64, 64]: of its diagonal parts row by row, then of
    pairs of parts."""
    row, column = tl.arange(0, CHUNK_TOKENS)[:, None], tl.arange(0, CHUNK_TOKENS)[None, :]
    part = tl.arange(0, PARTS)
    is_diagonal = part[:, None, None, None] == part[None, None, :, None]
    parts = tl.sum(tl.where(is_diagonal, tl.reshape(lower, [PARTS, PART, PARTS, PART]), 0.0), 2)
    inside = tl.arange(0, PART)
    inner_row = inside[None, :, None]
    inverse = tl.where(inner_row == inside[None, None, :], 1.0, 0.0) + tl.zeros([PARTS, PART, PART], tl.float32)
    for i in range(1, PART):
        line = tl.sum(tl.where(inner_row == i, parts, 0.0), 1)
        change = tl.sum(line[:, :, None] * inverse, 1)
        inverse -= tl.where(inner_row == i, change[:, None, :], 0.0)
    whole = tl.reshape(tl.where(is_diagonal, inverse[:, :, None, :], 0.0), [CHUNK_TOKENS, CHUNK_TOKENS])
    for level in tl.static_range(2):
        size = PART << level
        is_below = (row // size == column // size + 1) & (row // (2 * size) == column // (2 * size))
        product = tl.dot(whole, tl.where(is_below, lower, 0.0), input_precision=PRECISION)
        whole -= tl.dot(product, whole, input_precision=PRECISION)
    return whole


@triton.jit
def _place(token, head, HEADS: tl.constexpr):
    """Where the lines of a chunk's matrices are, [64, 64]."""
    return (token * HEADS + head)[:, None] * CHUNK_TOKENS + tl.arange(0, CHUNK_TOKENS)[None, :]


@triton.jit
def _invert_chunks(
    q, k, decay, beta, chunks, inverses, scores, factors, q_stride, k_stride, decay_stride, beta_stride,
    scale, eps, HEADS: tl.constexpr, GROUP: tl.constexpr, KEY: tl.constexpr, KEY_PADDED: tl.constexpr,
    IS_UNIT: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Of one chunk and head: the inverse, and how much every query reads of every change."""
    head = tl.program_id(1)
    token, is_token, _ = chunk_tokens(chunks, tl.program_id(0))
    follow(CHAINED)
    at = tl.arange(0, CHUNK_TOKENS)
    key = tile(k, token, is_token, k_stride, head // GROUP * KEY, KEY, KEY_PADDED)
    query = tile(q, token, is_token, q_stride, head // GROUP * KEY, KEY, KEY_PADDED)
    of_key, of_query = _lengths(key, eps, IS_UNIT), _lengths(query, eps, IS_UNIT) * scale
    rates = tl.load(decay + token * decay_stride + head, mask=is_token, other=0.0).to(tl.float32)
    share = tl.load(beta + token * beta_stride + head, mask=is_token, other=0.0).to(tl.float32)
    kept = kept_between(rates) * of_key[None, :]
    turned = tl.trans(key)
    lower = tl.dot(key, turned, input_precision=PRECISION) * kept * (share * of_key)[:, None]
    lower = tl.where(at[:, None] > at[None, :], lower, 0.0)
    score = tl.dot(query, turned, input_precision=PRECISION) * kept * of_query[:, None]
    place = _place(token, head, HEADS)
    tl.store(inverses + place, _invert(lower, PRECISION), mask=is_token[:, None])
    tl.store(scores + place, score.to(scores.dtype.element_ty), mask=is_token[:, None])
    since = tl.exp(tl.cumsum(rates, 0))
    left = of_key * tl.exp(tl.cumsum(rates, 0, reverse=True) - rates)
    one = factors + (token * HEADS + head) * FACTORS
    tl.store(one, since, mask=is_token)
    tl.store(one + 1, since * of_key, mask=is_token)
    tl.store(one + 2, since * of_query, mask=is_token)
    tl.store(one + 3, left, mask=is_token)


@triton.jit
def _score_parts(
    q, k, decay, beta, chunks, inverses, scores, q_stride, k_stride, decay_stride, beta_stride, scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, KEY: tl.constexpr, KEY_PADDED: tl.constexpr, IS_UNIT: tl.constexpr,
    PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Of 16 tokens of a chunk, and one head whose channels differ in their decay: the lines of the triangular matrix,
    and how much their queries read of every change. Decays are relative to the first of these tokens."""
    head, first = tl.program_id(1), tl.program_id(2) * PART
    token, is_token, end = chunk_tokens(chunks, tl.program_id(0))
    follow(CHAINED)
    at, inside = tl.arange(0, CHUNK_TOKENS), tl.arange(0, PART)
    mine = tl.load(chunks + 2 * tl.program_id(0)).to(tl.int64) + first + inside
    is_mine = mine < end
    keys = head // GROUP * KEY
    # tokens before these, with what is left of them at the first of these
    is_before = is_token & (at < first)
    before = tile(decay, token, is_before, decay_stride, head * KEY, KEY, KEY_PADDED).to(tl.float32)
    earlier = tile(k, token, is_before, k_stride, keys, KEY, KEY_PADDED).to(tl.float32)
    left = earlier * _lengths(earlier, eps, IS_UNIT)[:, None] * tl.exp(tl.cumsum(before, 0, reverse=True) - before)
    sums = tl.cumsum(tile(decay, mine, is_mine, decay_stride, head * KEY, KEY, KEY_PADDED).to(tl.float32), 0)
    key = tile(k, mine, is_mine, k_stride, keys, KEY, KEY_PADDED).to(tl.float32)
    query = tile(q, mine, is_mine, q_stride, keys, KEY, KEY_PADDED).to(tl.float32)
    key *= _lengths(key, eps, IS_UNIT)[:, None]
    query *= (_lengths(query, eps, IS_UNIT) * scale)[:, None]
    turned, kept = tl.trans(left), tl.exp(sums)
    lower = tl.dot(key * kept, turned, input_precision=PRECISION)
    score = tl.dot(query * kept, turned, input_precision=PRECISION)
    for i in range(PART):
        is_one = (inside == i)[:, None]
        one_sum, one_key = tl.sum(tl.where(is_one, sums, 0.0), 0), tl.sum(tl.where(is_one, key, 0.0), 0)
        seen = one_key[None, :] * tl.exp(tl.minimum(sums - one_sum[None, :], 0.0))
        is_column = (at == first + i)[None, :]
        lower += tl.where(is_column & (inside > i)[:, None], tl.sum(key * seen, 1)[:, None], 0.0)
        score += tl.where(is_column & (inside >= i)[:, None], tl.sum(query * seen, 1)[:, None], 0.0)
    share = tl.load(beta + mine * beta_stride + head, mask=is_mine, other=0.0).to(tl.float32)
    place = _place(mine, head, HEADS)
    tl.store(inverses + place, lower * share[:, None], mask=is_mine[:, None])
    tl.store(scores + place, score.to(scores.dtype.element_ty), mask=is_mine[:, None])


@triton.jit
def _invert_stored(chunks, inverses, HEADS: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr):
    """Invert the triangular matrix of one chunk and head in place."""
    token, is_token, _ = chunk_tokens(chunks, tl.program_id(0))
    place = _place(token, tl.program_id(1), HEADS)
    follow(CHAINED)
    lower = tl.load(inverses + place, mask=is_token[:, None], other=0.0)
    tl.store(inverses + place, _invert(lower, PRECISION), mask=is_token[:, None])


@triton.jit
def _delta_chunks(
    q, k, v, decay, beta, states, source, target, saves, chunks, scans, inverses, scores, factors, out,
    q_stride, k_stride, v_stride, decay_stride, beta_stride, scale, eps, HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY: tl.constexpr, KEY_PADDED: tl.constexpr, VALUE: tl.constexpr, COLUMNS: tl.constexpr,
    BY_CHANNEL: tl.constexpr, IS_UNIT: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Walk over the chunks of one row, with some columns of one head's state."""
    head, scan = tl.program_id(1), tl.program_id(0)
    row, first, last = tl.load(scans + 3 * scan), tl.load(scans + 3 * scan + 1), tl.load(scans + 3 * scan + 2)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.arange(0, KEY_PADDED)
    is_column = column < VALUE
    is_there = (channel < KEY)[:, None] & is_column[None, :]
    place = head * KEY * VALUE + channel[:, None] * VALUE + column[None, :]
    slot, to = tl.load(source + row).to(tl.int64), tl.load(target + row).to(tl.int64)
    state = tl.load(states + slot * HEADS * KEY * VALUE + place, mask=is_there & (slot >= 0), other=0.0)
    follow(CHAINED)
    for item in range(first, last):
        token, is_token, end = chunk_tokens(chunks, item)
        is_cell = is_token[:, None] & is_column[None, :]
        key = tile(k, token, is_token, k_stride, head // GROUP * KEY, KEY, KEY_PADDED)
        query = tile(q, token, is_token, q_stride, head // GROUP * KEY, KEY, KEY_PADDED)
        value = tl.load(v + token[:, None] * v_stride + head * VALUE + column[None, :], mask=is_cell, other=0.0)
        share = tl.load(beta + token * beta_stride + head, mask=is_token, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + _place(token, head, HEADS), mask=is_token[:, None], other=0.0)
        score = tl.load(scores + _place(token, head, HEADS), mask=is_token[:, None], other=0.0)
        rounded = state.to(key.dtype)
        if BY_CHANNEL:
            rates = tile(decay, token, is_token, decay_stride, head * KEY, KEY, KEY_PADDED).to(tl.float32)
            kept = tl.exp(tl.cumsum(rates, 0))
            of_key, of_query = _lengths(key, eps, IS_UNIT), _lengths(query, eps, IS_UNIT) * scale
            known = tl.dot((key * kept).to(key.dtype), rounded, input_precision=PRECISION) * of_key[:, None]
            answer = tl.dot((query * kept).to(key.dtype), rounded, input_precision=PRECISION) * of_query[:, None]
            key = (key * tl.exp(tl.cumsum(rates, 0, reverse=True) - rates)).to(key.dtype)
            left = of_key
            state *= tl.exp(tl.sum(rates, 0))[:, None]
        else:
            one = factors + (token * HEADS + head) * FACTORS
            of_known = tl.load(one + 1, mask=is_token, other=0.0)
            of_answer = tl.load(one + 2, mask=is_token, other=0.0)
            left = tl.load(one + 3, mask=is_token, other=0.0)
            known = tl.dot(key, rounded, input_precision=PRECISION) * of_known[:, None]
            answer = tl.dot(query, rounded, input_precision=PRECISION) * of_answer[:, None]
            state *= tl.load(factors + ((end - 1).to(tl.int64) * HEADS + head) * FACTORS)
        change = tl.dot(inverse, (value.to(tl.float32) - known) * share[:, None], input_precision=PRECISION)
        answer = tl.dot(score, change.to(score.dtype), answer, input_precision=PRECISION)
        state = tl.dot(tl.trans(key), (change * left[:, None]).to(key.dtype), state, input_precision=PRECISION)
        to_out = out + (token * HEADS + head)[:, None] * VALUE + column[None, :]
        tl.store(to_out, answer.to(out.dtype.element_ty), mask=is_cell)
        save = tl.load(saves + end - 1).to(tl.int64)
        if save >= 0:
            tl.store(states + save * HEADS * KEY * VALUE + place, state, mask=is_there)
    tl.store(states + to * HEADS * KEY * VALUE + place, state, mask=is_there)


def delta_chunks(tokens: DeltaInputs, rule: DeltaRule, states: Tensor, rows: StateRows, out: Tensor) -> None:
    """Compute the rows that are cut into chunks into `out` [T, heads * value_dim].

    states: float32 [slots, heads, key_dim, value_dim].
    """
    num_tokens, num_chunks, device = len(tokens.v), len(rows.chunks), out.device
    is_float32 = out.dtype == torch.float32
    inverses = torch.empty((num_tokens, rule.heads, CHUNK), device=device)
    scores = torch.empty((num_tokens, rule.heads, CHUNK), dtype=out.dtype, device=device)
    factors = torch.empty((0 if rule.by_channel else num_tokens, rule.heads, FACTORS.value), device=device)
    constants: dict[str, Any] = rule.constants | {"PRECISION": "ieee" if is_float32 else "tf32"}
    of_scores = {name: constants[name] for name in ("HEADS", "GROUP", "KEY", "KEY_PADDED", "IS_UNIT", "PRECISION")}
    read = (tokens.q, tokens.k, tokens.decay, tokens.beta)
    strides, numbers = tuple(each.stride(0) for each in read), (rule.scale, rule.eps or 0.0)
    if rule.by_channel:
        args = (*read, rows.chunks, inverses, scores, *strides, *numbers)
        launch(_score_parts, (num_chunks, rule.heads, PARTS.value), args, of_scores, SHAPE)
        constant = {name: constants[name] for name in ("HEADS", "PRECISION")}
        launch(_invert_stored, (num_chunks, rule.heads), (rows.chunks, inverses), constant, SHAPE)
    else:
        args = (*read, rows.chunks, inverses, scores, factors, *strides, *numbers)
        launch(_invert_chunks, (num_chunks, rule.heads), args, of_scores, SHAPE)
    args = (
        *tokens, states, rows.source, rows.target, rows.saves, rows.chunks, rows.scans, inverses, scores, factors, out,
        *tokens.strides, *numbers,
    )  # fmt: skip
    grid = (len(rows.scans), rule.heads, triton.cdiv(rule.value_dim, rule.columns))
    launch(_delta_chunks, grid, args, constants, SHAPE)
