"""Compiles the kernels of routing and experts for Hopper; needs no GPU. A program of its own, as compile_kernels.py."""

from __future__ import annotations

from itertools import product

import torch

from quire.devices._triton import experts, grouping, route, route_one
from quire.devices._triton.experts import Activation, Inward, Matrices, Sum
from quire.devices._triton.norm import Norm
from quire.devices._triton.route import ExpertRouter
from quire.devices._triton.stream import Scratch
from quire.devices.cuda.expert_tiles import ExpertKey, ExpertTiles
from tests.devices._triton.compile_kernels import compile_instead

NUM_EXPERTS, TOP, DIM, FFN = 128, 8, 2048, 768
COUNTS = (1, 10, 2048)


def compile_layer(num_tokens: int, format: str) -> None:
    """All kernels of one layer."""
    tiles, scratch = ExpertTiles(), Scratch(torch.device("cpu"))
    x, vector = torch.zeros((num_tokens, DIM), dtype=torch.bfloat16), torch.zeros(NUM_EXPERTS)
    has_groups = (8, 4, 2) if num_tokens > 1 else (1, 1, 1)
    weight = torch.zeros((NUM_EXPERTS, DIM), dtype=torch.bfloat16)
    router = ExpertRouter(weight, vector, vector, vector, TOP, "sigmoid", False, *has_groups, True, 2.5, 3.0)
    norm, height = Norm(torch.zeros(DIM), 1e-6), tiles.height(num_tokens, TOP, NUM_EXPERTS)
    if tiles.is_few(num_tokens, NUM_EXPERTS):
        kernel = route_one.route_one if num_tokens == 1 else route.route_few
        choice, _ = kernel(x, norm, router, scratch, height)
        grouped = choice.grouping
    else:
        choice = route.route(x, router)
        grouped = grouping.group_pairs(choice.chosen, choice.counts, NUM_EXPERTS, height)
        grouping.count_pairs(choice.chosen, NUM_EXPERTS)
    addresses, biases = torch.zeros(NUM_EXPERTS, dtype=torch.int64), torch.zeros((NUM_EXPERTS, DIM))
    inward, outward = (Matrices(addresses, format, *size, biases, scratch) for size in ((2 * FFN, DIM), (DIM, FFN)))
    first = Inward(inward, Activation("silu", True, 7.0, 1.702, 1.0), *((addresses, FFN * DIM) if height == 16 else ()))
    tile = tiles.find(ExpertKey(FFN, DIM, format, True, height))
    hidden = experts.expert_in(x, choice.weights, first, grouped, tile)
    to = Sum(
        x.clone(),
        True,
        scratch if tiles.is_summed(num_tokens) else None,
        torch.zeros(4096, dtype=torch.uint8),
    )
    tile = tiles.find(ExpertKey(DIM, FFN, format, False, height))
    experts.expert_out(hidden, choice.weights, TOP, outward, grouped, tile, to)


def main() -> None:
    """Compile all of them."""
    for module in (experts, grouping, route, route_one):
        module.launch = compile_instead  # type: ignore[attr-defined]
    for num_tokens in COUNTS:
        for format in ("bf16", "fp8_rows", "fp8_blocks"):
            compile_layer(num_tokens, format)
    for num_tokens, format in product((COUNTS[0], COUNTS[-1]), ("mxfp4", "q4_k", "q6_k")):
        compile_layer(num_tokens, format)


if __name__ == "__main__":
    main()
