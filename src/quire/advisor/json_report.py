"""Advice as one JSON object. The keys are those of format quire.advise/1, whatever the fields are called."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quire.advisor.advice import Advice
from quire.advisor.cache_replay import CacheHits
from quire.advisor.kv_memory import KVMemory, RequestCapacity
from quire.advisor.shared_prefixes import Prefix
from quire.advisor.simulation import SimulationResult

FORMAT = "quire.advise/1"
MAX_DEPTH, MAX_CHILDREN = 6, 12  # of the tree of prefixes


def advice_json(advice: Advice) -> dict[str, Any]:
    """Return everything except the single requests."""
    evidence = advice.evidence
    summary = evidence.summary
    shape, hardware = advice.plan.roofline.shape, advice.plan.roofline.hardware
    return {
        "format": FORMAT,
        "trace": advice.workload.name,
        "answer": _fields(advice.recommendation, best_options="winners", summary="words", measure_commands="measure"),
        "settings": [asdict(each) for each in evidence.settings],
        "workload": asdict(summary)
        | {"structured_share": summary.structured_share, "shared_share": advice.prefixes.share},
        "arrivals_are": summary.arrivals.kind,
        "concurrency": asdict(advice.concurrency),
        "prefixes": [_prefix(root, MAX_DEPTH) for root in advice.prefixes.roots[:MAX_CHILDREN]],
        "hit_rate_by_blocks": [_hits(each) for each in advice.curve],
        "hit_rate_now": None if advice.now is None else _hits(advice.now),
        "model": asdict(shape) | {"kv_token_bytes": shape.kv_token_bytes},
        "hardware": {"kind": "gpu" if hardware.facts.has_own_memory else "cpu"} | _fields(hardware, efficiency="reach"),
        "memory": _memory(evidence.memory),
        "simulated": _served(evidence.served) | {"most_requests_per_second": evidence.max_request_rate},
        "what_if": [_fields(each, explanation="says") for each in evidence.what_ifs],
        "comparison": None if evidence.comparison is None else asdict(evidence.comparison),
        "notes": advice.notes,
    }


def _fields(value: Any, **keys: str) -> dict[str, Any]:
    """Return the fields of a dataclass; `keys`: the keys of fields that have another name in the format."""
    return {keys.get(name, name): each for name, each in asdict(value).items()}


def _hits(hits: CacheHits) -> dict[str, Any]:
    return asdict(hits) | {"rate": hits.rate}


def _prefix(prefix: Prefix, depth: int) -> dict[str, Any]:
    fields = {
        "start": prefix.start,
        "end": prefix.end,
        "num_calls": prefix.num_calls,
        "saves": prefix.saves,
        "tenant": prefix.tenant,
        "words": prefix.excerpt,
    }
    if depth > 1 and prefix.children:
        fields["children"] = [_prefix(child, depth - 1) for child in prefix.children[:MAX_CHILDREN]]
    return fields


def _capacity(capacity: RequestCapacity) -> dict[str, Any]:
    return asdict(capacity) | {"reserved": capacity.reserved, "paged": capacity.paged, "ratio": capacity.ratio}


def _memory(memory: KVMemory) -> dict[str, Any]:
    fields = _fields(memory, capacity="slots", shared_capacity="shared_slots")
    return fields | {"slots": _capacity(memory.capacity), "shared_slots": _capacity(memory.shared_capacity)}


def _served(served: SimulationResult) -> dict[str, Any]:
    return _fields(served, concurrency="company", recompute_seconds="again_seconds") | {
        "output_tokens_per_second": served.output_rate,
        "utilization": served.utilization,
        "cost_shares": served.time_shares,
    }
