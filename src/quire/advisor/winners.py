"""The winner of each measure: among the engines that were compared, else among the simulated ways to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from quire.advisor.compared import CLOSE, Comparison
from quire.advisor.figures import seconds
from quire.advisor.whatif import HAS_DRAFTS, MATTERS, WhatIf

PLANNED = "as planned"
ALIKE = "alike"


class Winner(NamedTuple):
    """One row of the table."""

    measure: str
    best: str
    figure: str
    other: str  # the next best, or how it is planned
    other_figure: str


HEADS = {True: ("", "best", "", "next", ""), False: ("", "best", "", "instead of", "")}  # by: were they measured?


def _tokens(value: float) -> str:
    return f"{value:,.0f} tok/s"


MEASURES: tuple[tuple[str, str, bool, Callable[[float], str]], ...] = (  # key, label, is more better, how it is shown
    ("output_tokens_per_second", "output", True, _tokens),
    ("first_token_p50", "first token, p50", False, seconds),
    ("first_token_p95", "first token, p95", False, seconds),
    ("token_gap_p50", "per token, p50", False, seconds),
    ("end_to_end_p50", "whole answer, p50", False, seconds),
)
MEASURED: tuple[tuple[str, str, bool, Callable[[float], str]], ...] = (
    ("output_rate", "output", True, _tokens),
    ("first_token_p50", "first token, p50", False, seconds),
    ("first_token_p99", "first token, p99", False, seconds),
    ("token_p50", "per token, p50", False, seconds),
    ("whole_p50", "whole answer, p50", False, seconds),
)


def simulated_winners(planned: Mapping[str, float], whatifs: Sequence[WhatIf]) -> list[Winner]:
    """For each measure the change that helps most, if one helps."""
    found = []
    for key, label, is_more, shown in MEASURES:
        possible = [each for each in whatifs if each.helps and (HAS_DRAFTS or each.name != "speculation")]
        values = {each.change: each.after[key] for each in possible if each.after.get(key)}
        best, figure = PLANNED, planned[key]
        if values and planned[key]:
            leader = (max if is_more else min)(values, key=lambda name: values[name])
            gain = values[leader] / planned[key] if is_more else planned[key] / values[leader]
            if gain > 1 + MATTERS:
                best, figure = leader, values[leader]
        if planned[key]:
            other = (PLANNED, shown(planned[key])) if best != PLANNED else ("", "")
            found.append(Winner(label, best, shown(figure), *other))
    return found


def measured_winners(comparison: Comparison) -> list[Winner]:
    """For each measure the best engine and the next."""
    found = []
    for key, label, is_more, shown in MEASURED:
        values = {each.engine: float(getattr(each, key)) for each in comparison.ranked if getattr(each, key)}
        if not values:
            continue
        best, *others = sorted(values, key=lambda name: values[name], reverse=is_more)
        if not others:
            found.append(Winner(label, best, shown(values[best]), "", ""))
            continue
        high, low = max(values[best], values[others[0]]), min(values[best], values[others[0]])
        name = best if high > CLOSE * low else f"{ALIKE}: {best}"
        found.append(Winner(label, name, shown(values[best]), others[0], shown(values[others[0]])))
    return found
