"""Reads the results of `quire bench compare`. If there are any, the recommendation is based on these measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.advisor.number_format import count_noun, format_seconds
from quire.types.errors import InvalidRequest

RESULTS = "results.json"
FORMAT = "quire.bench/"
TIE_RATIO = 1.10  # engines within this ratio count as equal: single runs vary as much
QUIRE = "quire"
MILLI = 1e-3
MAX_CONCERNS = 4
SHARED_WORKLOADS = ("shared", "chat", "rag", "agent", "mixed")  # workloads whose prompts share prefixes


@dataclass(frozen=True, slots=True)
class ComparedEngine:
    """The measurements of one engine under one load. Times are in seconds."""

    engine: str
    what: str  # its command or URL
    workload: str
    load: str
    concurrency: int | None  # of a closed loop
    output_rate: float
    first_token_p50: float
    first_token_p99: float
    token_p50: float
    whole_p50: float
    goodput: float | None
    num_failed: int
    start_seconds: float | None
    concerns: tuple[str, ...] = ()  # warnings of the benchmark about this measurement

    @property
    def is_quire(self) -> bool:
        """Is this engine Quire?"""
        return QUIRE in self.engine.lower() or f"{QUIRE} serve" in self.what

    def score(self, is_offline: bool) -> float:
        """Higher is better: offline tokens/s; else goodput, or whole answers per second."""
        if is_offline:
            return self.output_rate
        return self.goodput if self.goodput is not None else 1 / self.whole_p50 if self.whole_p50 else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The engines measured under the load most similar to the trace, best first."""

    machine: str
    workload: str
    load: str
    is_offline: bool
    ranked: tuple[ComparedEngine, ...]

    @property
    def best(self) -> ComparedEngine:
        """The engine with the highest score; in a tie Quire, because nothing has to change for it."""
        first = self.ranked[0]
        ties = [each for each in self.ranked if self._score(each) * TIE_RATIO >= self._score(first)]
        return next((each for each in ties if each.is_quire), first)

    def sentences(self) -> list[str]:
        """Return the measurements in words: the best engine, the others, ties, start times, concerns."""
        best = self.best
        sentences = [
            f"Measured ({self.machine or 'unknown machine'}; {self.workload}, {self.load}): {best.engine} "
            f"{best.output_rate:,.0f} tokens/s, first token p50 {format_seconds(best.first_token_p50)}, p99 "
            f"{format_seconds(best.first_token_p99)}, {format_seconds(best.token_p50)} per token."
        ]
        others = [each for each in self.ranked if each is not best]
        for other in others:
            errors = f", {other.num_failed} errors" if other.num_failed else ""
            sentences.append(
                f"{other.engine}: {other.output_rate:,.0f} tokens/s ({_ratio(other.output_rate, best.output_rate)}×), "
                f"first token p99 {format_seconds(other.first_token_p99)}, {format_seconds(other.token_p50)} per "
                f"token{errors}."
            )
        ties = [each.engine for each in others if _is_tie(self._score(each), self._score(best))]
        if ties:
            sentences.append(
                f"{' and '.join(ties)}: within {TIE_RATIO - 1:.0%} of {best.engine}, a tie in a single run."
            )
        starts = [f"{each.engine} {each.start_seconds:.1f} s" for each in self.ranked if each.start_seconds is not None]
        if starts:
            sentences.append(f"Start to first answer: {', '.join(starts)}.")
        concerns = [f"{each.engine}: {concern}" for each in self.ranked for concern in each.concerns]
        return [*sentences, *(f"Concern about this measurement: {concern}" for concern in concerns[:MAX_CONCERNS])]

    def _score(self, result: ComparedEngine) -> float:
        return result.score(self.is_offline)


def read_comparison(folder: Path, is_shared: bool, concurrency: float, is_offline: bool) -> Comparison:
    """Read the part of a comparison that is most similar to the trace."""
    content = _read(folder)
    results = list(_results(content))
    if not results:
        raise InvalidRequest(f"{folder} has no results. Run `quire bench compare … --out {folder}`.", field="compare")
    workload = min({each.workload for each in results}, key=lambda name: (_has_prefixes(name) != is_shared, name))
    results = [each for each in results if each.workload == workload]
    loads = {(each.load, each.concurrency) for each in results}
    load = min(loads, key=lambda pair: _distance(pair[1], concurrency))[0]
    ranked = sorted((each for each in results if each.load == load), key=lambda each: -each.score(is_offline))
    return Comparison(str(content.get("machine") or ""), workload, load, is_offline, tuple(ranked))


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RESULTS if folder.is_dir() else folder
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"Cannot read the comparison {path}: {error}.", field="compare") from None
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(FORMAT):
        raise InvalidRequest(f"{path} was not written by `quire bench compare`.", field="compare")
    return content


def _results(content: dict[str, Any]) -> Iterator[ComparedEngine]:
    for engine in content.get("engines", ()):
        for point in engine.get("points", ()):
            figures, load = point["figures"], point["load"]
            if not figures.get("completed"):
                continue
            yield ComparedEngine(
                engine=engine["name"],
                what=str(engine.get("what") or ""),
                workload=point["workload"],
                load=_load_text(load),
                concurrency=load.get("clients"),
                output_rate=figures["output_throughput"],
                first_token_p50=figures["p50_ttft_ms"] * MILLI,
                first_token_p99=figures["p99_ttft_ms"] * MILLI,
                token_p50=figures["p50_tpot_ms"] * MILLI,
                whole_p50=figures["p50_e2el_ms"] * MILLI,
                goodput=figures.get("request_goodput"),
                num_failed=int(figures.get("failed") or 0),
                start_seconds=engine.get("start_seconds"),
                concerns=tuple(point.get("concerns") or ()),
            )


def _load_text(load: dict[str, Any]) -> str:
    if load.get("kind") == "closed":
        return count_noun(load["clients"], "client")
    return f"{load['rate']:g} requests/s" if load.get("kind") == "open" else "as recorded"


def _has_prefixes(workload: str) -> bool:
    return workload.partition(":")[0].partition("=")[0] in SHARED_WORKLOADS


def _distance(clients: int | None, concurrency: float) -> float:
    """Return the ratio of two concurrencies; infinite for a load that is not a closed loop."""
    return float("inf") if clients is None else max(clients / max(1.0, concurrency), max(1.0, concurrency) / clients)


def _is_tie(one: float, other: float) -> bool:
    return max(one, other) <= TIE_RATIO * min(one, other)


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "–"
