"""Every kernel that implements an op, against the op's reference on the op's examples.

add, rms_norm, embed, linear, linear_split, silu_gate, logits, rms_norm_heads, rope     here
attention            test_attention.py (items of work), test_attend_few.py (with rope and the KV write, of few rows)
steps fused into a product, FP8                                         test_stream.py, test_around_products.py
products with 4-bit weights                                             test_int4.py
sampling, which is not an op: against the host's filters                test_sample.py
attention_work.py, which only plans: every token sees each key once     test_attention_work.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton.embed import embed
from quire.devices._triton.gate import silu_gate
from quire.devices._triton.norm import Product, add_norm
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables, TokenPlacement, rope_write
from quire.devices._triton.stream import Around, Scratch, Tile, stream
from quire.ops.registry import Args, all_ops, find_op, relative_error
from tests.devices.interpreted import in_interpreter

pytestmark = pytest.mark.device

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TILE = Tile(32, 32, 16, shares=1, stages=2)
ELSEWHERE = {"attention"}


class ToDevice:
    """Converts arrays to tensors of one number format on one device."""

    def __init__(self, dtype: str, place: str) -> None:
        self.dtype, self.place = DTYPES[dtype], place

    def __call__(self, array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.from_numpy(array).to(self.place, dtype or self.dtype)

    def product(self, x: np.ndarray, weights: list[np.ndarray], biases: list[np.ndarray | None], **more: Any) -> Any:
        """Multiply with concatenated matrices, by the kernel for few tokens."""
        bias = None if biases[0] is None else self(np.concatenate(biases))
        around, scratch = Around(bias=bias, **more), Scratch(torch.device(self.place))
        return stream(self(x), self(np.concatenate(weights)), None, around, TILE, scratch, self.dtype)

    def heads(
        self, x: np.ndarray, dim: int, turns: RopeTables, positions: np.ndarray, norm: np.ndarray | None, eps: float
    ):
        """Return query heads [T, heads * dim] after norm and rope, with one key head beside them."""
        raw = self(np.concatenate([x, x[:, :dim], x[:, :dim]], 1))
        cache = tuple(torch.zeros((5, 1, 16, dim), dtype=self.dtype, device=self.place) for _ in range(2))
        where = TokenPlacement(self(positions, torch.int32), self(np.arange(len(x)), torch.int32))
        head_norm = None if norm is None else HeadNorm(self(norm), self(norm), eps)
        return rope_write(Product(raw), Heads(x.shape[1] // dim, 1, dim), turns, where, cache, head_norm)


def _add(args: Args, to_device: ToDevice) -> torch.Tensor:
    x = to_device(args["x"])
    add_norm(x, Product(to_device(args["y"])), torch.ones(x.shape[1], device=to_device.place), 1e-5)
    return x


def _rms_norm(args: Args, to_device: ToDevice) -> torch.Tensor:
    return add_norm(to_device(args["x"]), None, to_device(args["weight"], torch.float32), args["eps"])


def _embed(args: Args, to_device: ToDevice) -> torch.Tensor:
    ids = to_device(args["token_ids"], torch.int32)
    return embed(
        ids, torch.zeros(1, dtype=torch.int32, device=to_device.place), to_device(args["table"]), to_device.dtype
    )


def _linear(args: Args, to_device: ToDevice) -> torch.Tensor:
    return to_device.product(args["x"], [args["weight"]], [args["bias"]])


def _linear_split(args: Args, to_device: ToDevice) -> tuple[torch.Tensor, ...]:
    out = to_device.product(args["x"], list(args["weights"]), list(args["biases"]))
    return out.split([len(weight) for weight in args["weights"]], 1)


def _silu_gate(args: Args, to_device: ToDevice) -> torch.Tensor:
    return to_device.product(args["x"], [args["gate"], args["up"]], [args["gate_bias"], args["up_bias"]], is_gate=True)


def _silu_gate_after_a_product(args: Args, to_device: ToDevice) -> torch.Tensor:
    raw = args["x"] @ np.concatenate([args["gate"], args["up"]]).T
    if args["gate_bias"] is not None:
        raw += np.concatenate([args["gate_bias"], args["up_bias"]])
    out = silu_gate(Product(to_device(raw, torch.float32)), False, to_device.dtype)
    assert isinstance(out, torch.Tensor)
    return out


def _logits(args: Args, to_device: ToDevice) -> torch.Tensor:
    return to_device.product(args["x"][args["logits_at"]], [args["weight"]], [None])


def _rms_norm_heads(args: Args, to_device: ToDevice) -> torch.Tensor:
    x, dim = args["x"], len(args["weight"])
    still = RopeTables(*(torch.full((1, dim // 2), value, device=to_device.place) for value in (1.0, 0.0)))
    return to_device.heads(x, dim, still, np.zeros(len(x)), args["weight"], args["eps"])


def _rope(args: Args, to_device: ToDevice) -> torch.Tensor:
    angles = (np.arange(4096, dtype=np.float32)[:, None] * args["frequencies"]).astype(np.float64)
    turns = RopeTables(*(to_device(f(angles) * args["scaling"], torch.float32) for f in (np.cos, np.sin)))
    return to_device.heads(args["x"], args["head_dim"], turns, args["positions"], None, 0.0)


KERNELS: dict[str, tuple[Callable[[Args, ToDevice], Any], ...]] = {
    "add": (_add,),
    "embed": (_embed,),
    "linear": (_linear,),
    "linear_split": (_linear_split,),
    "logits": (_logits,),
    "rms_norm": (_rms_norm,),
    "rms_norm_heads": (_rms_norm_heads,),
    "rope": (_rope,),
    "silu_gate": (_silu_gate, _silu_gate_after_a_product),
}
MAX_INTERPRETED = 8  # tokens of an example in the interpreter


def examples(name: str, dtype: str, place: str) -> list[Args]:
    """Return the examples to run. Pairwise rope and products of no tokens have no kernel. The interpreter skips those
    of many tokens; an accelerator, which compiles kernels for each size, runs the largest and the last one."""
    supported = []
    for args in find_op(name).example_args(dtype):
        if not args.get("interleaved") and len(args.get("logits_at", "all")):
            supported.append((len(args.get("x", args.get("token_ids"))), args))
    if place == "cuda":
        return [max(supported, key=lambda each: each[0])[1], supported[-1][1]]
    return [args for num_tokens, args in supported if num_tokens <= MAX_INTERPRETED or name == "logits"]


@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32", "f16")])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_matches_its_reference(name, dtype, place):
    op = find_op(name)
    for args in examples(name, dtype, place):
        expected = op(**args)
        for kernel in KERNELS[name]:
            actual = kernel(args, ToDevice(dtype, place))
            both = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
            for ours, theirs in both:
                assert relative_error(ours.float().cpu().numpy(), theirs) <= op.tolerance[dtype]


def test_every_op_has_a_kernel():
    assert {op.name for op in all_ops()} == KERNELS.keys() | ELSEWHERE
