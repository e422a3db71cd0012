"""Measured comparisons, as `quire bench compare` writes them: where there are any, the answer argues from these."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.advisor.figures import seconds, several
from quire.types.errors import InvalidRequest

RESULTS = "results.json"
FORMAT = "quire.bench/"
CLOSE = 1.10  # engines within this ratio are taken to be equal: single runs vary as much
OURS = "quire"
MILLI = 1e-3
MOST_DOUBTS = 4
SHARED_WORKLOADS = ("shared", "chat", "rag", "agent", "mixed")  # their prompts have common beginnings


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine under one load. Times are in seconds."""

    engine: str
    what: str  # its command or its address
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
    concerns: tuple[str, ...] = ()  # what the measurement itself says against it

    @property
    def is_ours(self) -> bool:
        """Is it Quire?"""
        return OURS in self.engine.lower() or f"{OURS} serve" in self.what

    def merit(self, is_offline: bool) -> float:
        """More is better: tokens a second where nobody waits, else answers within limits, or whole ones a second."""
        if is_offline:
            return self.output_rate
        return self.goodput if self.goodput is not None else 1 / self.whole_p50 if self.whole_p50 else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The engines that were measured under the load that is most like ours, the best first."""

    machine: str
    workload: str
    load: str
    is_offline: bool
    ranked: tuple[Measured, ...]

    @property
    def best(self) -> Measured:
        """By merit; of equals ours, because nothing has to be changed for it."""
        first = self.ranked[0]
        close = [each for each in self.ranked if each.merit(self.is_offline) * CLOSE >= first.merit(self.is_offline)]
        return next((each for each in close if each.is_ours), first)

    def sentences(self) -> list[str]:
        """What the figures say, of the best and of each of the others."""
        best = self.best
        said = [
            f"Measured ({self.machine or 'where the comparison ran'}; {self.workload}, {self.load}): {best.engine} "
            f"makes {best.output_rate:,.0f} tokens/s, first token p50 {seconds(best.first_token_p50)} and p99 "
            f"{seconds(best.first_token_p99)}, {seconds(best.token_p50)} a token."
        ]
        for other in self.ranked:
            if other is not best:
                share = f"{_ratio(other.output_rate, best.output_rate)} of it"
                failed = f", {other.num_failed} errors" if other.num_failed else ""
                said.append(
                    f"{other.engine}: {other.output_rate:,.0f} tokens/s, {share}; first token p99 "
                    f"{seconds(other.first_token_p99)}, {seconds(other.token_p50)} a token{failed}."
                )
        equals = [
            each.engine
            for each in self.ranked
            if each is not best and _near(each.merit(self.is_offline), best.merit(self.is_offline))
        ]
        if equals:
            said.append(f"{' and '.join(equals)} is within {CLOSE - 1:.0%}: one run does not tell them apart.")
        starts = {each.engine: each.start_seconds for each in self.ranked if each.start_seconds is not None}
        if starts:
            told = ", ".join(f"{name} {taken:.1f} s" for name, taken in starts.items())
            said.append(f"From the start to the first answer: {told}.")
        doubts = [f"{each.engine}: {doubt}" for each in self.ranked for doubt in each.concerns]
        return [*said, *(f"Against this measurement, {doubt}" for doubt in doubts[:MOST_DOUBTS])]


def read_comparison(folder: Path, is_shared: bool, concurrency: float, is_offline: bool) -> Comparison:
    """The part of a comparison that is most like our workload."""
    said = _read(folder)
    points = list(_points(said))
    if not points:
        raise InvalidRequest(f"{folder} has no figures: run `quire bench compare … --out {folder}`.", field="compare")
    workload = min({each.workload for each in points}, key=lambda name: (_shares(name) != is_shared, name))
    here = [each for each in points if each.workload == workload]
    load = min({(each.load, each.concurrency) for each in here}, key=lambda pair: _distance(pair[1], concurrency))[0]
    here = sorted((each for each in here if each.load == load), key=lambda each: -each.merit(is_offline))
    return Comparison(str(said.get("machine") or ""), workload, load, is_offline, tuple(here))


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RESULTS if folder.is_dir() else folder
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"The comparison {path} cannot be read: {error}.", field="compare") from None
    if not isinstance(said, dict) or not str(said.get("format", "")).startswith(FORMAT):
        raise InvalidRequest(f"{path} is no result of `quire bench compare`.", field="compare")
    return said


def _points(said: dict[str, Any]) -> Iterator[Measured]:
    for engine in said.get("engines", ()):
        for point in engine.get("points", ()):
            figures, load = point["figures"], point["load"]
            if not figures.get("completed"):
                continue
            yield Measured(
                engine=engine["name"],
                what=str(engine.get("what") or ""),
                workload=point["workload"],
                load=_spelled(load),
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


def _spelled(load: dict[str, Any]) -> str:
    if load.get("kind") == "closed":
        return several(load["clients"], "client")
    return f"{load['rate']:g} requests/s" if load.get("kind") == "open" else "as recorded"


def _shares(workload: str) -> bool:
    return workload.partition(":")[0].partition("=")[0] in SHARED_WORKLOADS


def _distance(clients: int | None, concurrency: float) -> float:
    """Of two loads, as a ratio; a load that is no closed loop comes last."""
    return float("inf") if clients is None else max(clients / max(1.0, concurrency), max(1.0, concurrency) / clients)


def _near(one: float, other: float) -> bool:
    return max(one, other) <= CLOSE * min(one, other)


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "–"
