"""`quire bench embed-gpu`: texts embedded on a GPU, and the share of the card's rate of products that this reaches.

`python -m quire.bench embed-gpu [--shape bge-large] [--length 512] [--step-tokens 2048,8192,32768] [--engine]
[--profile]` has random weights and needs torch, triton and numpy: no model files, no tokenizer, no server. It prints
JSON lines. First `product_tflops`: the library's rate of a large square product in bfloat16. Then, for each size of a
step: `products_alone`, the share of that rate that the model's products reach if nothing else runs; the tokens a second
of equal steps, up to their vectors on the host; and `of_product_rate`, the share that their products
(those with matrices, without attention's) are. `--engine` also sends requests through the engine; `--profile` prints
the time of each kernel of a step, `--tiles` that of attention with several tiles.
"""

from __future__ import annotations

import json
import queue
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from quire.bench.engines.encoder_shapes import SHAPES, EncoderShape, encoder_config
from quire.bench.engines.random_models import LOAD_FORMAT, multiplied_weights
from quire.devices import base
from quire.devices.base import Limits, LoweringOptions
from quire.devices.facts import device_facts
from quire.engine.llm import LLM
from quire.engine.messages import Failed
from quire.models.draw import DrawnModel, draw
from quire.runner.flight import Flight
from quire.runner.whole_texts import WholeTextRunner
from quire.types.kinds import RequestKind
from quire.types.output import Finished
from quire.types.request import GenerateRequest
from quire.types.step import Part, StepPlan, StepResult
from quire.weights.checkpoint import open_checkpoint

MODULE = "quire.devices.cuda.time_steps"  # imports torch
VOCABULARY = 30522
POOLING = "mean"
SECONDS = 2.0  # of each measurement
REQUESTED_TOKENS = 1 << 21  # through the engine
NUM_KERNELS = 20  # of a profile


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print."""
    parser = ArgumentParser(prog="quire bench embed-gpu", description=__doc__)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="bge-large")
    parser.add_argument("--length", type=int, default=512, help="tokens of a text, at most 512")
    parser.add_argument("--step-tokens", default="2048,8192,32768", help="tokens of a step, separated by commas")
    parser.add_argument("--quantize", choices=("fp8",), help="weights and activations as FP8")
    parser.add_argument("--engine", action="store_true", help="also send requests through the engine")
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel of a step")
    parser.add_argument("--tiles", action="store_true", help="time attention with several tiles")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments.rest)
    shape = SHAPES[options.shape]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(encoder_config(shape, VOCABULARY)), encoding="utf-8")
        weights = multiplied_weights(Path(folder), POOLING).of_a_token
        rate = _product_rate(options)
        _print_line(model=options.shape, weights=weights, product_tflops=round(rate / 1e12, 1))
        for tokens in map(int, options.step_tokens.split(",")):
            figures = _measure_steps(Path(folder), shape, tokens, options)
            _print_rates("step", tokens, weights, rate, figures)
            if options.tiles:
                _print_tiles(shape, tokens, options)
            if options.engine:
                _print_rates("engine", tokens, weights, rate, _measure_engine(folder, tokens, options))


def _product_rate(options: Namespace) -> float:
    return float(import_module(MODULE).product_rate(options.seconds)) if _has_products(options) else float("nan")


def _has_products(options: Namespace) -> bool:
    """Whether the library's products are timed: on the CPU, where this is only tried out, they are not."""
    return device_facts(options.device).has_own_memory


def _measure_steps(folder: Path, shape: EncoderShape, step_tokens: int, options: Namespace) -> dict[str, Any]:
    """Run equal steps for some seconds, with as many in flight as an engine has."""
    model = draw(open_checkpoint(folder, LOAD_FORMAT), pooling=POOLING)
    runner, plan = _runner(model, step_tokens, options), _plan(step_tokens, options.length)

    def step() -> None:
        _check(runner.collect(runner.launch(plan)))

    for _ in range(3):
        step()
    flights, count, began = deque[Flight](), 0, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        flights.append(runner.launch(plan))
        if len(flights) == runner.depth:
            _check(runner.collect(flights.popleft()))
            count += 1
    figures = {"tokens_per_s": count * plan.num_tokens / (time.perf_counter() - began)}
    while flights:
        runner.collect(flights.popleft())
    if _has_products(options):
        figures |= {"products_s": _products_seconds(shape, plan.num_tokens, options), "tokens": plan.num_tokens}
    if options.profile:
        for kernel in import_module(MODULE).kernel_times(step)[:NUM_KERNELS]:
            _print_line(kernel=kernel.name, launches=kernel.launches, us=round(kernel.seconds * 1e6, 1))
    return figures


