"""Advice for programs: everything that was found, as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quire.advisor.advice import Advice
from quire.advisor.hits import Hits
from quire.advisor.memory import Memory, Slots
from quire.advisor.prefixes import Prefix
from quire.advisor.simulate import Simulated

FORMAT = "quire.advise/1"
DEPTH, WIDTH = 6, 12  # of the tree of prefixes


def as_json(advice: Advice) -> dict[str, Any]:
    """All but single requests."""
    shape, hardware = advice.planned.roofline.shape, advice.planned.roofline.hardware
    return {
        "format": FORMAT,
        "trace": advice.workload.name,
        "answer": asdict(advice.answer),
        "settings": [asdict(each) for each in advice.facts.settings],
        "workload": asdict(advice.facts.description)
        | {"structured_share": advice.facts.description.structured_share, "shared_share": advice.tree.share},
        "arrivals_are": advice.facts.description.arrivals.kind,
        "concurrency": asdict(advice.company),
        "prefixes": [_prefix(root, DEPTH) for root in advice.tree.roots[:WIDTH]],
        "hit_rate_by_blocks": [_hits(each) for each in advice.curve],
        "hit_rate_now": None if advice.now is None else _hits(advice.now),
        "model": asdict(shape) | {"kv_token_bytes": shape.kv_token_bytes},
        "hardware": asdict(hardware),
        "memory": _memory(advice.facts.memory),
        "simulated": _served(advice.facts.served) | {"most_requests_per_second": advice.facts.capacity},
        "what_if": [asdict(each) for each in advice.facts.whatifs],
        "comparison": None if advice.facts.comparison is None else asdict(advice.facts.comparison),
        "notes": advice.notes,
    }


def _hits(hits: Hits) -> dict[str, Any]:
    return asdict(hits) | {"rate": hits.rate}


def _prefix(prefix: Prefix, depth: int) -> dict[str, Any]:
    said = {
        "start": prefix.start,
        "end": prefix.end,
        "num_calls": prefix.num_calls,
        "saves": prefix.saves,
        "tenant": prefix.tenant,
        "words": prefix.words,
    }
    if depth > 1 and prefix.children:
        said["children"] = [_prefix(child, depth - 1) for child in prefix.children[:WIDTH]]
    return said


def _slots(slots: Slots) -> dict[str, Any]:
    return asdict(slots) | {"reserved": slots.reserved, "paged": slots.paged, "ratio": slots.ratio}


def _memory(memory: Memory) -> dict[str, Any]:
    return asdict(memory) | {"slots": _slots(memory.slots), "shared_slots": _slots(memory.shared_slots)}


def _served(served: Simulated) -> dict[str, Any]:
    shares = cost_shares(served)
    return asdict(served) | {
        "output_tokens_per_second": served.output_rate,
        "utilization": served.utilization,
        "cost_shares": shares,
    }


def cost_shares(served: Simulated) -> dict[str, float]:
    """Of the device's time: for what it is spent."""
    busy = served.busy_seconds or 1.0
    return {
        "prompts": served.prompt_seconds / busy,
        "recomputation": served.again_seconds / busy,
        "decode": served.decode_seconds / busy,
    }
