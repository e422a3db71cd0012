"""Would a change help? Each question is answered by serving the same workload again with one thing changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.advisor.cache_replay import prefix_pins, replay_cache
from quire.advisor.number_format import format_seconds
from quire.advisor.roofline import Roofline, decode_work
from quire.advisor.shared_prefixes import SharedPrefixes
from quire.advisor.simulation import Simulation, SimulationResult
from quire.advisor.workload import TraceCall, TraceWorkload
from quire.config import SchedulerConfig
from quire.devices.facts import MemoryKind
from quire.types.formats import KV_FORMATS

SMALLER_WEIGHTS = {  # the next smaller format, by kind of device
    MemoryKind.OWN: {"f32": "bf16", "bf16": "fp8", "f16": "fp8", "fp8": "int4", "int8": "int4"},
    MemoryKind.HOST: {"f32": "q8_0", "bf16": "q8_0", "f16": "q8_0", "q8_0": "q4_k", "q6_k": "q4_k", "q5_k": "q4_k"},
}
NUM_DRAFTS, ACCEPTANCE = 4, 0.7  # drafted tokens per step; probability that one is accepted after those before it
DRAFT_COST = 0.10  # of a step, for drafting
NUM_PINNED = 8  # prefixes
MIN_GAIN = 0.05  # a smaller change is noise
MIN_HIT_GAIN = 0.02  # points of hit rate
MIN_WAIT_GAIN, MIN_WAIT = 0.3, 0.5  # of the time to the first token: relative gain, and seconds that users notice


@dataclass(frozen=True, slots=True)
class ServingSetup:
    """A simulated server: model, device, scheduler and cache size."""

    roofline: Roofline
    scheduler: SchedulerConfig
    num_blocks: int
    block_tokens: int = 16

    def serve(self, workload: TraceWorkload) -> SimulationResult:
        """Simulate the workload on this server."""
        return Simulation(self.roofline, self.scheduler, self.num_blocks, self.block_tokens).run(workload)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change and its effect."""

    name: str
    change: str
    helps: bool
    explanation: str  # with the numbers
    before: dict[str, float]
    after: dict[str, float]

    def __str__(self) -> str:
        return f"{self.change[0].upper()}{self.change[1:]}: {self.explanation}"


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The simulation that changes are compared with."""

    workload: TraceWorkload
    setup: ServingSetup
    served: SimulationResult
    prefixes: SharedPrefixes

    def serve_changed(self, **changes: Any) -> SimulationResult | None:
        """Simulate a changed setup. None: it answers fewer requests, so that its times cannot be compared."""
        after, before = replace(self.setup, **changes).serve(self.workload), self.served
        is_same = after.num_calls == before.num_calls and after.num_refused <= before.num_refused
        return after if after.num_calls > 0 and is_same else None


def max_request_rate(setup: ServingSetup, workload: TraceWorkload) -> float:
    """Return the requests per second that are served if all arrive at the same time: the setup's capacity."""
    calls = tuple(replace(call, time=0.0) for call in workload.calls)
    served = setup.serve(replace(workload, calls=calls))
    return served.num_calls / served.seconds if served.seconds else 0.0


def key_metrics(served: SimulationResult) -> dict[str, float]:
    """Return the metrics that are compared."""
    return {
        "output_tokens_per_second": served.output_rate,
        "first_token_p50": served.first_token.p50,
        "first_token_p95": served.first_token.p95,
        "token_gap_p50": served.token_gap.p50,
        "end_to_end_p50": served.end_to_end.p50,
        "hit_rate": served.hit_rate,
        "utilization": served.utilization,
    }


def run_what_ifs(
    workload: TraceWorkload, setup: ServingSetup, served: SimulationResult, prefixes: SharedPrefixes
) -> list[WhatIf]:
    """Evaluate all changes that apply to this setup."""
    base = _Baseline(workload, setup, served, prefixes)
    answers = (_smaller_weights(base), _smaller_kv(base), _speculation(base), _pins(base), _second_replica(base))
    return [answer for answer in answers if answer is not None]


