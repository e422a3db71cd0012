"""The engine on a GPU: random weights in the shapes of public models, loads that every engine is measured on.

`python -m quire.bench gpu [--model llama8b] [--fp8] [--scenarios c1,c10]` needs torch, triton and numpy, no server. It
prints one JSON line for each scenario: a closed loop, greedy, no tokenizer, prefix caching on. A scenario that is named
twice runs twice, with other prompts. `--cold` measures what the first users after a start see.
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

from quire.engine.llm import LLM
from quire.engine.messages import Failed
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest, SamplingParams

MODELS: dict[str, dict[str, int]] = {
    "llama8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "tiny": {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8},
}
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "initializer_range": 0.02,
}
QUICK = 0.002  # seconds
QUICK_ANSWERS = 30
PAUSE = 0.011
LONGEST = 60.0
WORDS = (1000, 100000)  # token ids of prompts


class Scenario(NamedTuple):
    """A load: requests of so many tokens in and out."""

    requests: int
    tokens_in: int
    shared: int  # of the tokens in, by all requests
    tokens_out: int
    concurrency: int


SCENARIOS = {
    "c1": Scenario(2, 512, 0, 256, 1),
    "c10": Scenario(20, 512, 0, 256, 10),
    "c50": Scenario(100, 512, 0, 256, 50),
    "c100": Scenario(200, 512, 0, 256, 100),
    "peak_128_128": Scenario(2000, 128, 0, 128, 1024),
    "peak_2048_128": Scenario(300, 2048, 0, 128, 1024),
    "peak_128_2048": Scenario(300, 128, 0, 2048, 1024),
    "shared_2048_64": Scenario(512, 2112, 2048, 64, 128),
    "burst_24": Scenario(24, 320, 256, 128, 24),
}


def main(given: Namespace) -> None:
    """What `python -m quire.bench gpu` does."""
    parser = ArgumentParser(prog="quire bench gpu", description=__doc__)
    parser.add_argument("--shape", choices=sorted(MODELS), default="llama8b", help="whose shape the random model has")
    parser.add_argument("--fp8", action="store_true", help="weights and activations as FP8")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="which loads, separated by commas")
    parser.add_argument(
        "--cold", action="store_true", help="right after the start: no warm-up, no waiting for captures in idle time"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the engine")
    run(parser.parse_args(given.rest))


def run(asked: Namespace) -> None:
    """Load the model, put it under each load, print what came of it."""
    settings: dict[str, Any] = {"max_rows": 1024, "max_step_tokens": 8192, "max_context": 4096, "max_waiting": 4096}
    settings |= dict(each.split("=", 1) for each in asked.set)
    if asked.fp8:
        settings["quantize"] = "fp8"
    name = asked.shape + ("-fp8" if asked.fp8 else "")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPE | MODELS[asked.shape]))
        with LLM(folder, device=asked.device, load_format="dummy", sampling_defaults="none", **settings) as llm:
            measure(llm, Scenario(1, 32, 0, 4, 1), "first")
            _say(scenario="start", model=name, seconds=round(_age(), 2), num_blocks=llm.client.ready.num_blocks)
            gc.collect()
            gc.freeze()  # as a server's engine does when it has loaded
            if not asked.cold:
                _say(scenario="captured", model=name, seconds=round(_idle(llm), 2))
            for place, each in enumerate(asked.scenarios.split(",")):
                if not asked.cold:
                    measure(llm, warm_up(SCENARIOS[each]), f"warm-up {place} {each}")
                _say(scenario=each, model=name, **measure(llm, SCENARIOS[each], f"{place} {each}"))


def warm_up(scenario: Scenario) -> Scenario:
    """Some requests at once, with short answers: whatever is done once, is done."""
    return scenario._replace(requests=min(scenario.requests, scenario.concurrency, 128), tokens_out=8)


def _idle(llm: LLM) -> float:
    """Seconds until the engine, which has nothing to do, has prepared all that it wants to."""
    began, waits = time.perf_counter(), 0
    while (
        waits < QUICK_ANSWERS and time.perf_counter() - began < LONGEST
    ):  # it answers at once when it sleeps, and mostly late while it captures
        asked = time.perf_counter()
        llm.client.counters()
        waits = waits + 1 if time.perf_counter() - asked < QUICK else 0
        time.sleep(PAUSE)
    return time.perf_counter() - began


def _age() -> float:
    """Seconds since this process began."""
    started = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def prompts(scenario: Scenario, seed: str) -> Iterator[tuple[int, ...]]:
    """The same ones for the same seed."""
    chance = random.Random(seed)

    def text(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(*WORDS) for _ in range(count))

    prefix = text(scenario.shared)
    for _ in range(scenario.requests):
        yield prefix + text(scenario.tokens_in - scenario.shared)


def measure(llm: LLM, scenario: Scenario, seed: str) -> dict[str, Any]:
    """Every request as soon as there is room for it."""
    sampling = SamplingParams(max_tokens=scenario.tokens_out, temperature=0.0, ignore_eos=True)
    requests = [GenerateRequest(f"{seed}-{n}", tokens, sampling) for n, tokens in enumerate(prompts(scenario, seed))]
    news: queue.SimpleQueue[tuple[str, float, bool]] = queue.SimpleQueue()
    sent: dict[str, float] = {}
    failures: list[QuireError] = []
    before = llm.client.counters()
    began = time.perf_counter()

    def submit(request: GenerateRequest) -> None:
        has_begun = False

        def hear(each: Any) -> None:
            nonlocal has_begun
            is_over = isinstance(each, Finished | Failed)
            failures.extend([each.error] if isinstance(each, Failed) else [])
            if is_over or (isinstance(each, Tokens) and not has_begun):
                has_begun = True
                news.put((request.id, time.perf_counter(), is_over))

        sent[request.id] = time.perf_counter()
        llm.client.submit(request, hear)

    waiting = iter(requests)
    for _, request in zip(range(scenario.concurrency), waiting, strict=False):
        submit(request)
    first, ends = dict[str, float](), 0
    while ends < len(requests):
        request_id, at, is_over = news.get()
        first.setdefault(request_id, at - sent[request_id])
        ends += is_over
        if failures:
            raise failures[0]
        if is_over and (following := next(waiting, None)) is not None:
            submit(following)
    seconds = time.perf_counter() - began
    return _facts(scenario, seconds, sorted(first.values())) | _steps(before, llm.client.counters(), seconds)


def _facts(scenario: Scenario, seconds: float, first: Sequence[float]) -> dict[str, Any]:
    out = scenario.requests * scenario.tokens_out
    return {
        "output_tokens_per_s": round(out / seconds, 1),
        "seconds": round(seconds, 3),
        "requests": scenario.requests,
        "ttft_p50": round(first[len(first) // 2], 4),
        "ttft_p99": round(first[min(len(first) - 1, int(len(first) * 0.99))], 4),
    }


def _steps(before: Any, after: Any, seconds: float) -> dict[str, Any]:
    """What the engine itself counted meanwhile; `busy`: the share of time between a step's first and last kernel."""
    return {
        "busy": round((after.busy_seconds - before.busy_seconds) / seconds, 4),
        "steps": after.num_steps - before.num_steps,
        "computed_tokens": after.computed_tokens - before.computed_tokens,
        "hit_tokens": after.hit_tokens - before.hit_tokens,
        "preemptions": after.num_preemptions - before.num_preemptions,
    }
