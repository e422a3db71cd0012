"""Graphs that no common model draws: each differs from what a fusion expects in one operand, order or reader."""

from __future__ import annotations

from functools import cache

from tests.graph import odd_attention, odd_blocks, odd_experts, odd_gates, odd_latent, odd_recurrent
from tests.graph.odd_registry import ODD_GRAPHS
from tests.graph.sketch import Sketch

__all__ = [
    "HEADLESS",
    "ODD_GRAPHS",
    "odd_attention",
    "odd_blocks",
    "odd_experts",
    "odd_gates",
    "odd_graph",
    "odd_latent",
    "odd_recurrent",
]

HEADLESS = ("no_head",)  # devices return no logits


@cache
def odd_graph(name: str) -> Sketch:
    """Draw one."""
    sketch = Sketch(seed=sum(name.encode()))
    ODD_GRAPHS[name](sketch)
    return sketch
