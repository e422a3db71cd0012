"""What was measured of one engine or of several, and the files that it is written into."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quire.bench.drive import Closed, Load, Open
from quire.bench.machine import machine
from quire.bench.measure import Plan, Point
from quire.bench.rows import ROWS, Row, flat
from quire.bench.table import number

FORMAT = "quire.bench/1"


@dataclass(frozen=True, slots=True)
class Result:
    """Of one engine."""

    name: str
    what: str  # its address, or the command that started it
    model: str
    points: tuple[Point, ...]
    start_seconds: float | None = None  # to the first token of an answer; None: it ran before
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of all of them, with what they were asked."""

    plan: Plan
    results: tuple[Result, ...]
    made: str  # when
    machine: str
    load_before: float  # of the machine, in processes that wanted to run in the minute before

    @classmethod
    def of(cls, plan: Plan, results: Sequence[Result], load_before: float) -> Outcome:
        """Now and here."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(plan, tuple(results), now, machine(), load_before)

    def groups(self) -> Iterator[tuple[str, Load, dict[str, Point]]]:
        """For each workload and load, the point of each engine that has one."""
        for workload in self.plan.workloads:
            for load in self.plan.loads:
                found = {
                    result.name: point
                    for result in self.results
                    for point in result.points
                    if (point.workload, point.load) == (workload, load)
                }
                yield workload, load, found


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Results as JSON, a row a load as CSV, a row a request as CSV, and a table in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "results.json": json.dumps(as_json(outcome), indent=1),
        "results.csv": _as_csv(_load_rows(outcome)),
        "requests.csv": _as_csv(_request_rows(outcome)),
        "results.md": as_markdown(outcome),
    }
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in made]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything but single requests."""
    plan = outcome.plan
    return {
        "format": FORMAT,
        "made": outcome.made,
        "machine": outcome.machine,
        "load_before": outcome.load_before,
        "plan": {
            "workloads": plan.workloads,
            "lengths": plan.lengths,
            "loads": [_load(load) for load in plan.loads],
            "requests": plan.until.num_requests,
            "seconds": plan.until.seconds,
            "seed": plan.seed,
            "limits": asdict(plan.limits) if plan.limits is not None else None,
            "price_per_hour": plan.price_per_hour,
        },
        "engines": [
            {
                "name": result.name,
                "what": result.what,
                "model": result.model,
                "start_seconds": result.start_seconds,
                "notes": result.notes,
                "points": [_point(point) for point in result.points],
            }
            for result in outcome.results
        ],
    }


def _point(point: Point) -> dict[str, Any]:
    told = {"errors": point.summary.errors, "concerns": point.summary.concerns}
    return {"workload": point.workload, "load": _load(point.load), "figures": flat(point.summary), **told}


def _load(load: Load) -> dict[str, Any]:
    match load:
        case Closed(num_clients):
            return {"kind": "closed", "clients": num_clients}
        case Open(rate, arrivals):
            return {"kind": "open", "rate": rate, "arrivals": str(arrivals)}
        case _:
            return {"kind": "recorded"}


def _load_rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    for result in outcome.results:
        for point in result.points:
            begin = {"engine": result.name, "workload": point.workload, "load": point.summary.load}
            yield begin | {"start_seconds": result.start_seconds} | flat(point.summary)


def _request_rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    for result in outcome.results:
        for point in result.points:
            first = min((heard.sent for heard in point.heard), default=0.0)
            for heard in sorted(point.heard, key=lambda each: each.sent):
                yield {
                    "engine": result.name,
                    "workload": point.workload,
                    "load": point.summary.load,
                    "sent": round(heard.sent - first, 6),
                    "ttft": round(heard.first_token, 6) if heard.stamps else "",
                    "tpot": round(heard.per_token, 6) if heard.stamps and heard.per_token is not None else "",
                    "e2el": round(heard.seconds, 6),
                    "prompt_tokens": heard.prompt_tokens,
                    "cached_tokens": heard.cached_tokens,
                    "output_tokens": heard.num_tokens,
                    "finish": heard.finish,
                    "error": heard.error,
                }


def _as_csv(rows: Iterator[dict[str, Any]]) -> str:
    listed = list(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(listed[0]) if listed else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return out.getvalue()


def as_markdown(outcome: Outcome) -> str:
    """A table for each workload and load: a row a figure, a column an engine, and how they compare to the first."""
    parts = []
    for workload, load, points in outcome.groups():
        heads, rows = compared(points)
        parts.append(f"### {workload}, {load}\n")
        parts += [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
        parts.append("")
    return "\n".join(parts)


def compared(points: dict[str, Point]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows. Figures that nobody has are left out."""
    names = list(points)
    heads = ["", *names, *(f"{name} / {names[0]}" for name in names[1:])]
    rows = []
    for row in ROWS:
        if all(row.of(point.summary) is None for point in points.values()):
            continue
        shown = [row.shown(points[name].summary) for name in names]
        rows.append([row.label, *shown, *(ratio(row, points[names[0]], points[name]) for name in names[1:])])
    return heads, rows


def ratio(row: Row, first: Point, other: Point) -> str:
    """How many times the first one's figure the other's is."""
    of, to = row.of(other.summary), row.of(first.summary)
    return f"{number(of / to)} ×" if row.better and of is not None and to else ""
