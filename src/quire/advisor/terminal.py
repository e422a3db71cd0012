"""Advice for people at a terminal: the answer first, then what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from quire.advisor.advice import Advice
from quire.advisor.describe import Description, Spread
from quire.advisor.figures import seconds, several, size
from quire.advisor.prefixes import LEAST_SAVING, Prefix
from quire.advisor.told import cost_shares
from quire.advisor.winners import HEADS

MEASURE = "Measured figures go before simulated ones: with the other engine at localhost:8080"
BAR = 24  # characters
SHOWN_ROOTS, SHOWN_CHILDREN, SHOWN_DEPTH = 6, 4, 3


def show(advice: Advice, console: Console) -> None:
    """Print all of it. The command stands alone on its line, whatever the width: it is there to be copied."""
    said = advice.answer
    console.print(Text(said.line, style="bold"), soft_wrap=True)
    if said.winners:
        console.print(_winners(advice))
    console.print(Panel(Text("\n".join(said.words)), title="What to run", title_align="left"))
    if said.command:
        console.print(said.command, style="bold", soft_wrap=True, highlight=False, markup=False)
    for title, lines in (("Why", said.reasons), ("What would change it", said.changes), ("Notes", advice.notes)):
        if lines:
            console.print(f"\n[bold]{title}[/bold]")
            for line in lines:
                console.print(_item(line))
    if said.measure:
        console.print(f"\n[bold]{MEASURE}[/bold]")
        for command in said.measure:
            console.print(command, soft_wrap=True, highlight=False, markup=False)
    for title, part in _parts(advice):
        console.print(f"\n[bold]{title}[/bold]")
        console.print(part)


def _winners(advice: Advice) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in HEADS[advice.facts.comparison is not None]:
        table.add_column(head)
    for each in advice.answer.winners:
        table.add_row(*map(Text, each))
    return table


def _item(line: str) -> Table:
    item = Table.grid(padding=(0, 1))
    item.add_row("•", Text(line))
    return item


def _parts(advice: Advice) -> Iterator[tuple[str, RenderableType]]:
    yield "The trace", _facts(_trace(advice))
    yield "Lengths (tokens)", _lengths(advice.facts.description)
    if advice.tree.roots:
        yield "Repeated beginnings, and the prompt tokens that each saves", _tree(advice)
    yield "Hit rate by the size of the cache", _curve(advice)
    yield "Memory", _facts(_memory(advice))
    yield "What the device's time is spent on (simulated)", _bars(cost_shares(advice.facts.served))
    if advice.facts.whatifs:
        yield "What if", _whatifs(advice)


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _trace(advice: Advice) -> list[tuple[str, str]]:
    description, arrivals = advice.facts.description, advice.facts.description.arrivals
    came = (
        f"{arrivals.per_second:.2g}/s on average, {arrivals.peak_per_second:.0f} in the fullest second; "
        f"{arrivals.kind} (variation {arrivals.variation:.1f}, 1 is that of independent users)"
        if description.has_times
        else "no times: a batch"
    )
    rows = [
        (
            "trace",
            f"{advice.workload.name}: {several(description.num_calls, 'request')} in {seconds(description.seconds)}",
        ),
        ("tokens", f"{description.num_prompt:,} of prompts, {description.num_output:,} of answers"),
        ("arrivals", came),
        ("at once", f"{advice.company.mean:.1f} on average, {advice.company.peak} at most{_whose(advice)}"),
        ("models", _counts(description.models)),
        ("structured output", f"{description.structured_share:.0%} {_counts(description.forms)}".strip()),
        ("shared prefixes", f"{advice.tree.share:.1%} of the prompt tokens were in an earlier prompt"),
    ]
    if len(description.tenants) > 1:
        rows.append(("tenants", f"{len(description.tenants)}: {_counts(description.tenants)}"))
    if description.measured_hit_rate is not None:
        rows.append(("hit rate, measured", f"{description.measured_hit_rate:.1%} by the server of the trace"))
    if advice.now is not None:
        rows.append(("hit rate, simulated", f"{advice.now.rate:.1%} with the {advice.now.num_blocks:,} blocks it has"))
    if description.num_refused:
        rows.append(("refused", several(description.num_refused, "request")))
    return rows


def _whose(advice: Advice) -> str:
    return "" if advice.company.is_measured else " (simulated)"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name or 'unnamed'} {count:,}" for name, count in list(counts.items())[:6])


def _lengths(description: Description) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("", "mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(head, justify="right" if head else "left")
    for name, spread in (("prompt", description.prompt), ("answer", description.output), ("both", description.context)):
        table.add_row(name, *_spread(spread))
    return table


def _spread(spread: Spread) -> list[str]:
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.high)
    return [f"{value:,.0f}" for value in values]


def _tree(advice: Advice) -> Tree:
    total = max(1, advice.facts.description.num_prompt)
    tree = Tree(f"{advice.tree.saves:,} tokens in all, {advice.tree.share:.1%}", hide_root=False)

    def add(below: Tree, prefixes: Sequence[Prefix], depth: int, most: int) -> None:
        shown = [each for each in prefixes if each.saves_in_all >= LEAST_SAVING * total][:most]
        for each in shown:
            words = f"  “{each.words}…”" if each.words else ""
            tenant = f" [{each.tenant}]" if len(advice.facts.description.tenants) > 1 and each.tenant else ""
            label = (
                f"{each.num_tokens:,} tokens × {each.num_calls:,} requests, saves {each.saves:,} "
                f"({each.saves / total:.1%}){tenant}"
            )
            branch = below.add(Text(label).append(words, style="dim"))
            if depth > 1:
                add(branch, each.children, depth - 1, SHOWN_CHILDREN)
        if len(prefixes) > len(shown):
            rest = sum(each.saves_in_all for each in prefixes[len(shown) :])
            below.add(Text(f"{len(prefixes) - len(shown):,} more, which save {rest:,}", style="dim"))

    add(tree, advice.tree.roots, SHOWN_DEPTH, SHOWN_ROOTS)
    return tree


def _curve(advice: Advice) -> Table:
    table = Table.grid(padding=(0, 2))
    memory = advice.facts.memory
    for each in advice.curve:
        held = size(each.num_blocks * memory.block_tokens * memory.token_bytes)
        waited = f"{each.num_waited:,} waited for room" if each.num_waited else ""
        table.add_row(
            f"{each.num_blocks:,} blocks", held, _bar(each.rate), f"{each.rate:.1%}", Text(waited, style="dim")
        )
    return table


def _memory(advice: Advice) -> list[tuple[str, str]]:
    memory, roofline = advice.facts.memory, advice.planned.roofline
    slots, shared = memory.slots, memory.shared_slots
    rows = [
        ("device", f"{roofline.hardware.name}: {size(memory.device_bytes)}; {roofline.hardware.source}"),
        ("model", f"{roofline.shape.name}, {roofline.shape.precision}: {size(memory.model_bytes)}"),
        ("left for KV", f"{size(memory.kv_bytes)}, {memory.token_bytes / 1e3:,.1f} kB a token"),
    ]
    if not memory.is_enough:
        return rows
    rows += [
        ("reserved", f"{size(slots.reserved_bytes)} each: {several(slots.reserved, 'request')} at once"),
        ("paged", f"{size(slots.paged_bytes)} each: {slots.paged:,}, {slots.ratio:.1f} times as many"),
        ("paged and shared", f"{size(shared.paged_bytes)} each: {shared.paged:,}, {shared.ratio:.1f} times as many"),
        ("lost in blocks", f"{memory.waste:.1%} of their room, to ends that are not full"),
        ("what fits", "; ".join(f"{fit.num_requests:,} × {fit.context:,} tokens" for fit in memory.fits)),
    ]
    return rows


def _bars(shares: dict[str, float]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, share in shares.items():
        table.add_row(name, _bar(share), f"{share:.0%}")
    return table


def _bar(share: float) -> Text:
    filled = round(BAR * min(1.0, max(0.0, share)))
    return Text("█" * filled + "░" * (BAR - filled), style="cyan")


def _whatifs(advice: Advice) -> Table:
    table = Table.grid(padding=(0, 2))
    for each in advice.facts.whatifs:
        verdict = Text("helps", style="green") if each.helps else Text("no gain", style="dim")
        table.add_row(verdict, Text(f"{each.change}. {each.says}"))
    return table
