"""Prints advice on a terminal: the recommendation first, then the figures behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from quire.advisor.advice import Advice
from quire.advisor.best_options import HEADINGS
from quire.advisor.number_format import count_noun, format_bytes, format_seconds
from quire.advisor.shared_prefixes import MIN_SAVING, Prefix
from quire.advisor.workload_summary import WorkloadSummary

MEASURE_TITLE = "To measure instead of simulating, with the other engine at localhost:8080"
LENGTH_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
BAR_CHARS = 24
MAX_ROOTS, MAX_CHILDREN, MAX_DEPTH = 6, 4, 3  # of the tree of prefixes


def print_advice(advice: Advice, console: Console) -> None:
    """Print the advice. Commands are not wrapped, so that they can be copied."""
    answer = advice.recommendation
    console.print(Text(answer.line, style="bold"), soft_wrap=True)
    if answer.best_options:
        console.print(_best_options(advice))
    console.print(Panel(Text("\n".join(answer.summary)), title="What to run", title_align="left"))
    if answer.command:
        console.print(answer.command, style="bold", soft_wrap=True, highlight=False, markup=False)
    for title, lines in (("Why", answer.reasons), ("What would change it", answer.changes), ("Notes", advice.notes)):
        if lines:
            console.print(f"\n[bold]{title}[/bold]")
            for line in lines:
                console.print(_item(line))
    if answer.measure_commands:
        console.print(f"\n[bold]{MEASURE_TITLE}[/bold]")
        for command in answer.measure_commands:
            console.print(command, soft_wrap=True, highlight=False, markup=False)
    for title, section in _sections(advice):
        console.print(f"\n[bold]{title}[/bold]")
        console.print(section)


def length_rows(summary: WorkloadSummary) -> list[list[str]]:
    """Return a row with LENGTH_COLUMNS for prompts, answers and both."""
    lengths = {"prompt": summary.prompt, "answer": summary.output, "both": summary.context}
    return [
        [name, *(f"{value:,.0f}" for value in (each.mean, each.p50, each.p90, each.p95, each.p99, each.high))]
        for name, each in lengths.items()
    ]


def _best_options(advice: Advice) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS[advice.evidence.comparison is not None]:
        table.add_column(heading)
    for each in advice.recommendation.best_options:
        table.add_row(*map(Text, each))
    return table


def _item(line: str) -> Table:
    item = Table.grid(padding=(0, 1))
    item.add_row("•", Text(line))
    return item


def _sections(advice: Advice) -> Iterator[tuple[str, RenderableType]]:
    yield "Trace", _properties(_trace(advice))
    yield "Lengths (tokens)", _lengths(advice.evidence.summary)
    if advice.prefixes.roots:
        yield "Shared prefixes, and the prompt tokens that each saves", _prefix_tree(advice)
    yield "Hit rate by cache size", _curve(advice)
    yield "Memory", _properties(_memory(advice))
    yield "Device time (simulated)", _bars(advice.evidence.served.time_shares)
    if advice.evidence.what_ifs:
        yield "What if", _what_ifs(advice)


def _properties(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _trace(advice: Advice) -> list[tuple[str, str]]:
    summary, arrivals, concurrency = advice.evidence.summary, advice.evidence.summary.arrivals, advice.concurrency
    arrival_text = (
        f"{arrivals.per_second:.2g}/s on average, {arrivals.peak_per_second:.0f} in the busiest second; "
        f"{arrivals.kind} (variation {arrivals.variation:.1f}; independent users have 1)"
        if summary.has_times
        else "no times: a batch"
    )
    simulated = "" if concurrency.is_measured else " (simulated)"
    rows = [
        (
            "trace",
            f"{advice.workload.name}: {count_noun(summary.num_calls, 'request')} in {format_seconds(summary.seconds)}",
        ),
        ("tokens", f"{summary.num_prompt:,} in prompts, {summary.num_output:,} in answers"),
        ("arrivals", arrival_text),
        ("concurrency", f"{concurrency.mean:.1f} on average, {concurrency.peak} at peak{simulated}"),
        ("models", _counts(summary.models)),
        ("structured output", f"{summary.structured_share:.0%} {_counts(summary.forms)}".strip()),
        ("shared prefixes", f"{advice.prefixes.share:.1%} of the prompt tokens were in an earlier prompt"),
    ]
    if len(summary.tenants) > 1:
        rows.append(("tenants", f"{len(summary.tenants)}: {_counts(summary.tenants)}"))
    if summary.measured_hit_rate is not None:
        rows.append(("hit rate, measured", f"{summary.measured_hit_rate:.1%}, reported by the trace's server"))
    if advice.now is not None:
        rows.append(
            ("hit rate, simulated", f"{advice.now.rate:.1%} with the server's {advice.now.num_blocks:,} blocks")
        )
    if summary.num_refused:
        rows.append(("refused", count_noun(summary.num_refused, "request")))
    return rows


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name or 'unnamed'} {count:,}" for name, count in list(counts.items())[:6])


def _lengths(summary: WorkloadSummary) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in LENGTH_COLUMNS:
        table.add_column(heading, justify="right")
    for row in length_rows(summary):
        table.add_row(*row)
    return table


def _prefix_tree(advice: Advice) -> Tree:
    total = max(1, advice.evidence.summary.num_prompt)
    tree = Tree(f"{advice.prefixes.saves:,} tokens in total, {advice.prefixes.share:.1%}", hide_root=False)

    def add(parent: Tree, prefixes: Sequence[Prefix], depth: int, limit: int) -> None:
        listed = [each for each in prefixes if each.total_saving >= MIN_SAVING * total][:limit]
        for each in listed:
            excerpt = f"  “{each.excerpt}…”" if each.excerpt else ""
            tenant = f" [{each.tenant}]" if len(advice.evidence.summary.tenants) > 1 and each.tenant else ""
            label = (
                f"{each.num_tokens:,} tokens × {each.num_calls:,} requests, saves {each.saves:,} "
                f"({each.saves / total:.1%}){tenant}"
            )
            branch = parent.add(Text(label).append(excerpt, style="dim"))
            if depth > 1:
                add(branch, each.children, depth - 1, MAX_CHILDREN)
        if len(prefixes) > len(listed):
            rest = sum(each.total_saving for each in prefixes[len(listed) :])
            parent.add(Text(f"{len(prefixes) - len(listed):,} more save {rest:,}", style="dim"))

    add(tree, advice.prefixes.roots, MAX_DEPTH, MAX_ROOTS)
    return tree


def _curve(advice: Advice) -> Table:
    table = Table.grid(padding=(0, 2))
    memory = advice.evidence.memory
    for each in advice.curve:
        size = format_bytes(each.num_blocks * memory.block_tokens * memory.token_bytes)
        waited = f"{each.num_waited:,} requests waited for blocks" if each.num_waited else ""
        table.add_row(
            f"{each.num_blocks:,} blocks", size, _bar(each.rate), f"{each.rate:.1%}", Text(waited, style="dim")
        )
    return table


def _memory(advice: Advice) -> list[tuple[str, str]]:
    memory, roofline = advice.evidence.memory, advice.plan.roofline
    plain, shared = memory.capacity, memory.shared_capacity
    rows = [
        ("device", f"{roofline.hardware.name}: {format_bytes(memory.device_bytes)}; {roofline.hardware.source}"),
        ("model", f"{roofline.shape.name}, {roofline.shape.precision}: {format_bytes(memory.model_bytes)}"),
        ("left for KV", f"{format_bytes(memory.kv_bytes)}, {memory.by_group}"),
    ]
    if not memory.is_enough:
        return rows
    rows += [
        ("reserved", f"{format_bytes(plain.reserved_bytes)} each: {count_noun(plain.reserved, 'request')} at a time"),
        ("paged", f"{format_bytes(plain.paged_bytes)} each: {plain.paged:,}, {plain.ratio:.1f} times as many"),
        (
            "paged and shared",
            f"{format_bytes(shared.paged_bytes)} each: {shared.paged:,}, {shared.ratio:.1f} times as many",
        ),
        ("unused in blocks", f"{memory.waste:.1%}, in partly filled last blocks"),
        ("what fits", "; ".join(f"{fit.num_requests:,} × {fit.context:,} tokens" for fit in memory.fits)),
    ]
    return rows


def _bars(shares: dict[str, float]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, share in shares.items():
        table.add_row(name, _bar(share), f"{share:.0%}")
    return table


def _bar(share: float) -> Text:
    filled = round(BAR_CHARS * min(1.0, max(0.0, share)))
    return Text("█" * filled + "░" * (BAR_CHARS - filled), style="cyan")


def _what_ifs(advice: Advice) -> Table:
    table = Table.grid(padding=(0, 2))
    for each in advice.evidence.what_ifs:
        verdict = Text("helps", style="green") if each.helps else Text("no gain", style="dim")
        table.add_row(verdict, Text(str(each)))
    return table
