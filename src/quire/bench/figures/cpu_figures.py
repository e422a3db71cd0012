"""From the measurements of `quire bench cpu` to figures with goals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from quire.bench.accuracy.cpu_accuracy import Accuracy
from quire.bench.figures.cpu_results import CpuResults, FormatResult, StreamsResult
from quire.bench.figures.figure import Figure, Goal, at_least, at_least_times, at_most, at_most_times
from quire.bench.figures.stream_figures import bandwidth_figure
from quire.bench.load.stream_loads import StreamResults
from quire.devices.base import Peaks

PEER_FASTEST_FORMAT = "q4_0"  # llama.cpp has special kernels for it
PUBLISHED = "published, from another run on such a machine"
OPENVINO_UNIQUE, VLLM_SHARED = 94.0, 158.0  # output tokens a second with 32 streams, November 2026


def cpu_figures(results: CpuResults, is_default_model: bool) -> list[Figure]:
    """Return one figure a goal. Published figures are of the default model only."""
    rows = [
        *_single_stream(results),
        *_streams(results),
        *_peak_shares(results),
        *_kernels(results),
        *_start_and_accuracy(results),
    ]
    if is_default_model and results.sizes.streams.num_streams == 32:
        rows += _published(results)
    return rows


def _single_stream(results: CpuResults) -> Iterator[Figure]:
    own, *others = results.formats
    yield Figure(
        f"prompt of 512 tokens, {own.facts.label}",
        median(own.ours.prompt_rates),
        "tok/s",
        at_least_times(4),
        "llama-bench, same file",
        peer=_peer_prompt(own),
    )
    for other in others:
        goal = at_least_times(2) if other.facts.format == PEER_FASTEST_FORMAT else None
        name, rate = f"prompt of 512 tokens, {other.facts.label}", median(other.ours.prompt_rates)
        yield Figure(name, rate, "tok/s", goal, "llama-bench, same file", peer=_peer_prompt(other))
        if goal is not None:
            name = f"prompt of 512 tokens, {own.facts.label} against {other.facts.label}"
            yield Figure(name, median(own.ours.prompt_rates), "tok/s", goal, peer=_peer_prompt(other))
    for each in results.formats:
        yield Figure(
            f"decode, one stream, {each.facts.label}",
            median(each.ours.decode_rates),
            "tok/s",
            at_least_times(2) if each is own else None,
            "llama-bench, same file",
            peer=median(each.peer.decode) if each.peer is not None else None,
        )
    overhead = 100 * median(own.ours.overheads)
    yield Figure("engine's share of a decode step, one stream", overhead, "%", at_most(5))


def _peer_prompt(result: FormatResult) -> float | None:
    return median(result.peer.prompt) if result.peer is not None else None


def _streams(results: CpuResults) -> Iterator[Figure]:
    ours, peer = results.streams, results.peer_streams
    name = f"{results.sizes.streams.num_streams} streams"

    def figure(label: str, value: Callable[[StreamResults], float], unit: str, goal: Goal, note: str) -> Figure:
        return Figure(label, value(ours.loads), unit, goal, note, peer=None if peer is None else value(peer.loads))

    yield figure(
        f"unique, {name}, output",
        lambda loads: loads.unique.output_per_second,
        "tok/s",
        at_least_times(4),
        "256 tokens in, 64 out; llama-server",
    )
    yield figure(
        f"unique, {name}, first token p99",
        lambda loads: loads.unique.first_token.p99,
        "s",
        at_most_times(1 / 3),
        "llama-server",
    )
    yield figure(
        f"unique, {name}, gap between tokens p99",
        lambda loads: loads.unique.gap.p99,
        "s",
        at_most(0.5),
        "llama-server",
    )
    yield figure(
        f"shared, {name}, output",
        lambda loads: loads.shared.output_per_second,
        "tok/s",
        at_least_times(6),
        "512 shared + 32 own tokens in, 64 out; llama-server",
    )
    cold, alone = median(ours.loads.cold_seconds), median(ours.loads.alone_seconds)
    yield figure(
        "shared, 8 streams, cold: first token p99 / one prompt alone",
        lambda loads: loads.cold_ratio,
        "×",
        at_most(1.5),
        f"median of {len(ours.loads.cold_seconds)} alternating pairs: {cold:.2f} s; such a prompt alone {alone:.2f} s",
    )
    yield from _memory(ours, peer, name)


def _memory(ours: StreamsResult, peer: StreamsResult | None, name: str) -> Iterator[Figure]:
    if ours.peak_bytes is not None:
        peer_size = peer.peak_bytes / 1e6 if peer is not None and peer.peak_bytes is not None else None
        yield Figure(f"peak resident memory, {name}", ours.peak_bytes / 1e6, "MB", at_most(600), peer=peer_size)


def _published(results: CpuResults) -> Iterator[Figure]:
    loads = results.streams.loads
    unique, shared = loads.unique.output_per_second, loads.shared.output_per_second
    for name, rate, goal, peer in (
        ("unique, 32 streams, against OpenVINO GenAI", unique, at_least_times(2), OPENVINO_UNIQUE),
        ("shared, 32 streams, against vLLM-CPU", shared, at_least_times(2.5), VLLM_SHARED),
    ):
        yield Figure(name, rate, "tok/s", goal, PUBLISHED, peer=peer)


def _peak_shares(results: CpuResults) -> Iterator[Figure]:
    """Yield shares of the machine's peak rates: medians over repeats, each over the peaks measured around it."""
    measured = [each for each in results.formats if each.ours.peaks]
    for each in measured:
        yield bandwidth_figure(each, at_least(70) if each is results.formats[0] else None)
    for each in measured:
        ours, size = each.ours, each.facts.prompt_multiply_adds
        shares = [rate * size / peaks.multiply_adds for rate, peaks in zip(ours.prompt_rates, ours.peaks, strict=True)]
        limit, peer_prompt = median(peaks.multiply_adds for peaks in ours.peaks), _peer_prompt(each)
        yield Figure(
            f"prompt, {each.facts.label}: share of the int8 multiply-add peak",
            100 * median(shares),
            "%",
            None,
            f"{size / 1e6:.0f} M a token",
            peer=100 * peer_prompt * size / limit if peer_prompt is not None else None,
        )
    yield from _machine_peaks([peaks for each in measured for peaks in each.ours.peaks])


