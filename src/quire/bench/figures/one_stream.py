"""Figures of one stream of a file beside those of peers: prompts and decoding, medians of all repeats."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Yield the share of the read bandwidth that decoding reached, if the bandwidth could be measured.

    It is the median over repeats, each over the bandwidth measured before and after it.
    """
    ours, size = result.ours, result.facts.decode_bytes
    if not ours.peaks:
        return
    shares = [rate * size / peaks.read_bytes for rate, peaks in zip(ours.decode_rates, ours.peaks, strict=True)]
    limit = median(peaks.read_bytes for peaks in ours.peaks)
    peers = {name: 100 * median(rates.decode) * size / limit for name, rates in result.peers.items()}
    name, note = f"decode, {result.facts.label}: share of read bandwidth", f"of {limit / 1e9:.1f} GB/s"
    yield Figure(name, 100 * median(shares), "%", goal, f"{note}; {len(shares)} repeats", peers)


def peak_figures(result: FormatResult, goal: Goal | None) -> Iterator[Figure]:
    """Yield the share of the int8 peak that prompts reached, if the peak could be measured."""
    ours, size = result.ours, result.facts.prompt_multiply_adds
    if not ours.peaks:
        return
    shares = [rate * size / peaks.multiply_adds for rate, peaks in zip(ours.prompt_rates, ours.peaks, strict=True)]
    limit = median(peaks.multiply_adds for peaks in ours.peaks)
    peers = {name: 100 * median(rates.prompt) * size / limit for name, rates in result.peers.items()}
    name, note = f"prompt, {result.facts.label}: share of the int8 peak", f"of {limit / 1e9:.0f} G multiply-adds/s"
    yield Figure(name, 100 * median(shares), "%", goal, note, peers)
