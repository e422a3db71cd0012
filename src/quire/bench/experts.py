"""`quire bench experts`: times of the kernels that choose experts and multiply with them, on a GPU.

`python -m quire.bench experts [--shape qwen3-30b-a3b] [--format bf16] [--fp8] [--tokens 1,2,4] [--tune]` prints a line
for each number of tokens: the distinct experts that they chose, the time of routing, of gate and up, of down and the
sum, and of all together for one layer, each with its share of the memory's bandwidth and its rate of products. With
`--tune`, it prints the fastest tiles instead. Needs torch and triton.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from importlib import import_module

from quire.bench.page.text_table import align_columns

SHAPES = {  # experts, chosen, width of a token, width of an expert
    "qwen3-30b-a3b": (128, 8, 2048, 768),
    "gpt-oss-20b": (32, 4, 2880, 2880),
    "deepseek-v2-lite": (64, 6, 2048, 1408),
    "tiny": (8, 2, 64, 32),
}
TOKENS = "1,2,4,8,16,32,64,128,512,2048,8192"
MODULE = "quire.devices.cuda.time_experts"  # imports torch


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print."""
    parser = ArgumentParser(prog="quire bench experts", description=__doc__)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--format", default="bf16", help="the stored format: bf16, f8_e4m3, mxfp4, q4_k, int4, …")
    parser.add_argument("--fp8", action="store_true", help="convert to FP8")
    parser.add_argument("--tokens", default=TOKENS, help="numbers of tokens, separated by commas")
    parser.add_argument("--layers", type=int, default=4, help="that are used in turn")
    parser.add_argument("--gb-per-s", type=float, default=4340.0, help="the memory's bandwidth")
    parser.add_argument("--tune", action="store_true", help="print the fastest tiles")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments.rest)
    module = import_module(MODULE)
    shape, counts = module.ExpertShape(*SHAPES[options.shape]), [int(each) for each in options.tokens.split(",")]
    quantize = "fp8" if options.fp8 else None
    given = module.RandomExperts(shape, options.layers, options.format, quantize, options.device)
    if options.tune:
        for line in module.tune_experts(given, counts):
            print(line, flush=True)
    else:
        rows = module.time_experts(given, counts, 1e9 * options.gb_per_s)
        for count, row in enumerate(rows):
            lines = align_columns(module.HEADS, [row]).splitlines()
            print("\n".join(lines if count == 0 else lines[-1:]), flush=True)