def _kernels(results: CpuResults) -> Iterator[Figure]:
    """Yield the kernels that ran, and the relative time of matrix products on the other kernels."""
    for each in results.formats:
        for format, times in each.ours.kernels.items():
            used = next(iter(times))
            for name, relative in times.items():
                note = f"relative to {used}, which ran; 1, 4 and 64 tokens, measured when the model was lowered"
                label = f"kernels, {each.facts.label}: time of {format} products on {name}"
                yield Figure(label, relative, "×", None, note if name != used else "ran")


def _machine_peaks(peaks: Sequence[Peaks]) -> Iterator[Figure]:
    if not peaks:
        return
    threads = f"{peaks[0].num_threads} threads, {peaks[0].kernels}; median of {len(peaks)}"
    bandwidth, rate = median(each.read_bytes for each in peaks), median(each.multiply_adds for each in peaks)
    yield Figure("read bandwidth of this machine", bandwidth / 1e9, "GB/s", None, threads)
    yield Figure("int8 multiply-adds of this machine", rate / 1e9, "G/s", None, f"in registers, {threads}")


def _start_and_accuracy(results: CpuResults) -> Iterator[Figure]:
    peer_start = median(results.peer_start_seconds) if results.peer_start_seconds else None
    name, note = "second start to the first token", "quire run; modules compiled to bytecode, as an installer does"
    yield Figure(name, median(results.start_seconds), "s", at_most(1), note, peer=peer_start)
    yield Figure("open the file and read its header", results.open_seconds * 1e3, "ms", at_most(50))
    yield Figure("make the tokenizer", results.tokenizer_seconds * 1e3, "ms")
    yield from _accuracy(results.accuracy)


def _accuracy(accuracy: Accuracy) -> Iterator[Figure]:
    """Yield the divergences. The goal allows two standard errors of the difference to the peer."""
    ours, peer = accuracy.ours, accuracy.peer
    slack = 2 * accuracy.error / peer.mean_kl if peer is not None else 0.0
    yield Figure(
        "mean KL from float32",
        ours.mean_kl,
        "nats",
        at_most_times(1 + slack),
        f"{accuracy.num_positions:,} positions; the goal is 1 plus two standard errors of the difference",
        peer=peer.mean_kl if peer is not None else None,
    )
    same = None if peer is None else 100 * peer.same_token
    yield Figure("same likeliest token as float32", 100 * ours.same_token, "%", peer=same)
