"""Figures of one stream of a file beside the peer's: prompts and decoding, medians of all turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from quire.bench.figures.cpu_results import FormatResult
from quire.bench.figures.figure import Figure, at_least_times

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
