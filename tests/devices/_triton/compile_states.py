"""Compiles the kernels of recurrent layers for Hopper; needs no GPU. A program: the interpreter must be off."""

from __future__ import annotations

import torch

from quire.devices._triton import (
    delta_chunks,
    delta_steps,
    elementwise,
    gated_norm,
    log_decay,
    scan_chunks,
    scan_steps,
    short_conv,
)
from quire.ops.cache import State
from tests.devices._triton.compile_kernels import compile_instead
from tests.devices._triton.recurrent import arguments, computed, op_of, step_of

DELTA, SCAN = State((4, 128, 128)), State((4, 64, 128))  # the sizes of Qwen3.5 and Nemotron-H


def main() -> None:
    """Compile all of them."""
    modules = (delta_chunks, delta_steps, elementwise, gated_norm, log_decay, scan_chunks, scan_steps, short_conv)
    for module in modules:
        module.launch = compile_instead  # type: ignore[attr-defined]
    few, many = step_of([(5, 1), (3, 1)]), step_of([(5, 1), (20, 70)], [30])
    for name, spec in (
        ("short_conv", None), ("activated_short_conv", None), ("mamba", None), ("state_scan", SCAN),
        ("gated_delta_rule", DELTA), ("gated_delta_channel", DELTA),
    ):  # fmt: skip
        for dtype in ("bf16", "f32"):
            computed(op_of(name), arguments(name, many, dtype, spec=spec), "cpu", dtype)
    computed(op_of("short_conv"), arguments("short_conv", few, "bf16"), "cpu", "bf16")
    x = torch.zeros((2, 256), dtype=torch.bfloat16)
    for gates_first in (False, True):
        gated_norm.gated_norm(x, x, gated_norm.GatedNorm(torch.zeros(128), 1e-6, 128, "silu", gates_first))


if __name__ == "__main__":
    main()
