"""`quire bench core`: the scheduler and the cache alone, on one CPU core."""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import sys
import time
from array import array
from pathlib import Path

from quire.bench.figures.figure import Figure, at_most
from quire.bench.figures.table import figure_table
from quire.bench.machine.description import describe_machine
from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.types.request import CacheKey, GenerateRequest, SamplingParams
from quire.types.step import PartResult, StepPlan, StepResult

KEY = CacheKey()


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    print(describe_machine())
    print(figure_table(core_figures()))


def core_figures() -> list[Figure]:
    """Make all measurements."""
    return [plan_and_commit(), match_prompt(), million_blocks(chain=256), million_blocks(chain=4)]


def plan_and_commit(num_requests: int = 1000, num_steps: int = 400) -> Figure:
    """Time `plan` + `commit` + `drain` of a step in which 1,000 running requests each get a token."""
    rng = random.Random(0)
    config = SchedulerConfig(max_rows=num_requests, max_step_tokens=1 << 20, max_context=1 << 14)
    scheduler = Scheduler(KVCache(num_blocks=200_000), config)
    for index in range(num_requests):
        prompt = tuple(rng.randrange(32_000) for _ in range(rng.randint(16, 512)))
        sampling = SamplingParams(max_tokens=8192)
        scheduler.add(GenerateRequest(str(index), prompt, sampling, eos_token_ids=(32_000,), key=str(index % 10)), 0.0)
    while any(part.tokens is not None for part in _step(scheduler, rng)[0].parts):
        pass  # until all prompts are computed
    seconds = sorted(_step(scheduler, rng)[1] for _ in range(num_steps))
    note = (
        f"90th percentile {seconds[num_steps * 9 // 10] * 1e3:.2f} ms; {num_steps} steps, each sealing about 60 blocks"
    )
    return Figure("plan + commit, 1,000 running requests", statistics.median(seconds) * 1e3, "ms", at_most(3), note)


def _step(scheduler: Scheduler, rng: random.Random) -> tuple[StepPlan, float]:
    begin = time.perf_counter()
    plan = scheduler.plan(begin)
    planned = time.perf_counter()
    parts = tuple(PartResult((rng.randrange(32_000),) if part.num_logits else ()) for part in plan.parts)
    result = StepResult(plan.number, parts, 0.01)
    resumed = time.perf_counter()
    scheduler.commit(result, resumed)
    scheduler.drain()
    return plan, planned - begin + time.perf_counter() - resumed


def match_prompt(num_blocks: int = 100_000, prompt_tokens: int = 4096, num_matches: int = 2000) -> Figure:
    """Time `match` of a fully cached prompt among 100,000 cached blocks."""
    rng = random.Random(0)
    cache = KVCache(num_blocks)
    prompts = []
    for _ in range(num_blocks * 16 // prompt_tokens):
        prompts.append(array("I", (rng.randrange(32_000) for _ in range(prompt_tokens))))
        _store(cache, prompts[-1])
    seconds = []
    for _ in range(num_matches):
        prompt = rng.choice(prompts)
        begin = time.perf_counter()
        hit = cache.match(prompt, KEY)
        seconds.append(time.perf_counter() - begin)
        assert hit.num_tokens == prompt_tokens
    seconds.sort()
    note = f"90th percentile {seconds[num_matches * 9 // 10] * 1e6:.0f} µs; 256 blocks found in {len(prompts)} prompts"
    return Figure("match of 4,096 tokens in 100,000 blocks", statistics.median(seconds) * 1e6, "µs", at_most(150), note)


def million_blocks(num_blocks: int = 1_000_000, chain: int = 256) -> Figure:
    """Measure the resident memory of a full cache. `chain`: blocks in a row before the tree branches."""
    rng = random.Random(0)
    gc.collect()
    before = _resident_bytes()
    cache = KVCache(num_blocks)
    for _ in range(num_blocks // chain):
        _store(cache, array("I", rng.randbytes(chain * 16 * 4)))
    assert cache.stats().num_cached == num_blocks // chain * chain
    used = (_resident_bytes() - before) / 1e6
    note = f"chains of {chain} blocks, {used * 1e6 / num_blocks:.0f} bytes a block"
    return Figure("memory of 1,000,000 cached blocks", used, "MB", at_most(400), note)


def _store(cache: KVCache, tokens: array[int]) -> None:
    """Cache a prompt, as a request that computed it does."""
    lease = cache.lease(cache.match(tokens, KEY), tokens, KEY, 0.0)
    assert cache.extend(lease, len(tokens), 0.0)
    cache.seal(lease, tokens, len(tokens), 0.0)
    cache.release(lease, tokens, len(tokens), 0.0)


def _resident_bytes() -> int:
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
