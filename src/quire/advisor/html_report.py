"""Advice as one HTML file: the recommendation, its plots and all tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.advisor.advice import Advice
from quire.advisor.best_options import HEADINGS
from quire.advisor.number_format import count_noun, format_bytes, format_rate, format_seconds
from quire.advisor.shared_prefixes import MIN_SAVING, Prefix
from quire.advisor.terminal_report import LENGTH_COLUMNS, MEASURE_TITLE, length_rows
from quire.report import page
from quire.report.page import Html
from quire.report.plot import Axes, Series, bar_plot, distribution, line_plot, step_plot

MAX_PREFIXES = 20


def html_report(advice: Advice, more: Iterable[Html] = ()) -> str:
    """Return the page. `more`: sections to insert before the notes."""
    return page.document(f"What to run for {advice.workload.name}", _sections(advice, more))


def _sections(advice: Advice, more: Iterable[Html]) -> Iterator[Html]:
    answer = advice.recommendation
    yield page.conclusion([answer.line])
    if answer.best_options:
        yield page.table(HEADINGS[advice.evidence.comparison is not None], answer.best_options)
    if answer.command:
        yield page.code(answer.command)
    yield page.listing(answer.summary)
    yield _cards(advice)
    for title, sentences in (("Why", answer.reasons), ("What would change it", answer.changes)):
        if sentences:
            yield page.heading(title)
            yield page.listing(sentences)
    if answer.measure_commands:
        yield page.heading(MEASURE_TITLE)
        yield page.code("\n".join(answer.measure_commands))
    yield page.heading("Trace")
    yield page.figure_grid(_plots(advice))
    yield page.heading("Lengths", 3)
    yield page.table(("tokens", *LENGTH_COLUMNS), length_rows(advice.evidence.summary))
    if advice.prefixes.roots:
        yield page.heading("Shared prefixes")
        yield page.paragraph(
            f"{advice.prefixes.share:.1%} of the prompt tokens were in an earlier prompt ({advice.prefixes.saves:,}).",
            "soft",
        )
        yield _prefixes(advice)
    yield page.heading("Memory")
    yield _memory(advice)
    yield _fits(advice)
    if advice.evidence.what_ifs:
        yield page.heading("What if")
        yield _what_ifs(advice)
    yield from more
    if advice.notes:
        yield page.heading("Notes")
        yield page.listing(advice.notes)


def _cards(advice: Advice) -> Html:
    evidence, concurrency = advice.evidence, advice.concurrency
    summary, served = evidence.summary, evidence.served
    return page.cards(
        (
            ("requests", f"{summary.num_calls:,}", f"in {format_seconds(summary.seconds)}"),
            ("shared prefixes", f"{advice.prefixes.share:.0%}", "of the prompt tokens"),
            ("hit rate, simulated", f"{served.hit_rate:.0%}", "with the settings above"),
            ("peak concurrency", f"{concurrency.peak}", f"{concurrency.mean:.1f} on average"),
            ("first token, p95", format_seconds(served.first_token.p95), "simulated"),
            ("capacity", format_rate(evidence.max_request_rate), "requests, on this device"),
        )
    )


def _plots(advice: Advice) -> Iterator[Html]:
    calls, memory = advice.workload.calls, advice.evidence.memory
    lengths = [
        distribution("prompt", [call.num_prompt for call in calls]),
        distribution("answer", [call.num_output for call in calls]),
    ]
    axes = Axes("Lengths of prompts and answers", "tokens", "share of requests", log_x=True)
    yield page.figure(
        "Lengths", step_plot(axes, lengths), "share of requests of at most this length", ["prompt", "answer"]
    )
    if len(advice.concurrency.curve) > 1:
        axes = Axes("Concurrent requests", "seconds", "requests")
        source = "measured by the server" if advice.concurrency.is_measured else "simulated"
        running = Series("concurrency", tuple((time, float(count)) for time, count in advice.concurrency.curve))
        yield page.figure("Concurrent requests", step_plot(axes, [running]), source)
    points = tuple(
        (each.num_blocks * memory.block_tokens * memory.token_bytes / 1e9, each.rate) for each in advice.curve
    )
    axes = Axes("Hit rate by cache size", "GB of KV", "hit rate", log_x=True)
    note = "the trace replayed through Quire's prefix tree and eviction"
    yield page.figure("Hit rate by cache size", line_plot(axes, [Series("hit rate", points)]), note)
    axes = Axes("Device time", "", "share")
    shares = {name: {"share": round(share, 3)} for name, share in advice.evidence.served.time_shares.items()}
    yield page.figure("Device time", bar_plot(axes, shares), "simulated")


def _prefixes(advice: Advice) -> Html:
    total = max(1, advice.evidence.summary.num_prompt)
    rows = [
        [
            f"{'· ' * depth}{each.excerpt or each.tenant or 'prefix'}",
            f"{each.start:,}–{each.end:,}",
            f"{each.num_calls:,}",
            f"{each.saves:,}",
            f"{each.saves / total:.1%}",
        ]
        for depth, each in _walk(advice.prefixes.roots, MIN_SAVING * total)
    ]
    return page.table(("prefix", "tokens", "requests", "saves", "of all prompt tokens"), rows)


def _walk(prefixes: tuple[Prefix, ...], min_saving: float) -> Iterator[tuple[int, Prefix]]:
    """Yield the tree in order with depths, without prefixes that save less than `min_saving`."""
    pending = [(0, each) for each in reversed(prefixes)]
    num_listed = 0
    while pending and num_listed < MAX_PREFIXES:
        depth, each = pending.pop()
        if each.total_saving >= min_saving:
            yield depth, each
            num_listed += 1
            pending += [(depth + 1, child) for child in reversed(each.children[:MAX_PREFIXES])]


def _memory(advice: Advice) -> Html:
    memory, roofline = advice.evidence.memory, advice.plan.roofline
    capacity, shared = memory.capacity, memory.shared_capacity
    rows = [
        ["reserved for the longest", format_bytes(capacity.reserved_bytes), f"{capacity.reserved:,}", "1.0"],
        ["paged", format_bytes(capacity.paged_bytes), f"{capacity.paged:,}", f"{capacity.ratio:.1f}"],
        ["paged and shared", format_bytes(shared.paged_bytes), f"{shared.paged:,}", f"{shared.ratio:.1f}"],
    ]
    about = (
        f"{roofline.hardware.name} has {format_bytes(memory.device_bytes)} ({roofline.hardware.source}). "
        f"{roofline.shape.name} in {roofline.shape.precision} takes {format_bytes(memory.model_bytes)}; "
        f"{format_bytes(memory.kv_bytes)} are left for KV at {memory.by_group}."
    )
    table = page.table(("KV allocation", "per request", "concurrent requests", "times as many"), rows)
    return Html(page.paragraph(about) + table)


def _fits(advice: Advice) -> Html:
    fits = advice.evidence.memory.fits
    rows = [[f"{fit.context:,} tokens", count_noun(fit.num_requests, "request")] for fit in fits]
    return page.table(("context", "at most, at a time"), rows)


def _what_ifs(advice: Advice) -> Html:
    """Return a list, because sentences do not wrap in a table."""
    return page.listing(f"{'Helps' if each.helps else 'No gain'}. {each}" for each in advice.evidence.what_ifs)
