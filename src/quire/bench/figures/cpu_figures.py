"""From the measurements of `quire bench cpu` to figures with goals. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from quire.bench.accuracy.cpu_accuracy import Accuracy
from quire.bench.engines.peer import LLAMA_CPP
from quire.bench.figures.cpu_goals import BANDWIDTH_SHARE, DECODE, PROMPT, CpuGoals
from quire.bench.figures.cpu_results import FormatResult, StartResult
from quire.bench.figures.figure import Figure, at_most, at_most_times
from quire.bench.figures.one_stream import bandwidth_figures, decode_figure, peak_figures, prompt_figure
from quire.devices.base import Peaks

FLOATS = ("bf16", "f16", "f32")  # their prompts are no int8 products


def format_figures(formats: Sequence[FormatResult], goals: CpuGoals) -> Iterator[Figure]:
    """Yield one stream of each file, and its shares of the machine's peak rates. The model's own file is the first."""
    for each in formats:
        yield prompt_figure(each, PROMPT.get(each.facts.format))
    for each in formats:
        yield decode_figure(each, DECODE.get(each.facts.format))
    overhead = 100 * median(formats[0].ours.overheads)
    yield Figure("engine's share of a decode step, one stream", overhead, "%", at_most(5))
    for each in formats:
        yield from bandwidth_figures(each, BANDWIDTH_SHARE)
    for each in formats:
        yield from peak_figures(each, None if each.facts.format in FLOATS else goals.prompt_share)
    yield from _machine_peaks([peaks for each in formats for peaks in each.ours.peaks])


def kernel_lines(formats: Sequence[FormatResult]) -> Iterator[str]:
    """Yield for each file which kernels multiplied its formats, and the relative times of the others."""
    for each in formats:
        products = ", ".join(_product(format, times) for format, times in each.ours.kernels.items())
        if products:
            yield f"{each.facts.label}: {products}"


def _product(format: str, times: dict[str, float]) -> str:
    (used, _), *others = times.items()
    relative = ", ".join(f"{name} {time:.2f} ×" for name, time in others if name != used)
    return f"{format} on {used}" + (f" (times of others: {relative})" if relative else "")


def start_figures(start: StartResult) -> Iterator[Figure]:
    """Yield the time of a start, and of reading the file."""
    peers = {name: median(seconds) for name, seconds in start.peers.items()}
    name, note = "second start to the first token", "quire run; modules compiled to bytecode, as an installer does"
    yield Figure(name, median(start.ours), "s", at_most(1), note, peers)
    yield Figure("open the file and read its header", start.open_file * 1e3, "ms", at_most(50))
    yield Figure("make the tokenizer", start.make_tokenizer * 1e3, "ms")


def accuracy_figures(accuracy: Accuracy) -> Iterator[Figure]:
    """Yield the divergences. The goal allows two standard errors of the difference to llama.cpp."""
    ours, peer = accuracy.ours, accuracy.peer
    slack = 2 * accuracy.error / peer.mean_kl if peer is not None else 0.0
    yield Figure(
        "mean KL from float32",
        ours.mean_kl,
        "nats",
        at_most_times(1 + slack, LLAMA_CPP),
        f"{accuracy.num_positions:,} positions; the goal is 1 plus two standard errors of the difference",
        {LLAMA_CPP: peer.mean_kl} if peer is not None else {},
    )
    same = {LLAMA_CPP: 100 * peer.same_token} if peer is not None else {}
    yield Figure("same likeliest token as float32", 100 * ours.same_token, "%", peers=same)


def _machine_peaks(peaks: Sequence[Peaks]) -> Iterator[Figure]:
    if not peaks:
        return
    threads = f"{peaks[0].num_threads} threads, {peaks[0].kernels}; median of {len(peaks)}"
    bandwidth, rate = median(each.read_bytes for each in peaks), median(each.multiply_adds for each in peaks)
    yield Figure("read bandwidth of this machine", bandwidth / 1e9, "GB/s", None, threads)
    yield Figure("int8 multiply-adds of this machine", rate / 1e9, "G/s", None, f"in registers, {threads}")
