"""Compiles the kernels of attention for Hopper; needs no GPU. A program of its own: the interpreter must be off.

The interpreter runs what the compiler refuses, such as a function that returns None. Calls of the kernels' functions
give the arguments.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from quire.devices._triton import (
    attend_few,
    attention,
    bidirectional,
    chain,
    expanded,
    head_products,
    kv_write,
    latent,
    rope,
)  # fmt: skip
from quire.devices._triton.attention import ScoreTerms
from quire.devices._triton.norm import Product
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables, TokenPlacement
from quire.ops.cache import Latent, PagedKV
from tests.devices._triton import paged
from tests.devices._triton.latents import LatentStep, run_latent
from tests.devices._triton.paged import Step, Text

HOPPER = GPUTarget("cuda", 90, 32)
NAMES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv", torch.int32: "*i32",
    torch.int64: "*i64", torch.uint8: "*u8",
}  # fmt: skip
ALL = ("softcap", "sinks", "slopes", "distances")


def compile_instead(kernel: Any, grid: tuple[int, ...], args: Any, constants: dict[str, Any], shape: Any) -> None:
    """Stand in for `launch`: compile the kernel for these arguments."""
    fixed: dict[str, Any] = {**constants, "CHAINED": True}
    signature = {}
    for name, argument in zip(kernel.arg_names, args, strict=False):
        if argument is None:
            fixed[name] = None
        else:
            signature[name] = _type_of(argument)
    signature |= dict.fromkeys(fixed, "constexpr")
    source = triton.compiler.ASTSource(
        kernel,
        {name: signature[name] for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(name),): value for name, value in fixed.items()},
    )
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    with chain._groups_only_if(shape.by_groups):
        compiled = triton.compile(source, target=HOPPER, options=options)
    assert compiled.metadata.shared <= attention.SHARED_MEMORY, (kernel.__name__, constants, compiled.metadata.shared)
    _check_rows(kernel.__name__, compiled.asm["ttgir"])
    assert shape.by_groups or "warp_group_dot" not in compiled.asm["ttgir"], kernel.__name__
    print(kernel.__name__, flush=True)


def _check_rows(name: str, code: str) -> None:
    """Products by groups of four warps have at least 16 rows for each warp: else the last ones read shared memory
    beyond the matrix."""
    for layout, warps in re.findall(r"(#mma\d*) = #ttg.nvidia_mma<{versionMajor = 3.*?warpsPerCTA = \[(\d+),", code):
        rows = re.findall(rf"warp_group_dot .*-> tensor<(\d+)x\d+x\w+, {layout}>", code)
        assert all(int(each) >= 16 * int(warps) for each in rows), (name, layout, warps, rows)


def _type_of(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return NAMES[argument.dtype]
    return "i32" if isinstance(argument, int) else "fp32"


def attend_all() -> None:
    """Attention over a cache: narrow and wide items, and the merge."""
    texts = [Text(300), Text(0, 40)]
    for spec, extras, cache_dtype, fixed_chunk in (
        (PagedKV(2, 128, 128), (), torch.bfloat16, None),
        (PagedKV(2, 192, 80, 100, 50), ALL, torch.float8_e4m3fn, None),
        (PagedKV(2, 64, 64, 100), ALL, torch.bfloat16, 128),
    ):
        paged.run(Step.random(spec, 2, texts, 40, extras=extras), "cpu", torch.bfloat16, cache_dtype, fixed_chunk)


def attend_few_rows(num_pairs: int, interleaved: bool, extras: tuple[str, ...], has_norm: bool) -> None:
    """Attention of few rows in one kernel, and the kernel before attention of many."""
    step = Step.random(PagedKV(2, 64, 64), 4, [Text(40)], 10, extras=extras)
    numbers = torch.zeros((1, 64 * 12), dtype=torch.bfloat16)
    cache = torch.zeros((2, 10, 2, 16, 64), dtype=torch.bfloat16)
    tables = torch.zeros((41, num_pairs))
    turns, where = RopeTables(tables, tables, interleaved), TokenPlacement(*torch.zeros((2, 1), dtype=torch.int32))
    norm = HeadNorm(torch.zeros(64), torch.zeros(64), 1e-5) if has_norm else None
    work, _ = paged.planned(step, "cpu", step.limits(attention.configs_for(64, torch.bfloat16)))
    heads, blocks = Heads(8, 2, 64), torch.zeros((1, 10), dtype=torch.int32)
    attend_few.attend_few(
        Product(numbers), heads, turns, where, (cache[0], cache[1]), blocks, work._replace(wide=work.wide[:0]),
        torch.zeros(8, dtype=torch.int32), numbers.clone(), scale=0.1, terms=step.terms("cpu"), norm=norm,
    )  # fmt: skip
    rope.rope_write(Product(numbers), heads, turns, where, (cache[0], cache[1]), norm)


def attend_within_rows(terms: ScoreTerms, window: int | None, key_dim: int = 80) -> None:
    """Attention within a step, neighbours, and the plain KV write."""
    sizes = (4, key_dim), (2, key_dim), (2, 64)
    q, k, v = (torch.zeros((20, heads, dim), dtype=torch.bfloat16) for heads, dim in sizes)
    positions = torch.arange(20, dtype=torch.int32)
    out = torch.zeros((20, 4, 64), dtype=torch.bfloat16)
    rows = bidirectional.RowBounds.of(positions)
    bidirectional.attend_rows(q, k, v, rows, out, scale=0.1, terms=terms, window=window)
    bidirectional.shift_rows(q.flatten(1), rows, -1)
    caches = (torch.zeros((4, 2, 16, dim), dtype=torch.bfloat16) for dim in (key_dim, 64))
    kv_write.write_kv(k.flatten(1), v.flatten(1), positions, *caches)


def attend_latents(num_heads: int, cache_dtype: torch.dtype, fixed_chunk: int | None) -> None:
    """Latent attention with the sizes of DeepSeek."""
    step = LatentStep.random(Latent(512, 64), (num_heads, 128, 128), [Text(300), Text(0, 20)], 40)
    run_latent(step, "cpu", torch.bfloat16, cache_dtype, fixed_chunk, expanded_tokens=None if fixed_chunk else 20)


def main() -> None:
    """Compile all of them."""
    for module in (attention, attend_few, rope, kv_write, bidirectional, latent, head_products, expanded):
        module.launch = compile_instead  # type: ignore[attr-defined]
    attend_all()
    attend_few_rows(16, True, ALL, has_norm=True)
    attend_few_rows(0, False, (), has_norm=False)
    attend_within_rows(ScoreTerms(), None)
    attend_within_rows(ScoreTerms(), None, key_dim=64)
    for num_heads, cache_dtype, fixed_chunk in (
        (16, torch.bfloat16, None), (20, torch.float8_e4m3fn, None), (128, torch.bfloat16, None),
        (16, torch.bfloat16, 512),
    ):  # fmt: skip
        attend_latents(num_heads, cache_dtype, fixed_chunk)
    attend_within_rows(ScoreTerms(1.0, torch.zeros(4), torch.zeros(4), torch.zeros((4, 9))), 5)


if __name__ == "__main__":
    main()
