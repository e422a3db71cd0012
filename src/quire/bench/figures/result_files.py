"""Write the results of a benchmark as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.bench.figures.load_metrics import as_record
from quire.bench.figures.results import BenchmarkResults, comparison_table
from quire.bench.load.load_test import Point
from quire.bench.load.patterns import ClosedLoop, LoadPattern, OpenLoop

FORMAT = "quire.bench/1"


def write_results(results: BenchmarkResults, folder: Path) -> list[Path]:
    """Write results.json, results.csv (a row a load), requests.csv (a row a request) and results.md."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "results.json": json.dumps(results_json(results), indent=1),
        "results.csv": _as_csv(_load_rows(results)),
        "requests.csv": _as_csv(_request_rows(results)),
        "results.md": results_markdown(results),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def results_json(results: BenchmarkResults) -> dict[str, Any]:
    """Return everything but single requests."""
    plan = results.plan
    return {
        "format": FORMAT,
        "made": results.date,
        "machine": results.machine,
        "load_before": results.load_before,
        "plan": {
            "workloads": plan.workloads,
            "lengths": plan.lengths,
            "loads": [_load_json(load) for load in plan.loads],
            "requests": plan.stop.num_requests,
            "seconds": plan.stop.seconds,
            "seed": plan.seed,
            "limits": asdict(plan.limits) if plan.limits is not None else None,
            "price_per_hour": plan.price_per_hour,
        },
        "engines": [
            {
                "name": engine.name,
                "what": engine.source,
                "model": engine.model,
                "start_seconds": engine.start_seconds,
                "notes": engine.notes,
                "points": [_point_json(point) for point in engine.points],
            }
            for engine in results.engines
        ],
    }


def _point_json(point: Point) -> dict[str, Any]:
    return {
        "workload": point.workload,
        "load": _load_json(point.load),
        "figures": as_record(point.summary),
        "errors": point.summary.errors,
        "concerns": point.summary.concerns,
    }


def _load_json(load: LoadPattern) -> dict[str, Any]:
    match load:
        case ClosedLoop(num_clients):
            return {"kind": "closed", "clients": num_clients}
        case OpenLoop(rate, arrivals):
            return {"kind": "open", "rate": rate, "arrivals": str(arrivals)}
        case _:
            return {"kind": "recorded"}


def _load_rows(results: BenchmarkResults) -> Iterator[dict[str, Any]]:
    for engine in results.engines:
        for point in engine.points:
            begin = {"engine": engine.name, "workload": point.workload, "load": point.summary.load}
            yield begin | {"start_seconds": engine.start_seconds} | as_record(point.summary)


def _request_rows(results: BenchmarkResults) -> Iterator[dict[str, Any]]:
    for engine in results.engines:
        for point in engine.points:
            first_sent = min((request.sent for request in point.results), default=0.0)
            for request in sorted(point.results, key=lambda each: each.sent):
                has_output = bool(request.event_times)
                yield {
                    "engine": engine.name,
                    "workload": point.workload,
                    "load": point.summary.load,
                    "sent": round(request.sent - first_sent, 6),
                    "ttft": round(request.first_token, 6) if has_output else "",
                    "tpot": round(request.per_token, 6) if has_output and request.per_token is not None else "",
                    "e2el": round(request.seconds, 6),
                    "prompt_tokens": request.prompt_tokens,
                    "cached_tokens": request.cached_tokens,
                    "output_tokens": request.num_tokens,
                    "finish": request.finish_reason,
                    "error": request.error,
                }


def _as_csv(rows: Iterator[dict[str, Any]]) -> str:
    all_rows = list(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(all_rows[0]) if all_rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(all_rows)
    return out.getvalue()


def results_markdown(results: BenchmarkResults) -> str:
    """Return a comparison table for each workload and load."""
    parts = []
    for workload, load, points in results.groups():
        heads, rows = comparison_table(points)
        parts.append(f"### {workload}, {load}\n")
        parts += [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
        parts.append("")
    return "\n".join(parts)