def _check(result: StepResult) -> None:
    for part in result.parts:
        if part.error is not None:
            raise part.error


def _products_seconds(shape: EncoderShape, num_tokens: int, options: Namespace) -> float:
    hidden, ffn = shape.hidden, shape.ffn
    layer = [(3 * hidden, hidden), (hidden, hidden), (ffn, hidden), (hidden, ffn)]
    return float(import_module(MODULE).products_seconds(num_tokens, layer * shape.num_layers, options.seconds))


def _print_tiles(shape: EncoderShape, num_tokens: int, options: Namespace) -> None:
    dim, heads = shape.hidden // shape.num_heads, shape.num_heads
    times = import_module(MODULE).attention_seconds(num_tokens, options.length, heads, dim, options.seconds / 10)
    done = 4.0 * num_tokens * options.length * shape.hidden
    for tile, seconds in times.items():
        _print_line(tile=tile, us=round(seconds * 1e6, 1), tflops=round(done / seconds / 1e12, 1))


def _runner(model: DrawnModel, step_tokens: int, options: Namespace) -> WholeTextRunner:
    rows = max(1, step_tokens // options.length)
    kv_dtype = base.open(options.device).facts().kv_formats[0]
    limits = Limits(
        step_tokens, rows, max_logits=rows, max_blocks=-(-options.length // 16), num_blocks=1, kv_dtype=kv_dtype
    )
    lowered = LoweringOptions(quantize=options.quantize)
    assert model.pool is not None
    return WholeTextRunner(
        base.open(options.device).lower(model.graph, model.weights, limits, lowered), limits, model.pool
    )


def _plan(step_tokens: int, length: int) -> StepPlan:
    rng, count = np.random.default_rng(0), max(1, step_tokens // length)
    texts = rng.integers(0, VOCABULARY, (count, length)).tolist()
    parts = tuple(Part(str(row), row, 0, tuple(text), 0, (), False, True) for row, text in enumerate(texts))
    return StepPlan(1, parts, num_tokens=count * length)


def _measure_engine(folder: str, step_tokens: int, options: Namespace) -> dict[str, Any]:
    """Send requests, all at once, and wait for their vectors."""
    count = max(1, min(REQUESTED_TOKENS, 64 * step_tokens) // options.length)
    settings: dict[str, Any] = {"max_step_tokens": step_tokens, "max_rows": max(1, step_tokens // options.length)}
    settings |= {"max_waiting": count, "quantize": options.quantize, "pooling": POOLING}
    with LLM(folder, device=options.device, load_format=LOAD_FORMAT, sampling_defaults="none", **settings) as llm:
        for number in (max(1, count // 8), count):  # the first ones warm up
            seconds = _request_vectors(llm, number, options.length)
    return {"tokens_per_s": count * options.length / seconds}


def _request_vectors(llm: LLM, count: int, length: int) -> float:
    """Return the seconds until the last of so many vectors is there."""
    rng, ended = np.random.default_rng(count), queue.SimpleQueue[Finished | Failed]()
    texts = [tuple(text) for text in rng.integers(0, VOCABULARY, (count, length)).tolist()]
    requests = [GenerateRequest(f"{count}-{n}", text, kind=RequestKind.EMBED) for n, text in enumerate(texts)]

    def receive(message: Any) -> None:
        if isinstance(message, Finished | Failed):
            ended.put(message)

    began = time.perf_counter()
    for request in requests:
        llm.client.submit(request, receive)
    for _ in requests:
        message = ended.get()
        if isinstance(message, Failed):
            raise message.error
    return time.perf_counter() - began


def _print_rates(path: str, step_tokens: int, weights: int, rate: float, figures: dict[str, Any]) -> None:
    tokens_per_s = figures["tokens_per_s"]
    done = 2.0 * weights * tokens_per_s
    line = {"path": path, "step_tokens": step_tokens, "tokens_per_s": round(tokens_per_s)}
    line |= {"tflops": round(done / 1e12, 1), "of_product_rate": round(done / rate, 3)}
    if "products_s" in figures:
        line["products_alone"] = round(2.0 * prod((weights, figures["tokens"])) / figures["products_s"] / rate, 3)
    _print_line(**line)


def _print_line(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)
