"""Advice as a page that is one file: the answer, the plots that it rests on, and every table."""

from __future__ import annotations

from collections.abc import Iterator

from quire.advisor.advice import Advice
from quire.advisor.figures import rate, seconds, several, size
from quire.advisor.prefixes import LEAST_SAVING, Prefix
from quire.advisor.terminal import MEASURE
from quire.advisor.told import cost_shares
from quire.advisor.winners import HEADS
from quire.report import page
from quire.report.page import Html
from quire.report.plot import Axes, Series, bar_plot, distribution, line_plot, step_plot

NUM_PREFIXES = 20
FEW = 1  # points of a curve that are no curve


def document(advice: Advice) -> str:
    """The whole page."""
    return page.document(f"What to run for {advice.workload.name}", _parts(advice))


def _parts(advice: Advice) -> Iterator[Html]:
    said = advice.answer
    yield page.conclusion([said.line])
    if said.winners:
        yield page.table(HEADS[advice.facts.comparison is not None], said.winners)
    if said.command:
        yield page.code(said.command)
    yield page.listing(said.words)
    yield _cards(advice)
    for title, sentences in (("Why", said.reasons), ("What would change it", said.changes)):
        if sentences:
            yield page.heading(title)
            yield page.listing(sentences)
    if said.measure:
        yield page.heading(MEASURE)
        yield page.code("\n".join(said.measure))
    yield page.heading("The trace")
    yield page.figure_grid(_plots(advice))
    yield page.heading("Lengths", 3)
    yield _lengths(advice)
    if advice.tree.roots:
        yield page.heading("Repeated beginnings")
        yield page.paragraph(
            f"{advice.tree.share:.1%} of the prompt tokens were in an earlier prompt: {advice.tree.saves:,} tokens.",
            "soft",
        )
        yield _prefixes(advice)
    yield page.heading("Memory")
    yield _memory(advice)
    yield _fits(advice)
    if advice.facts.whatifs:
        yield page.heading("What if")
        yield _whatifs(advice)
    if advice.notes:
        yield page.heading("Notes")
        yield page.listing(advice.notes)


def _cards(advice: Advice) -> Html:
    facts = advice.facts
    description, served = facts.description, facts.served
    return page.cards(
        (
            ("requests", f"{description.num_calls:,}", f"in {seconds(description.seconds)}"),
            ("shared prefixes", f"{advice.tree.share:.0%}", "of the prompt tokens"),
            ("hit rate, simulated", f"{served.hit_rate:.0%}", "with the settings above"),
            ("at once", f"{advice.company.peak}", f"{advice.company.mean:.1f} on average"),
            ("first token, p95", seconds(served.first_token.p95), "simulated"),
            ("capacity", rate(facts.capacity), "requests, on this device"),
        )
    )


def _plots(advice: Advice) -> Iterator[Html]:
    calls, memory = advice.workload.calls, advice.facts.memory
    lengths = [
        distribution("prompt", [call.num_prompt for call in calls]),
        distribution("answer", [call.num_output for call in calls]),
    ]
    axes = Axes("Lengths of prompts and answers", "tokens", "share of requests", log_x=True)
    yield page.figure(
        "Lengths", step_plot(axes, lengths), "share of requests that are at most so long", ["prompt", "answer"]
    )
    if len(advice.company.curve) > FEW:
        axes = Axes("Requests at once", "seconds", "requests")
        whose = "as the server told" if advice.company.is_measured else "simulated"
        running = Series("at once", tuple((when, float(count)) for when, count in advice.company.curve))
        yield page.figure("Requests at once", step_plot(axes, [running]), whose)
    points = tuple(
        (each.num_blocks * memory.block_tokens * memory.token_bytes / 1e9, each.rate) for each in advice.curve
    )
    axes = Axes("Hit rate by the size of the cache", "GB of KV", "hit rate", log_x=True)
    note = "the trace through Quire's own tree and eviction"
    yield page.figure("Hit rate by the size of the cache", line_plot(axes, [Series("hit rate", points)]), note)
    axes = Axes("What the device's time is spent on", "", "share")
    shares = {name: {"share": round(share, 3)} for name, share in cost_shares(advice.facts.served).items()}
    yield page.figure("What the device's time is spent on", bar_plot(axes, shares), "simulated")


def _lengths(advice: Advice) -> Html:
    description = advice.facts.description
    rows = [
        [name, *(f"{value:,.0f}" for value in (each.mean, each.p50, each.p90, each.p95, each.p99, each.high))]
        for name, each in (
            ("prompt", description.prompt),
            ("answer", description.output),
            ("both", description.context),
        )
    ]
    return page.table(("tokens", "mean", "p50", "p90", "p95", "p99", "max"), rows)


def _prefixes(advice: Advice) -> Html:
    total = max(1, advice.facts.description.num_prompt)
    rows = [
        [
            f"{'· ' * depth}{each.words or each.tenant or 'prefix'}",
            f"{each.start:,}–{each.end:,}",
            f"{each.num_calls:,}",
            f"{each.saves:,}",
            f"{each.saves / total:.1%}",
        ]
        for depth, each in _walk(advice.tree.roots, LEAST_SAVING * total)
    ]
    return page.table(("begins", "tokens", "requests", "saves", "of all"), rows)


def _walk(prefixes: tuple[Prefix, ...], least: float) -> Iterator[tuple[int, Prefix]]:
    """The tree in order, those that save little left out."""
    waiting = [(0, each) for each in reversed(prefixes)]
    num_shown = 0
    while waiting and num_shown < NUM_PREFIXES:
        depth, each = waiting.pop()
        if each.saves_in_all >= least:
            yield depth, each
            num_shown += 1
            waiting += [(depth + 1, child) for child in reversed(each.children[:NUM_PREFIXES])]


def _memory(advice: Advice) -> Html:
    memory, roofline = advice.facts.memory, advice.planned.roofline
    rows = [
        ["reserved for the longest", size(memory.slots.reserved_bytes), f"{memory.slots.reserved:,}", "1.0"],
        ["paged", size(memory.slots.paged_bytes), f"{memory.slots.paged:,}", f"{memory.slots.ratio:.1f}"],
        [
            "paged and shared",
            size(memory.shared_slots.paged_bytes),
            f"{memory.shared_slots.paged:,}",
            f"{memory.shared_slots.ratio:.1f}",
        ],
    ]
    about = (
        f"{roofline.hardware.name} has {size(memory.device_bytes)} ({roofline.hardware.source}). {roofline.shape.name} "
        f"in {roofline.shape.precision} takes {size(memory.model_bytes)}; {size(memory.kv_bytes)} are left for KV at "
        f"{memory.token_bytes / 1e3:,.1f} kB a token."
    )
    table = page.table(("how KV is given", "a request", "requests at once", "times as many"), rows)
    return Html(page.paragraph(about) + table)


def _fits(advice: Advice) -> Html:
    fits = advice.facts.memory.fits
    rows = [[f"{fit.context:,} tokens", several(fit.num_requests, "request")] for fit in fits]
    return page.table(("context", "at once, at most"), rows)


def _whatifs(advice: Advice) -> Html:
    """Sentences wrap in a list; in a table they would not."""
    return page.listing(
        f"{each.change[0].upper()}{each.change[1:]}: {'helps' if each.helps else 'no gain'}. {each.says}"
        for each in advice.facts.whatifs
    )
