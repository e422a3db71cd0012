"""The replica advice of `quire advise`: simulates the trace on fleets, and writes lines for a cluster file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from quire.advisor.advice import GPU_STEP_TOKENS, Advice
from quire.advisor.number_format import format_seconds
from quire.advisor.recommendation import SLOW_FIRST_TOKEN, SLOW_TOKEN_GAP
from quire.advisor.roofline import Roofline, decode_work, prompt_work
from quire.advisor.simulation import SERVED, busiest_part
from quire.bench.fleet.handover import KVLink
from quire.bench.fleet.replica import ReplicaSpeed
from quire.bench.fleet.sizing import FleetGoals, FleetSize, choose_fleet, size_fleet, trace_request
from quire.report import page
from quire.report.page import Html

PROMPT_STEP = 512  # tokens of the step whose time gives the prompt rate
ROWS = 8  # further rows of the step whose time gives the seconds per row
LEAST_CALLS = 20  # with fewer requests, nothing is proposed
GOALS = FleetGoals(SLOW_FIRST_TOKEN, SLOW_TOKEN_GAP)
TITLE = "Replicas behind `quire gateway`, simulated with this trace"
COLUMNS = ("replicas", "first token p50", "p95", "between tokens p50", "p99", "prompt tokens cached", "busiest")


@dataclass(frozen=True, slots=True)
class FleetAdvice:
    """Replicas and roles for a trace."""

    model: str
    sizes: tuple[FleetSize, ...]
    proposed: FleetSize
    note: str  # what was assumed about roles

    def json(self) -> dict[str, Any]:
        """Return the advice for --json."""
        return {
            "replicas": self.proposed.num_replicas,
            "roles": dict(self.proposed.roles),
            "reason": self.reason(),
            "note": self.note,
            "goals": {"first_token_p95": GOALS.first_token, "token_gap_p99": GOALS.token_gap},
            "simulated": [asdict(each) | {"roles": dict(each.roles)} for each in self.sizes],
            "cluster_file": self.cluster_file(),
        }

    def text(self) -> str:
        """Return the advice for a terminal."""
        lines = [TITLE]
        for each in self.sizes:
            first, first_p95, gap, gap_p99, cached, busiest = _figures(each)
            mark = "  <- proposed" if each is self.proposed else ""
            lines.append(
                f"  {_name(each)}: first token {first} (p50), {first_p95} (p95), between tokens {gap} (p50), {gap_p99} "
                f"(p99), {cached} of prompt tokens cached, busiest {busiest}{mark}"
            )
        lines += [f"  {self.reason()}", f"  {self.note}", "  In a cluster file:"]
        return "\n".join([*lines, *(f"    {line}" for line in self.cluster_file().splitlines())])

    def html(self) -> Iterator[Html]:
        """Yield the sections for --html."""
        yield page.heading("Replicas and roles")
        yield page.listing((self.reason(), self.note))
        marks = {id(self.proposed): " (proposed)"}
        yield page.table(COLUMNS, [(f"{_name(each)}{marks.get(id(each), '')}", *_figures(each)) for each in self.sizes])
        yield page.code(self.cluster_file())

    def reason(self) -> str:
        """Return why this fleet is proposed, with both figures and their goals."""
        best, goals = self.proposed, GOALS
        figures = (
            f"95 % of the first tokens within {format_seconds(best.first_token_p95)} (goal "
            f"{format_seconds(goals.first_token)}), 99 % of the gaps between tokens within "
            f"{format_seconds(best.token_gap_p99)} (goal {format_seconds(goals.token_gap)})"
        )
        if best.missed(goals) > 1.0:
            return f"No simulated fleet meets both goals. {_name(best)} is the smallest that comes close: {figures}."
        plain = next(
            (each for each in self.sizes if each.num_replicas == best.num_replicas and not each.num_prefill), best
        )
        if plain is best:
            return f"{_name(best)} is the smallest fleet that meets both goals: {figures}."
        return (
            f"{_name(best)} is the smallest fleet that meets both goals: {figures}. {best.num_replicas} that do both: "
            f"{format_seconds(plain.first_token_p95)} and {format_seconds(plain.token_gap_p99)}."
        )

    def cluster_file(self) -> str:
        """Return lines for a file of `quire cluster up`."""
        count, lines = self.proposed.num_replicas, ["models:", "  chat:", f"    model: {json.dumps(self.model)}"]
        if self.proposed.num_prefill:
            roles = (f"      {role}: {{replicas: {number}}}" for role, number in self.proposed.roles.items())
            lines += ["    roles:", *roles]
        else:
            lines.append("    replicas: 1" if count == 1 else f"    autoscale: {{min: 1, max: {count}}}")
        return "\n".join(lines)


def propose_fleet(advice: Advice) -> FleetAdvice | None:
    """Propose replicas and roles. None: the trace has no times, too few requests, or the model does not fit."""
    part = busiest_part(advice.workload, SERVED)
    if not part.has_times or len(part.calls) < LEAST_CALLS or not advice.evidence.memory.is_enough:
        return None
    requests = [
        trace_request(number, call.time, call.marks, call.num_output, call.key)
        for number, call in enumerate(part.calls, 1)
    ]
    link, note = _link(advice)
    sizes = tuple(size_fleet(requests, _speed(advice), GOALS, link))
    return FleetAdvice(advice.plan.model.rpartition("=")[2], sizes, choose_fleet(sizes, GOALS), note)


def _link(advice: Advice) -> tuple[KVLink | None, str]:
    """Return the assumed speed of KV transfers, and a sentence about it. None: this device exchanges no blocks."""
    roofline: Roofline = advice.plan.roofline
    device = roofline.hardware.facts
    if not device.moves_blocks:
        return None, f"Roles are not simulated: engines on {device.name} exchange no KV blocks."
    link = KVLink(round(roofline.shape.kv_token_bytes))
    return link, (
        f"Roles: prefill replicas send {link.token_bytes / 1e3:,.0f} kB of KV per prompt token to decode replicas, at "
        f"an assumed {link.rate / 1e9:g} GB/s."
    )


def _speed(advice: Advice) -> ReplicaSpeed:
    roofline: Roofline = advice.plan.roofline
    memory, context = advice.evidence.memory, advice.evidence.summary.context.mean
    settings, has_own_memory = advice.plan.config.scheduler, roofline.hardware.facts.has_own_memory
    one, many = (roofline.seconds(decode_work(rows, context)) for rows in (1, ROWS + 1))
    return ReplicaSpeed(
        prompt_rate=PROMPT_STEP / roofline.seconds(prompt_work(PROMPT_STEP)),
        decode_seconds=one,
        decode_row_seconds=max(many - one, 0.0) / ROWS,
        cache_tokens=memory.num_blocks * memory.block_tokens,
        max_rows=max(memory.capacity.paged, 1),
        step_tokens=GPU_STEP_TOKENS if has_own_memory else settings.max_step_tokens,
        stream_gap=settings.stream_gap,
        min_prompt_tokens=settings.min_prompt_tokens,
    )


def _name(size: FleetSize) -> str:
    """For example 4 (1 prefill + 3 decode)."""
    if not size.num_prefill:
        return str(size.num_replicas)
    return f"{size.num_replicas} ({' + '.join(f'{number} {role}' for role, number in size.roles.items())})"


def _figures(size: FleetSize) -> tuple[str, ...]:
    """The cells of COLUMNS after the first."""
    times = (size.first_token_p50, size.first_token_p95, size.token_gap_p50, size.token_gap_p99)
    return (*(f"{seconds * 1e3:,.0f} ms" for seconds in times), f"{size.hit_rate:.0%}", f"{size.busy_share:.0%}")
