"""From what was measured to figures with their goals. Pure: a table can be made again from the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from quire.bench.accuracy import Accuracy
from quire.bench.cpu import Many, OneFormat, Results
from quire.bench.figure import Figure, at_least, at_least_times, at_most, at_most_times
from quire.devices.base import Peaks

FASTEST_FORMAT = "q4_0"  # llama.cpp's, which has kernels of its own for it
PUBLISHED = "published, of another run on such a machine"
OPENVINO_UNIQUE, VLLM_SHARED = 94.0, 158.0  # output tokens a second with 32 streams, November 2026


def figures(results: Results, is_default_model: bool) -> list[Figure]:
    """One row for each goal. Times, memory and published figures have goals for the default model alone."""
    rows = [*_one_stream(results), *_many_streams(results), *_limits(results), *_kernels(results), *_rest(results)]
    if is_default_model and results.sizes.scale.num_streams == 32:
        rows += _published(results)
    return rows


def _one_stream(results: Results) -> Iterator[Figure]:
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
        goal = at_least_times(2) if other.facts.format == FASTEST_FORMAT else None
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
    yield Figure("engine's share of a decoding step, one stream", overhead, "%", at_most(5))


def _peer_prompt(measured: OneFormat) -> float | None:
    return median(measured.peer.prompt) if measured.peer is not None else None


def _many_streams(results: Results) -> Iterator[Figure]:
    ours, peer = results.many, results.peer_many
    seen, theirs = ours.seen, peer.seen if peer is not None else None
    streams = f"{results.sizes.scale.num_streams} streams"
    yield Figure(
        f"unique, {streams}, output",
        seen.unique.tokens_per_second,
        "tok/s",
        at_least_times(4),
        "256 tokens in, 64 out; llama-server",
        peer=theirs.unique.tokens_per_second if theirs else None,
    )
    yield Figure(
        f"unique, {streams}, first token p99",
        seen.unique.first_token.p99,
        "s",
        at_most_times(1 / 3),
        "llama-server",
        peer=theirs.unique.first_token.p99 if theirs else None,
    )
    yield Figure(
        f"unique, {streams}, gap between tokens p99",
        seen.unique.gap.p99,
        "s",
        at_most(0.5),
        "llama-server",
        peer=theirs.unique.gap.p99 if theirs else None,
    )
    yield Figure(
        f"shared, {streams}, output",
        seen.shared.tokens_per_second,
        "tok/s",
        at_least_times(6),
        "512 shared + 32 own tokens in, 64 out; llama-server",
        peer=theirs.shared.tokens_per_second if theirs else None,
    )
    yield Figure(
        "shared, 8 streams, cold: first token p99, in prompts' times",
        seen.cold_ratio,
        "×",
        at_most(1.5),
        f"median of {len(seen.cold_seconds)} pairs in turn: {median(seen.cold_seconds):.2f} s; such a prompt alone "
        f"{median(seen.alone_seconds):.2f} s",
        peer=theirs.cold_ratio if theirs else None,
    )
    yield from _memory(ours, peer, streams)


def _memory(ours: Many, peer: Many | None, streams: str) -> Iterator[Figure]:
    if ours.peak_bytes is not None:
        theirs = peer.peak_bytes / 1e6 if peer is not None and peer.peak_bytes is not None else None
        yield Figure(f"peak resident memory, {streams}", ours.peak_bytes / 1e6, "MB", at_most(600), peer=theirs)


def _published(results: Results) -> Iterator[Figure]:
    rates = results.many.seen.unique.tokens_per_second, results.many.seen.shared.tokens_per_second
    for name, rate, goal, peer in (
        ("unique, 32 streams, against OpenVINO GenAI", rates[0], at_least_times(2), OPENVINO_UNIQUE),
        ("shared, 32 streams, against vLLM-CPU", rates[1], at_least_times(2.5), VLLM_SHARED),
    ):
        yield Figure(name, rate, "tok/s", goal, PUBLISHED, peer=peer)


def _limits(results: Results) -> Iterator[Figure]:
    """Each share is the median of several, each of them over what was measured right before and after it."""
    measured = [each for each in results.formats if each.ours.peaks]
    for each in measured:
        ours, size = each.ours, each.facts.decode_bytes
        shares = [rate * size / peaks.read_bytes for rate, peaks in zip(ours.decode_rates, ours.peaks, strict=True)]
        limit = median(peaks.read_bytes for peaks in ours.peaks)
        yield Figure(
            f"decode, {each.facts.label}: share of read bandwidth",
            100 * median(shares),
            "%",
            at_least(70) if each is results.formats[0] else None,
            f"{size / 1e6:.0f} MB a token; {len(shares)} times, each over the bandwidth measured before and after it",
            peer=100 * median(each.peer.decode) * size / limit if each.peer is not None else None,
        )
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
    yield from _machine([peaks for each in measured for peaks in each.ours.peaks])


def _kernels(results: Results) -> Iterator[Figure]:
    """The kernels that ran, and how long products would take on those that were not chosen."""
    for each in results.formats:
        for format, times in each.ours.kernels.items():
            chosen = next(iter(times))
            for name, relative in times.items():
                note = f"of those on {chosen}, which ran; one token and a prompt, measured when the model was lowered"
                label = f"kernels, {each.facts.label}: time of {format} products on {name}"
                yield Figure(label, relative, "×", None, note if name != chosen else "these ran")


def _machine(peaks: Sequence[Peaks]) -> Iterator[Figure]:
    if not peaks:
        return
    threads = f"{peaks[0].num_threads} threads, {peaks[0].kernels}; median of {len(peaks)}"
    bandwidth, rate = median(each.read_bytes for each in peaks), median(each.multiply_adds for each in peaks)
    yield Figure("read bandwidth of this machine", bandwidth / 1e9, "GB/s", None, threads)
    yield Figure("int8 multiply-adds of this machine", rate / 1e9, "G/s", None, f"in registers, {threads}")


def _rest(results: Results) -> Iterator[Figure]:
    peer_start = median(results.peer_start_seconds) if results.peer_start_seconds else None
    name, note = "second start to the first token", "quire run; modules are compiled, as an installer does"
    yield Figure(name, median(results.start_seconds), "s", at_most(1), note, peer=peer_start)
    yield Figure("open the file and read its header", results.open_seconds * 1e3, "ms", at_most(50))
    yield Figure("make the tokenizer", results.tokenizer_seconds * 1e3, "ms")
    yield from _accuracy(results.accuracy)


def _accuracy(found: Accuracy) -> Iterator[Figure]:
    """No worse than the peer, as far as so many positions can tell: by two standard errors of the difference."""
    ours, peer = found.ours, found.peer
    slack = 2 * found.error / peer.mean_kl if peer is not None else 0.0
    yield Figure(
        "mean KL from float32",
        ours.mean_kl,
        "nats",
        at_most_times(1 + slack),
        f"{found.num_positions:,} positions; the goal is 1 and two standard errors of the difference",
        peer=peer.mean_kl if peer is not None else None,
    )
    same = None if peer is None else 100 * peer.same_token
    yield Figure("same likeliest token as float32", 100 * ours.same_token, "%", peer=same)
