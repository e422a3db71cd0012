"""The gated delta rule token by token: a program holds some columns of a head's state while it reads a row's tokens."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .attention import padded
from .chain import LaunchShape, follow, launch
from .log_decay import softplus
from .state_work import StateRows

COLUMNS = 32  # of a state, in a program
NUMBERS = 1024  # of a state, for each warp


class DeltaInputs(NamedTuple):
    """The tokens of a step. The strides between tokens are arbitrary."""

    q: Tensor  # [T, key heads * key_dim]
    k: Tensor
    v: Tensor  # [T, heads * value_dim]
    decay: Tensor  # [T, heads] or, by channel, [T, heads * key_dim]
    beta: Tensor  # [T, heads]

    @property
    def strides(self) -> tuple[int, ...]:
        """Between tokens."""
        return tuple(each.stride(0) for each in self)


class DeltaRule(NamedTuple):
    """The sizes of a layer."""

    heads: int
    num_heads: int  # of queries and keys
    key_dim: int
    value_dim: int
    scale: float
    eps: float | None  # None: queries and keys are not divided by their length
    by_channel: bool
    rate: Tensor | None = None  # float32 [heads], if decay and beta are given before log_decay and sigmoid
    bias: Tensor | None = None  # float32 [heads], or by channel [heads * key_dim]

    @property
    def columns(self) -> int:
        """The columns of a state that a program holds."""
        return min(COLUMNS, padded(self.value_dim))

    @property
    def constants(self) -> dict[str, int]:
        """What kernels are compiled for."""
        return {
            "HEADS": self.heads,
            "GROUP": self.heads // self.num_heads,
            "KEY": self.key_dim,
            "KEY_PADDED": padded(self.key_dim),
            "VALUE": self.value_dim,
            "COLUMNS": self.columns,
            "BY_CHANNEL": self.by_channel,
            "IS_UNIT": self.eps is not None,
        }


@triton.jit
def _delta_steps(
    q, k, v, decay, beta, rates, bias, states, source, target, starts, saves, out, q_stride, k_stride, v_stride,
    decay_stride, beta_stride, scale, eps, longest, HEADS: tl.constexpr, GROUP: tl.constexpr, KEY: tl.constexpr,
    KEY_PADDED: tl.constexpr, VALUE: tl.constexpr, COLUMNS: tl.constexpr, BY_CHANNEL: tl.constexpr,
    IS_UNIT: tl.constexpr, IS_GATED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.arange(0, KEY_PADDED)
    is_channel, is_column = channel < KEY, column < VALUE
    is_there = is_channel[:, None] & is_column[None, :]
    place = head * KEY * VALUE + channel[:, None] * VALUE + column[None, :]
    start, end = tl.load(starts + row).to(tl.int64), tl.load(starts + row + 1).to(tl.int64)
    slot, to = tl.load(source + row).to(tl.int64), tl.load(target + row).to(tl.int64)
    is_mine = (end > start) & (end - start <= longest)  # padding may be empty; longer rows are cut into chunks
    # no kernel of this step wrote it: it is read while the kernel before ends
    state = tl.load(states + slot * HEADS * KEY * VALUE + place, mask=is_there & (slot >= 0) & is_mine, other=0.0)
    follow(CHAINED)
    if is_mine:
        channels = head * KEY + channel if BY_CHANNEL else head + channel * 0  # of the decay
        if IS_GATED:
            shift = tl.load(bias + channels, mask=is_channel, other=0.0)
            factor = tl.load(rates + head)
        keys = head // GROUP * KEY + channel
        for token in range(start, end):
            query = tl.load(q + token * q_stride + keys, mask=is_channel, other=0.0).to(tl.float32)
            key = tl.load(k + token * k_stride + keys, mask=is_channel, other=0.0).to(tl.float32)
            value = tl.load(v + token * v_stride + head * VALUE + column, mask=is_column, other=0.0).to(tl.float32)
            share = tl.load(beta + token * beta_stride + head).to(tl.float32)
            if IS_UNIT:
                query *= 1.0 / tl.sqrt(tl.sum(query * query) + eps)
                key *= 1.0 / tl.sqrt(tl.sum(key * key) + eps)
            rate = tl.load(decay + token * decay_stride + channels, mask=is_channel, other=0.0).to(tl.float32)
            if IS_GATED:
                rate = factor * softplus(rate + shift)
                share = tl.sigmoid(share)
            state *= tl.exp(rate)[:, None]
            known = tl.sum(state * key[:, None], 0)
            state += key[:, None] * ((value - known) * share)[None, :]
            answer = tl.sum(state * (query * scale)[:, None], 0)
            tl.store(out + (token * HEADS + head) * VALUE + column, answer.to(out.dtype.element_ty), mask=is_column)
            save = tl.load(saves + token).to(tl.int64)
            if save >= 0:
                tl.store(states + save * HEADS * KEY * VALUE + place, state, mask=is_there)
        tl.store(states + to * HEADS * KEY * VALUE + place, state, mask=is_there)


def delta_steps(
    tokens: DeltaInputs, rule: DeltaRule, states: Tensor, rows: StateRows, out: Tensor, longest: int
) -> None:
    """Compute the rows of up to `longest` tokens into `out` [T, heads * value_dim].

    states: float32 [slots, heads, key_dim, value_dim].
    """
    args = (
        *tokens, rule.rate, rule.bias, states, rows.source, rows.target, rows.starts, rows.saves, out,
        *tokens.strides, rule.scale, rule.eps or 0.0, longest,
    )  # fmt: skip
    grid = (len(rows.source), rule.heads, triton.cdiv(rule.value_dim, rule.columns))
    warps = min(max(padded(rule.key_dim) * rule.columns // NUMBERS, 1), 8)
    launch(_delta_steps, grid, args, rule.constants | {"IS_GATED": rule.rate is not None}, LaunchShape(warps, 1))
