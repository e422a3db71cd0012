"""Numbers as people read them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A duration, in the unit that fits."""
    if value >= 120:
        return f"{value / 60:,.0f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    if value >= 1:
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"


def size(num_bytes: float) -> str:
    """Memory."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"


def rate(value: float) -> str:
    """So many a second."""
    return f"{value:.2g}/s" if value < 10 else f"{value:,.0f}/s"


def several(count: int, one: str) -> str:
    """1 request, 2 requests."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"
