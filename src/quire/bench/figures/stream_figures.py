"""Figures of one stream of a file beside the peer's: prompts and decoding, medians of all turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from quire.bench.figures.cpu_results import FormatResult
from quire.bench.figures.figure import Figure, Goal, at_least_times

PROMPT_GOAL, DECODE_GOAL = at_least_times(2), at_least_times(1.3)


def one_stream_figures(turns: Sequence[FormatResult]) -> Iterator[Figure]:
    """Yield the figure of prompts, then that of decoding. All turns are of one file."""
    facts, peers = turns[0].facts, [turn.peer for turn in turns if turn.peer is not None]
    ours = median(rate for turn in turns for rate in turn.ours.prompt_rates)
    peer = median(rate for each in peers for rate in each.prompt) if peers else None
    label, note = facts.label, f"llama-bench; {facts.prompt_multiply_adds / 1e6:.0f} M multiply-adds a token"
    yield Figure(f"prompt of 512 tokens, {label}", ours, "tok/s", PROMPT_GOAL, note, peer=peer)
    ours = median(rate for turn in turns for rate in turn.ours.decode_rates)
    peer = median(rate for each in peers for rate in each.decode) if peers else None
    note = f"llama-bench; {facts.decode_bytes / 1e6:.0f} MB a token"
    yield Figure(f"decode, one stream, {label}", ours, "tok/s", DECODE_GOAL, note, peer=peer)


def bandwidth_figure(result: FormatResult, goal: Goal | None) -> Figure:
    """Return the share of the read bandwidth that decoding reached: the median over repeats, each over the bandwidth
    measured before and after it."""
    ours, size = result.ours, result.facts.decode_bytes
    shares = [rate * size / peaks.read_bytes for rate, peaks in zip(ours.decode_rates, ours.peaks, strict=True)]
    limit = median(peaks.read_bytes for peaks in ours.peaks)
    return Figure(
        f"decode, {result.facts.label}: share of read bandwidth",
        100 * median(shares),
        "%",
        goal,
        f"{size / 1e6:.0f} MB a token; {len(shares)} repeats, each over the bandwidth measured before and after it",
        peer=100 * median(result.peer.decode) * size / limit if result.peer is not None else None,
    )