def _smaller_weights(base: _Baseline) -> WhatIf | None:
    setup, roofline = base.setup, base.setup.roofline
    smaller = SMALLER_WEIGHTS[roofline.hardware.memory_kind].get(roofline.shape.precision)
    if smaller is None:
        return None
    other = replace(roofline, shape=roofline.shape.in_precision(smaller))
    fills_memory = setup.num_blocks >= roofline.num_blocks(setup.block_tokens)
    num_blocks = max(1, other.num_blocks(setup.block_tokens)) if fills_memory else setup.num_blocks
    after = base.serve_changed(roofline=other, num_blocks=num_blocks)
    if after is None:
        return None
    freed = other.kv_bytes() - roofline.kv_bytes()
    return _compared(
        base,
        after,
        "quantization",
        f"weights in {smaller} instead of {roofline.shape.precision}",
        f"{freed / 1e9:.1f} GB more for KV. Answers change slightly: evaluate the quality on your own prompts.",
    )


def _smaller_kv(base: _Baseline) -> WhatIf | None:
    setup, roofline = base.setup, base.setup.roofline
    smaller = roofline.hardware.facts.smaller_kv_format(roofline.shape.kv_dtype)
    if smaller is None or not roofline.shape.layers:
        return None
    other = replace(roofline, shape=roofline.shape.with_kv(smaller))
    ratio = KV_FORMATS[roofline.shape.kv_dtype].value_bytes / KV_FORMATS[smaller].value_bytes
    after = base.serve_changed(roofline=other, num_blocks=int(setup.num_blocks * ratio))
    if after is None:
        return None
    before_hits, after_hits = base.served.hit_rate, after.hit_rate
    compared = _compared(
        base,
        after,
        "kv_quantization",
        f"KV in {smaller} instead of {roofline.shape.kv_dtype}",
        f"the same memory holds {ratio:.1f} times the tokens, hit rate {after_hits:.0%} instead of {before_hits:.0%}.",
    )
    return replace(compared, helps=compared.helps or after_hits > before_hits + MIN_HIT_GAIN)


def _compared(base: _Baseline, after: SimulationResult, name: str, change: str, explanation: str) -> WhatIf:
    """Return the effect of another number format. It helps if answers are faster."""
    before = base.served
    gain = before.end_to_end.p50 / after.end_to_end.p50 - 1 if after.end_to_end.p50 else 0.0
    latencies = (
        f"Whole answer {format_seconds(after.end_to_end.p50)} instead of {format_seconds(before.end_to_end.p50)} "
        f"(p50), per token {format_seconds(after.token_gap.p50)} instead of {format_seconds(before.token_gap.p50)}"
    )
    return WhatIf(
        name,
        change,
        gain > MIN_GAIN,
        f"{latencies}; {explanation}",
        key_metrics(before),
        key_metrics(after),
    )


def _speculation(base: _Baseline) -> WhatIf:
    """Estimate from the mean batch: a step with drafts yields more tokens, and takes longer if it is compute-bound."""
    served, roofline = base.served, base.setup.roofline
    rows, context = max(1.0, served.mean_rows), served.mean_context
    plain = roofline.seconds(decode_work(rows, context))
    drafted = roofline.seconds(decode_work(rows, context, 1 + NUM_DRAFTS)) * (1 + DRAFT_COST)
    tokens = (1 - ACCEPTANCE ** (NUM_DRAFTS + 1)) / (1 - ACCEPTANCE)
    gain = tokens * plain / drafted
    after = key_metrics(served) | {"token_gap_p50": served.token_gap.p50 / gain}
    return WhatIf(
        "speculation",
        f"speculative decoding, {NUM_DRAFTS} drafts per step, {ACCEPTANCE:.0%} accepted",
        gain > 1 + MIN_GAIN,
        f"With {rows:.1f} streams per step (simulated), a step yields {tokens:.1f} tokens instead of 1 and takes "
        f"{drafted / plain:.1f} times as long: {gain:.2f} times the tokens/s per stream."
        " Quire drafts without a setting where that pays.",
        key_metrics(served),
        after,
    )


