"""Would something else help? Each question is answered by serving the same workload again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from quire.advisor.figures import seconds
from quire.advisor.hits import pins_for, simulate_hits
from quire.advisor.prefixes import PrefixTree
from quire.advisor.roofline import Roofline, Work
from quire.advisor.simulate import Simulated, Simulation
from quire.advisor.workload import Call, Workload
from quire.config import SchedulerConfig
from quire.devices.facts import MemoryKind

LESS = {  # the next smaller weights, by the kind of memory
    MemoryKind.OWN: {"f32": "bf16", "bf16": "fp8", "f16": "fp8", "fp8": "int4", "int8": "int4"},
    MemoryKind.HOST: {"f32": "q8_0", "bf16": "q8_0", "f16": "q8_0", "q8_0": "q4_k", "q6_k": "q4_k", "q5_k": "q4_k"},
}
NUM_DRAFTS, ACCEPTED = 4, 0.7  # tokens that are guessed, and how likely each holds after those before it
DRAFT_COST = 0.10  # of a step, for making the guesses
NUM_PINNED = 8  # prefixes
MATTERS = 0.05  # a change below this is noise
HELPS_HITS = 0.02
HELPS_WAITING, SOON = 0.3, 0.5  # of the time to the first token; nobody notices less than so many seconds
HAS_DRAFTS = find_spec("quire.spec") is not None


@dataclass(frozen=True, slots=True)
class Setup:
    """What serves the workload."""

    roofline: Roofline
    scheduler: SchedulerConfig
    num_blocks: int
    block_tokens: int = 16

    def serve(self, workload: Workload) -> Simulated:
        """What becomes of it."""
        return Simulation(self.roofline, self.scheduler, self.num_blocks, self.block_tokens).run(workload)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One answer."""

    name: str
    change: str  # what would be different
    helps: bool
    says: str  # with its numbers
    before: dict[str, float]
    after: dict[str, float]


def num_per_second(setup: Setup, workload: Workload) -> float:
    """Requests that are served in a second when all of them are there at once: more than this cannot be."""
    calls = tuple(replace(call, time=0.0) for call in workload.calls)
    served = setup.serve(replace(workload, calls=calls))
    return served.num_calls / served.seconds if served.seconds else 0.0


def figures(served: Simulated) -> dict[str, float]:
    """The ones that are compared."""
    return {
        "output_tokens_per_second": served.output_rate,
        "first_token_p50": served.first_token.p50,
        "first_token_p95": served.first_token.p95,
        "token_gap_p50": served.token_gap.p50,
        "end_to_end_p50": served.end_to_end.p50,
        "hit_rate": served.hit_rate,
        "utilization": served.utilization,
    }


def what_if(workload: Workload, setup: Setup, served: Simulated, tree: PrefixTree) -> list[WhatIf]:
    """All questions that can be asked of this setup."""
    asked: Sequence[Callable[[Workload, Setup, Simulated, PrefixTree], WhatIf | None]] = (
        _smaller_weights,
        _smaller_kv,
        _speculation,
        _pins,
        _second_replica,
    )
    return [said for ask in asked if (said := ask(workload, setup, served, tree)) is not None]


def _smaller_weights(workload: Workload, setup: Setup, served: Simulated, tree: PrefixTree) -> WhatIf | None:
    roofline = setup.roofline
    smaller = LESS[roofline.hardware.memory_kind].get(roofline.shape.precision)
    if smaller is None:
        return None
    other = replace(roofline, shape=roofline.shape.in_precision(smaller))
    blocks = other.num_blocks(setup.block_tokens) if setup.num_blocks >= roofline.num_blocks(16) else setup.num_blocks
    after = replace(setup, roofline=other, num_blocks=max(1, blocks)).serve(workload)
    if not _serves_all(served, after):
        return None
    gain = _gain(served, after)
    room = other.kv_bytes() - roofline.kv_bytes()
    return WhatIf(
        "quantization",
        f"weights in {smaller} instead of {roofline.shape.precision}",
        gain > MATTERS,
        f"{_told(served, after)}; {room / 1e9:.1f} GB more are left for KV. Answers change a little: compare them on "
        "your own questions first.",
        figures(served),
        figures(after),
    )


def _smaller_kv(workload: Workload, setup: Setup, served: Simulated, tree: PrefixTree) -> WhatIf | None:
    roofline = setup.roofline
    smaller = roofline.hardware.facts.smaller_kv_format(roofline.shape.kv_dtype)
    if smaller is None:
        return None
    other = replace(roofline, shape=roofline.shape.with_kv(smaller))
    ratio = roofline.shape.kv_token_bytes / other.shape.kv_token_bytes
    after = replace(setup, roofline=other, num_blocks=int(setup.num_blocks * ratio)).serve(workload)
    if not _serves_all(served, after):
        return None
    helps = _gain(served, after) > MATTERS or after.hit_rate > served.hit_rate + HELPS_HITS
    return WhatIf(
        "kv_quantization",
        f"KV in {smaller} instead of {roofline.shape.kv_dtype}",
        helps,
        f"{_told(served, after)}; the same memory holds {ratio:.1f} times the tokens, and the hit rate goes from "
        f"{served.hit_rate:.0%} to {after.hit_rate:.0%}.",
        figures(served),
        figures(after),
    )


