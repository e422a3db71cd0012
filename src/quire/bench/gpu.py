"""`quire bench gpu`: the engine on a GPU under fixed loads, with random weights in the shapes of public models.

`python -m quire.bench gpu [--shape llama8b] [--fp8] [--scenarios c1,c10]` needs torch, triton and numpy, no server. It
prints one JSON line a scenario: a closed loop, greedy, no tokenizer, prefix caching on, no drafts. A scenario that is
named twice runs twice, with other prompts. `--cold` measures the first requests after a start. `weights_per_s` times
the bytes of a weight is the bandwidth that reading the weights takes; `multiply_adds_per_s` is the rate of all
products. Of models with experts, `distinct_experts` is how many of a layer's experts a step of the scenario's
concurrency reads, if all are equally likely; `of_bandwidth` is the share of 4.34 TB/s, which an H200 reaches, that
reading the weights takes.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import random
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from quire.bench.engines.random_models import LOAD_FORMAT, SHAPES, MultipliedWeights, multiplied_weights, write_config
from quire.engine.llm import LLM
from quire.engine.messages import Failed
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest, SamplingParams

FAST_REPLY_SECONDS = 0.002  # an engine that is capturing CUDA graphs replies later
NUM_FAST_REPLIES = 30  # in a row: the engine is idle
POLL_SECONDS = 0.011
MAX_IDLE_WAIT = 60.0  # seconds
PROMPT_TOKEN_IDS = (1000, 100000)
H200_GB_PER_S = 4340  # measured


class Scenario(NamedTuple):
    """A closed loop of requests of equal size."""

    num_requests: int
    prompt_tokens: int
    shared_tokens: int  # of the prompt, common to all requests
    output_tokens: int
    concurrency: int


SCENARIOS = {
    "c1": Scenario(2, 512, 0, 256, 1),
    "c10": Scenario(20, 512, 0, 256, 10),
    "c50": Scenario(100, 512, 0, 256, 50),
    "c100": Scenario(200, 512, 0, 256, 100),
    "peak_128_128": Scenario(2000, 128, 0, 128, 1024),
    "peak_2048_128": Scenario(300, 2048, 0, 128, 1024),
    "peak_128_2048": Scenario(300, 128, 0, 2048, 1024),
    "peak_1024_1024": Scenario(768, 1024, 0, 1024, 768),
    "shared_2048_64": Scenario(512, 2112, 2048, 64, 128),
    "burst_24": Scenario(24, 320, 256, 128, 24),
    "prompts": Scenario(64, 2048, 0, 1, 64),
}


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line and run the scenarios."""
    parser = ArgumentParser(prog="quire bench gpu", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama8b", help="the shape of the random model")
    parser.add_argument("--fp8", action="store_true", help="weights and activations as FP8")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="scenarios, separated by commas")
    parser.add_argument(
        "--cold", action="store_true", help="measure right after the start: no warm-up, no wait for CUDA graph captures"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the engine")
    run_scenarios(parser.parse_args(arguments.rest))


def run_scenarios(options: Namespace) -> None:
    """Load the model, run each scenario and print its figures."""
    settings: dict[str, Any] = {"max_rows": 1024, "max_step_tokens": 8192, "max_context": 4096, "max_waiting": 4096}
    settings["speculate"] = "off"  # the text of random weights repeats itself: drafts would look far too good
    settings |= dict(each.split("=", 1) for each in options.set)
    if options.fp8:
        settings["quantize"] = "fp8"
    name = options.shape + ("-fp8" if options.fp8 else "")
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), options.shape)
        weights = multiplied_weights(Path(folder))
        with LLM(folder, device=options.device, load_format=LOAD_FORMAT, sampling_defaults="none", **settings) as llm:
            run_scenario(llm, Scenario(1, 32, 0, 4, 1), "first")
            num_blocks = llm.client.ready.num_blocks
            _print_line(scenario="start", model=name, seconds=round(_process_age(), 2), num_blocks=num_blocks)
            gc.collect()
            gc.freeze()  # as a server's engine does after loading
            if not options.cold:
                _print_line(scenario="captured", model=name, seconds=round(_wait_until_idle(llm), 2))
            for index, each in enumerate(options.scenarios.split(",")):
                if not options.cold:
                    run_scenario(llm, warm_up(SCENARIOS[each]), f"warm-up {index} {each}")
                figures = run_scenario(llm, SCENARIOS[each], f"{index} {each}")
                figures["rows"] = min(SCENARIOS[each].concurrency, SCENARIOS[each].num_requests)
                _print_line(scenario=each, model=name, **figures, **_model_rates(figures, weights, options.fp8))


def warm_up(scenario: Scenario) -> Scenario:
    """Return a short version: up to 128 requests with 8 output tokens each."""
    num_requests = min(scenario.num_requests, scenario.concurrency, 128)
    return scenario._replace(num_requests=num_requests, output_tokens=8)