def _pins(base: _Baseline) -> WhatIf | None:
    """Pin the prefixes with the largest savings, so that they are not evicted."""
    workload, setup = base.workload, base.setup
    best = [prefix for prefix in base.prefixes.largest(NUM_PINNED) if prefix.saves]
    if not best:
        return None
    plain = replay_cache(workload, setup.num_blocks, setup.block_tokens)
    pinned = replay_cache(workload, setup.num_blocks, setup.block_tokens, prefix_pins(workload, best))
    helps = pinned.rate > plain.rate + MIN_HIT_GAIN
    num_blocks = sum(-(-prefix.num_tokens // setup.block_tokens) for prefix in best)
    return WhatIf(
        "pins",
        f"pinning the prefixes that save most ({len(best)} of them, {num_blocks:,} blocks)",
        helps,
        f"Hit rate {pinned.rate:.1%} instead of {plain.rate:.1%}"
        + ("." if helps else ": LRU eviction keeps them without pins."),
        {"hit_rate": plain.rate},
        {"hit_rate": pinned.rate},
    )


def _second_replica(base: _Baseline) -> WhatIf:
    """Add a replica with prefix-aware routing; the hit rate of round-robin routing is reported beside it."""
    workload, setup, served = base.workload, base.setup, base.served
    by_prefix = _serve_on_two(workload, setup, _route_by_prefix(workload, setup.block_tokens))
    round_robin = _serve_on_two(workload, setup, [index % 2 for index in range(len(workload.calls))])
    first = served.first_token.p95 / by_prefix["first_token_p95"] if by_prefix["first_token_p95"] else 1.0
    rate = by_prefix["output_tokens_per_second"] / served.output_rate if served.output_rate else 1.0
    return WhatIf(
        "second_replica",
        "a second machine of the same kind",
        rate > 1 + MIN_GAIN or (first > 1 + MIN_WAIT_GAIN and served.first_token.p95 > MIN_WAIT),
        f"First token {format_seconds(by_prefix['first_token_p95'])} instead of "
        f"{format_seconds(served.first_token.p95)} (p95), {rate:.2f} times the tokens/s, if requests with the same "
        f"prefix go to the same machine. Hit rate {by_prefix['hit_rate']:.0%}; with round-robin routing "
        f"{round_robin['hit_rate']:.0%}.",
        key_metrics(served),
        by_prefix,
    )


def _route_by_prefix(workload: TraceWorkload, block_tokens: int) -> list[int]:
    """Return the replica of each call: that of its first block; for a new block, the less loaded one."""
    replicas: dict[object, int] = {}
    load = [0, 0]
    route = []
    for call in workload.calls:
        first_block = (call.key, call.marks[min(block_tokens, call.num_prompt) - 1] if call.marks else 0)
        replica = replicas.setdefault(first_block, 0 if load[0] <= load[1] else 1)
        if load[replica] > 2 * load[1 - replica] + call.num_prompt:  # a prefix of all calls is worth computing twice
            replica = 1 - replica
        load[replica] += call.num_prompt + call.num_output
        route.append(replica)
    return route


def _serve_on_two(workload: TraceWorkload, setup: ServingSetup, route: Sequence[int]) -> dict[str, float]:
    """Return the key metrics of two replicas together."""
    halves: list[list[TraceCall]] = [[], []]
    for call, replica in zip(workload.calls, route, strict=True):
        halves[replica].append(call)
    served = [setup.serve(replace(workload, calls=tuple(half))) for half in halves if half]
    queried = [sum(call.num_prompt for call in half) for half in halves if half]
    weights = [each.num_calls / max(1, sum(s.num_calls for s in served)) for each in served]
    metrics = [key_metrics(each) for each in served]
    together = {name: sum(w * each[name] for w, each in zip(weights, metrics, strict=True)) for name in metrics[0]}
    seconds = max(each.seconds for each in served)
    together["output_tokens_per_second"] = sum(each.num_output for each in served) / seconds if seconds else 0.0
    hits = sum(each.hit_rate * count for each, count in zip(served, queried, strict=True))
    together["hit_rate"] = hits / max(1, sum(queried))
    return together