def _speculation(workload: Workload, setup: Setup, served: Simulated, tree: PrefixTree) -> WhatIf:
    """From the batch that was simulated: a step with drafts makes more tokens, and costs more where it computes."""
    rows, context = max(1.0, served.mean_rows), served.mean_context
    plain = setup.roofline.seconds(_decode(rows, context, 1))
    drafted = setup.roofline.seconds(_decode(rows, context, 1 + NUM_DRAFTS)) * (1 + DRAFT_COST)
    made = (1 - ACCEPTED ** (NUM_DRAFTS + 1)) / (1 - ACCEPTED)
    gain = made * plain / drafted
    after = figures(served) | {"token_gap_p50": served.token_gap.p50 / gain}
    return WhatIf(
        "speculation",
        f"{NUM_DRAFTS} drafts a step, each accepted {ACCEPTED:.0%} of the time",
        gain > 1 + MATTERS,
        f"With {rows:.1f} streams in a step, as simulated, a step with drafts makes {made:.1f} tokens instead of 1 and "
        f"takes {drafted / plain:.1f} times as long: tokens come {gain:.2f} times as fast."
        + ("" if HAS_DRAFTS else " This version of Quire makes no drafts; vLLM, SGLang and llama.cpp do."),
        figures(served),
        after,
    )


def _decode(rows: float, context: float, tokens: int) -> Work:
    read = round(rows * context)
    return Work(round(rows * tokens), read, read * tokens)


def _pins(workload: Workload, setup: Setup, served: Simulated, tree: PrefixTree) -> WhatIf | None:
    """The prefixes that save most, kept through eviction."""
    best = [prefix for prefix in tree.largest(NUM_PINNED) if prefix.saves]
    if not best:
        return None
    plain = simulate_hits(workload, setup.num_blocks, setup.block_tokens)
    pinned = simulate_hits(workload, setup.num_blocks, setup.block_tokens, pins_for(workload, best))
    helps = pinned.rate > plain.rate + HELPS_HITS
    needed = sum(-(-prefix.num_tokens // setup.block_tokens) for prefix in best)
    return WhatIf(
        "pins",
        f"the {len(best)} prefixes that save most are pinned ({needed:,} blocks)",
        helps,
        f"The hit rate goes from {plain.rate:.1%} to {pinned.rate:.1%}"
        + ("." if helps else ": eviction by last use keeps them already."),
        {"hit_rate": plain.rate},
        {"hit_rate": pinned.rate},
    )


def _second_replica(workload: Workload, setup: Setup, served: Simulated, tree: PrefixTree) -> WhatIf:
    """Requests with the same beginning go to the same replica; beside it, what taking turns would give."""
    together = _served_by_two(workload, setup, _by_prefix(workload))
    turns = _served_by_two(workload, setup, [place % 2 for place in range(len(workload.calls))])
    first = served.first_token.p95 / together["first_token_p95"] if together["first_token_p95"] else 1.0
    rate = together["output_tokens_per_second"] / served.output_rate if served.output_rate else 1.0
    return WhatIf(
        "second_replica",
        "a second machine of the same kind",
        rate > 1 + MATTERS or (first > 1 + HELPS_WAITING and served.first_token.p95 > SOON),
        f"First tokens (p95) come after {seconds(together['first_token_p95'])} instead of "
        f"{seconds(served.first_token.p95)}, and {rate:.2f} times as many tokens a second are made, if requests with "
        f"equal beginnings go to the same one; the hit rate is then {together['hit_rate']:.0%}, "
        f"and {turns['hit_rate']:.0%} if they take turns.",
        figures(served),
        together,
    )


def _by_prefix(workload: Workload) -> list[int]:
    """The replica of each call: that of its first block, the less loaded one if it is new."""
    home: dict[object, int] = {}
    load = [0, 0]
    places = []
    for call in workload.calls:
        begins = (call.key, call.marks[min(16, call.num_prompt) - 1] if call.marks else 0)
        place = home.setdefault(begins, 0 if load[0] <= load[1] else 1)
        if load[place] > 2 * load[1 - place] + call.num_prompt:  # one beginning for all: it is worth computing twice
            place = 1 - place
        load[place] += call.num_prompt + call.num_output
        places.append(place)
    return places


def _served_by_two(workload: Workload, setup: Setup, places: Sequence[int]) -> dict[str, float]:
    halves: list[list[Call]] = [[], []]
    for call, place in zip(workload.calls, places, strict=True):
        halves[place].append(call)
    served = [setup.serve(replace(workload, calls=tuple(half))) for half in halves if half]
    queried = [sum(call.num_prompt for call in half) for half in halves if half]
    weights = [each.num_calls / max(1, sum(s.num_calls for s in served)) for each in served]
    told = [figures(each) for each in served]
    mixed = {name: sum(w * each[name] for w, each in zip(weights, told, strict=True)) for name in told[0]}
    seconds = max(each.seconds for each in served)
    mixed["output_tokens_per_second"] = sum(each.num_output for each in served) / seconds if seconds else 0.0
    hits = sum(each.hit_rate * count for each, count in zip(served, queried, strict=True))
    mixed["hit_rate"] = hits / max(1, sum(queried))
    return mixed


def _serves_all(before: Simulated, after: Simulated) -> bool:
    """Are the same requests answered? If not, times cannot be compared."""
    return after.num_calls > 0 and after.num_calls == before.num_calls and after.num_refused <= before.num_refused


def _gain(before: Simulated, after: Simulated) -> float:
    """How much faster answers are complete, at the median."""
    return before.end_to_end.p50 / after.end_to_end.p50 - 1 if after.end_to_end.p50 else 0.0


def _told(before: Simulated, after: Simulated) -> str:
    return (
        f"Answers are complete after {seconds(after.end_to_end.p50)} instead of {seconds(before.end_to_end.p50)} "
        f"(p50), tokens come every {seconds(after.token_gap.p50)} instead of {seconds(before.token_gap.p50)}"
    )