def _wait_until_idle(llm: LLM) -> float:
    """Wait until idle-time preparation has finished; return the seconds it took."""
    began, num_fast = time.perf_counter(), 0
    while num_fast < NUM_FAST_REPLIES and time.perf_counter() - began < MAX_IDLE_WAIT:
        sent = time.perf_counter()
        llm.client.counters()
        num_fast = num_fast + 1 if time.perf_counter() - sent < FAST_REPLY_SECONDS else 0
        time.sleep(POLL_SECONDS)
    return time.perf_counter() - began


def _process_age() -> float:
    """Return the seconds since this process was started."""
    start = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start


def _print_line(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def prompts(scenario: Scenario, seed: str) -> Iterator[tuple[int, ...]]:
    """Yield the prompts of a scenario; equal seeds give equal prompts."""
    rng = random.Random(seed)

    def random_tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(*PROMPT_TOKEN_IDS) for _ in range(count))

    prefix = random_tokens(scenario.shared_tokens)
    for _ in range(scenario.num_requests):
        yield prefix + random_tokens(scenario.prompt_tokens - scenario.shared_tokens)


def run_scenario(llm: LLM, scenario: Scenario, seed: str) -> dict[str, Any]:
    """Run the closed loop and return its figures. Requests go to the client directly, without text or asyncio."""
    sampling = SamplingParams(max_tokens=scenario.output_tokens, temperature=0.0, ignore_eos=True)
    requests = [GenerateRequest(f"{seed}-{n}", tokens, sampling) for n, tokens in enumerate(prompts(scenario, seed))]
    events: queue.SimpleQueue[tuple[str, float, bool]] = queue.SimpleQueue()  # id, time, whether it has ended
    sent: dict[str, float] = {}
    failures: list[QuireError] = []
    before = llm.client.counters()
    began = time.perf_counter()

    def submit(request: GenerateRequest) -> None:
        has_tokens = False

        def receive(message: Any) -> None:
            nonlocal has_tokens
            has_ended = isinstance(message, Finished | Failed)
            failures.extend([message.error] if isinstance(message, Failed) else [])
            if has_ended or (isinstance(message, Tokens) and not has_tokens):
                has_tokens = True
                events.put((request.id, time.perf_counter(), has_ended))

        sent[request.id] = time.perf_counter()
        llm.client.submit(request, receive)

    waiting = iter(requests)
    for _, request in zip(range(scenario.concurrency), waiting, strict=False):
        submit(request)
    first_tokens, num_ended = dict[str, float](), 0
    while num_ended < len(requests):
        request_id, now, has_ended = events.get()
        first_tokens.setdefault(request_id, now - sent[request_id])
        num_ended += has_ended
        if failures:
            raise failures[0]
        if has_ended and (following := next(waiting, None)) is not None:
            submit(following)
    seconds = time.perf_counter() - began
    rates = _rates(scenario, seconds, sorted(first_tokens.values()))
    return rates | _counters(before, llm.client.counters(), seconds)


def _rates(scenario: Scenario, seconds: float, first_tokens: Sequence[float]) -> dict[str, Any]:
    num_tokens = scenario.num_requests * scenario.output_tokens
    count = len(first_tokens)
    return {
        "output_tokens_per_s": round(num_tokens / seconds, 1),
        "seconds": round(seconds, 3),
        "requests": scenario.num_requests,
        "ttft_p50": round(first_tokens[count // 2], 4),
        "ttft_p99": round(first_tokens[min(count - 1, int(count * 0.99))], 4),
    }


def _model_rates(figures: dict[str, Any], weights: MultipliedWeights, is_fp8: bool) -> dict[str, float]:
    """Return how fast weights are read, and multiplied with, in billions a second."""
    rows, seconds = figures.pop("rows"), figures["seconds"] * 1e9
    read, multiplied = figures["steps"] * weights.read(rows), figures["computed_tokens"] * weights.of_a_token
    rates = {"weights_per_s": round(read / seconds, 1), "multiply_adds_per_s": round(multiplied / seconds, 1)}
    if weights.of_experts:
        distinct = weights.distinct_experts(rows)
        of_experts = (weights.of_experts if is_fp8 else weights.expert_bytes) * distinct / weights.num_experts
        read_bytes = figures["steps"] * (weights.shared * (1 if is_fp8 else 2) + of_experts)
        rates["distinct_experts"] = round(distinct, 1)
        rates["of_bandwidth"] = round(read_bytes / seconds / H200_GB_PER_S, 3)
    return rates


def _counters(before: Any, after: Any, seconds: float) -> dict[str, Any]:
    """Return the differences of the engine's counters. `busy`: the share of time that the device ran kernels."""
    return {
        "busy": round((after.busy_seconds - before.busy_seconds) / seconds, 4),
        "steps": after.num_steps - before.num_steps,
        "computed_tokens": after.computed_tokens - before.computed_tokens,
        "hit_tokens": after.hit_tokens - before.hit_tokens,
        "preemptions": after.num_preemptions - before.num_preemptions,
    }
