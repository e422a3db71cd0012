"""Figures of one stream of a file beside those of peers: prompts and decoding, medians of all repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from quire.bench.figures.cpu_results import FormatResult
from quire.bench.figures.figure import Figure, Goal
from quire.bench.load.single_prompts import PROMPT_TOKENS


def prompt_figure(result: FormatResult, goal: Goal | None) -> Figure:
    """Return the rate of a prompt."""
    facts, peers = result.facts, {name: median(rates.prompt) for name, rates in result.peers.items()}
    name, note = (
        f"prompt of {PROMPT_TOKENS} tokens, {facts.label}",
        f"{facts.prompt_multiply_adds / 1e6:.0f} M multiply-adds",
    )
    return Figure(name, median(result.ours.prompt_rates), "tok/s", goal, f"{note} a token", peers)


def decode_figure(result: FormatResult, goal: Goal | None) -> Figure:
    """Return the rate of decoding."""
    facts, peers = result.facts, {name: median(rates.decode) for name, rates in result.peers.items()}
    name, note = f"decode, one stream, {facts.label}", f"{facts.decode_bytes / 1e6:.0f} MB a token"
    return Figure(name, median(result.ours.decode_rates), "tok/s", goal, note, peers)


def bandwidth_figures(result: FormatResult, goal: Goal | None) -> Iterator[Figure]:
    """Yield the share of the read bandwidth that decoding reached, if the bandwidth could be measured."""
    limits, rates = [peaks.read_bytes for peaks in result.ours.peaks], result.ours.decode_rates
    peers = {name: median(each.decode) for name, each in result.peers.items()}
    for share, limit, shares in _shares(rates, limits, result.facts.decode_bytes, peers):
        name, note = f"decode, {result.facts.label}: share of read bandwidth", f"of {limit / 1e9:.1f} GB/s"
        yield Figure(name, share, "%", goal, f"{note}; {len(limits)} repeats", shares)


def peak_figures(result: FormatResult, goal: Goal | None) -> Iterator[Figure]:
    """Yield the share of the int8 peak that prompts reached, if the peak could be measured."""
    limits, rates = [peaks.multiply_adds for peaks in result.ours.peaks], result.ours.prompt_rates
    peers = {name: median(each.prompt) for name, each in result.peers.items()}
    for share, limit, shares in _shares(rates, limits, result.facts.prompt_multiply_adds, peers):
        name, note = f"prompt, {result.facts.label}: share of the int8 peak", f"of {limit / 1e9:.0f} G multiply-adds/s"
        yield Figure(name, share, "%", goal, note, shares)


def _shares(
    rates: Sequence[float], limits: Sequence[float], size: float, peers: dict[str, float]
) -> Iterator[tuple[float, float, dict[str, float]]]:
    """Yield our share in %, the limit and the peers' shares, for `size` a token; nothing if there are no limits.

    Ours is the median over repeats, each over the limit measured before and after it.
    """
    if limits:
        limit = median(limits)
        ours = 100 * median(rate * size / each for rate, each in zip(rates, limits, strict=True))
        yield ours, limit, {name: 100 * rate * size / limit for name, rate in peers.items()}
