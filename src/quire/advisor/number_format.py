"""Formats numbers for reports."""

from __future__ import annotations


def format_seconds(value: float) -> str:
    """Format a duration in the unit that fits: 1.5 ms, 3.90 s, 4 min, 2.5 h."""
    if value >= 120:
        return f"{value / 60:,.0f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    if value >= 1:
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"


def format_bytes(num_bytes: float) -> str:
    """Format a size in GB, or in MB below one GB."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"


def format_rate(value: float) -> str:
    """Format a number per second."""
    return f"{value:.2g}/s" if value < 10 else f"{value:,.0f}/s"


def count_noun(count: int, singular: str) -> str:
    """Format a count with its noun: 1 request, 2 requests."""
    return f"{count:,} {singular if count == 1 else singular + 's'}"
