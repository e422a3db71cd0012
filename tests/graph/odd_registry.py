"""The table of odd graphs, by the names of the functions that draw them."""

from __future__ import annotations

from collections.abc import Callable

from tests.graph.sketch import Sketch

ODD_GRAPHS: dict[str, Callable[[Sketch], None]] = {}


def odd(draw: Callable[[Sketch], None]) -> Callable[[Sketch], None]:
    """Register a graph under its function's name."""
    ODD_GRAPHS[draw.__name__] = draw
    return draw
