"""The recommendation: engine, command, reasons, and what would change it.

A situation is a kind of workload for which a certain engine is the usual choice. Several can apply; the first decides.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from quire.advisor.alternatives import fitting_alternatives
from quire.advisor.best_options import BestOption, best_measured, best_simulated
from quire.advisor.comparison import Comparison
from quire.advisor.hardware import HERE
from quire.advisor.kv_memory import KVMemory
from quire.advisor.model_sources import HUB
from quire.advisor.number_format import count_noun, format_rate, format_seconds
from quire.advisor.recommended_settings import RecommendedSetting
from quire.advisor.roofline import USABLE_SHARE, Roofline
from quire.advisor.simulation import SimulationResult
from quire.advisor.what_if import WhatIf, key_metrics
from quire.advisor.workload_summary import WorkloadSummary
from quire.config import ServeConfig
from quire.devices.facts import MemoryKind

FEW_USERS = 2  # concurrent requests
HIGH_SHARE, LOW_SHARE = 0.5, 0.15  # of the prompt tokens that are shared
MIN_MODEL_SHARE = 0.05  # of the requests, below which a model is ignored
DEFAULT_PORT = ServeConfig().port
SLOW_FIRST_TOKEN = 2.0  # seconds
SLOW_TOKEN_GAP = 0.1  # seconds: readers notice a longer pause
OTHER_ENGINE = "http://localhost:8080"  # placeholder for the engine to compare with
FULL_LOAD = 0.85  # of a device's capacity, from which on queues grow


class Situation(StrEnum):
    """The kind of workload, as far as it decides what to run."""

    TOO_LARGE = "model too large"
    OFFLINE = "offline batch"
    SEVERAL_MACHINES = "several machines"
    MANY_MODELS = "many models"
    ONE_USER = "one user"
    SHARED = "many with shared context"
    UNIQUE = "many with unique prompts"
    MIXED = "many, some of their context shared"


SITUATION_TEXT = {
    Situation.TOO_LARGE: "The model does not fit",
    Situation.OFFLINE: "Offline batch",
    Situation.SEVERAL_MACHINES: "More load than one machine can serve",
    Situation.MANY_MODELS: "Several models",
    Situation.ONE_USER: "One user",
    Situation.SHARED: "Many users with shared prompt prefixes",
    Situation.UNIQUE: "Many users with unique prompts",
    Situation.MIXED: "Many users with partly shared prompt prefixes",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the recommendation is based on."""

    model: str  # as commands name it
    summary: WorkloadSummary
    shared: float  # share of the prompt tokens that an earlier prompt had
    memory: KVMemory
    roofline: Roofline
    served: SimulationResult
    max_request_rate: float  # per second
    what_ifs: Sequence[WhatIf]
    settings: Sequence[RecommendedSetting]
    has_device: bool  # does this Quire support such a device?
    comparison: Comparison | None = None
    command_names: Mapping[str, str] = field(default_factory=dict)  # of the trace's models, as commands name them
    flags: tuple[str, ...] = ()  # required by the precision
    trace_file: str = ""  # empty: the trace is not a file

    @property
    def is_offline(self) -> bool:
        """Does the latency of single answers not matter?"""
        return not self.summary.has_times

    @property
    def load(self) -> float:
        """Arrivals in the busiest ten seconds, as a share of the capacity."""
        peak = self.summary.arrivals.peak_ten_seconds
        return peak / self.max_request_rate if self.max_request_rate else float("inf")

    @property
    def models(self) -> list[str]:
        """The trace's models with at least MIN_MODEL_SHARE of the requests."""
        counts = self.summary.models
        return [name for name, count in counts.items() if count >= MIN_MODEL_SHARE * self.summary.num_calls]

    def what_if(self, name: str) -> WhatIf | None:
        """Return one of the evaluated changes by its name."""
        return next((each for each in self.what_ifs if each.name == name), None)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to run, and why."""

    line: str  # the recommendation in one line
    situations: tuple[str, ...]
    engine: str
    command: str  # can be pasted; empty: nothing can run
    best_options: tuple[BestOption, ...]
    summary: tuple[str, ...]
    reasons: tuple[str, ...]
    changes: tuple[str, ...]  # what would change the recommendation
    measure_commands: tuple[str, ...] = ()  # commands that compare engines on this trace


def recommend(evidence: Evidence) -> Recommendation:
    """Choose the engine and the command, with the reasons."""
    situations = list(_situations(evidence))
    engine = _engine(evidence)
    if not evidence.memory.is_enough and evidence.comparison is None:
        return _too_large(evidence, situations)
    command = _quire_command(evidence, situations) if engine == "quire" else _other_command(evidence, engine)
    if evidence.comparison is not None:
        best_options = best_measured(evidence.comparison)
    else:
        best_options = best_simulated(key_metrics(evidence.served), evidence.what_ifs)
    return Recommendation(
        _line(evidence, engine),
        tuple(situations),
        engine,
        command,
        tuple(best_options),
        tuple(_summary(evidence, situations)),
        tuple(_reasons(evidence, engine, situations)),
        tuple(_changes(evidence, engine)),
        tuple(_measure_commands(evidence, command)),
    )


def _too_large(evidence: Evidence, situations: Sequence[Situation]) -> Recommendation:
    """Recommend alternatives instead of a command, because the model does not fit."""
    shape, hardware, memory = evidence.roofline.shape, evidence.roofline.hardware, evidence.memory
    needed = (memory.model_bytes + memory.capacity.paged_bytes) / 1e9
    line = (
        f"{evidence.model} ({shape.precision}) does not fit on {_place(evidence)}: with one request it needs "
        f"{needed:.1f} GB, and {hardware.memory_bytes * USABLE_SHARE / 1e9:.1f} of "
        f"{hardware.memory_bytes / 1e9:.0f} GB are usable."
    )
    fitting = fitting_alternatives(evidence.roofline, memory)
    others = [f"It fits with {each}." for each in fitting] or ["It fits with no weight format and device known here."]
    return Recommendation(line, tuple(situations), "", "", (), (_situation_line(situations), *others), (), ())


def _situation_line(situations: Sequence[Situation]) -> str:
    return f"{'; '.join(SITUATION_TEXT[each] for each in situations)}."


def _situations(evidence: Evidence) -> Iterator[Situation]:
    if not evidence.memory.is_enough:
        yield Situation.TOO_LARGE
    if evidence.is_offline:
        yield Situation.OFFLINE
    if evidence.memory.is_enough and evidence.load > FULL_LOAD and not evidence.is_offline:
        yield Situation.SEVERAL_MACHINES
    if len(evidence.models) > 1:
        yield Situation.MANY_MODELS
    if not evidence.is_offline and evidence.served.concurrency.peak <= FEW_USERS:
        yield Situation.ONE_USER
    elif evidence.shared >= HIGH_SHARE:
        yield Situation.SHARED
    elif evidence.shared <= LOW_SHARE:
        yield Situation.UNIQUE
    else:
        yield Situation.MIXED


def _engine(evidence: Evidence) -> str:
    """Choose the engine: by measurements if there are any, else by whether this Quire supports the device."""
    if evidence.comparison is not None:
        best = evidence.comparison.best
        return "quire" if best.is_quire else best.engine
    if evidence.has_device:
        return "quire"
    return "sglang" if evidence.shared >= HIGH_SHARE else "vllm"


def _quire_command(evidence: Evidence, situations: Sequence[Situation]) -> str:
    hardware = evidence.roofline.hardware
    has_many = Situation.MANY_MODELS in situations
    models = [evidence.command_names.get(name, name) for name in evidence.models] if has_many else []
    names = [name for name in models if name] or [evidence.model]
    flags = [*([f"--device {hardware.device}"] if hardware.memory_kind is MemoryKind.OWN else []), *evidence.flags]
    return " ".join(("quire serve", *map(shlex.quote, names), *flags, *(each.flag for each in evidence.settings)))


def _other_command(evidence: Evidence, engine: str) -> str:
    """Return the command of another engine: as the comparison started it, or from its documentation."""
    if evidence.comparison is not None:
        return evidence.comparison.best.what.replace("{port}", str(DEFAULT_PORT))
    settings = {each.name: each.value for each in evidence.settings}
    context = settings.get("max_context")
    is_fp8, model = evidence.roofline.shape.precision == "fp8", shlex.quote(evidence.model.removeprefix(HUB))
    if engine == "sglang":
        parts = [f"python -m sglang.launch_server --model-path {model}"]
        parts += [f"--context-length {context}"] if context else []
    else:
        parts = [f"vllm serve {model}"]
        parts += [f"--max-model-len {context}"] if context else []
    return " ".join([*parts, *(["--quantization fp8"] if is_fp8 else [])])


def _place(evidence: Evidence) -> str:
    return "this machine" if evidence.roofline.hardware.name == HERE else evidence.roofline.hardware.name


def _line(evidence: Evidence, engine: str) -> str:
    """Return what to run and its main figure."""
    served = evidence.served
    what = f"Run {engine} with {evidence.model} ({evidence.roofline.shape.precision}) on {_place(evidence)}"
    if evidence.comparison is not None:
        best = evidence.comparison.best
        first = format_seconds(best.first_token_p50)
        return f"{what}: measured {best.output_rate:,.0f} tok/s, first token p50 {first}."
    if evidence.is_offline:
        return f"{what}: {served.num_calls:,} requests take {format_seconds(served.seconds)}, simulated."
    return f"{what}: first token p95 {format_seconds(served.first_token.p95)}, simulated."


def _summary(evidence: Evidence, situations: Sequence[Situation]) -> Iterator[str]:
    hardware, served = evidence.roofline.hardware, evidence.served
    yield _situation_line(situations)
    if evidence.is_offline:
        yield (
            f"Simulated on Quire: {served.num_calls:,} requests take {format_seconds(served.seconds)} at "
            f"{served.output_rate:,.0f} output tokens/s."
        )
    else:
        yield (
            f"Simulated on Quire: first token p50 {format_seconds(served.first_token.p50)}, "
            f"p95 {format_seconds(served.first_token.p95)}; {format_seconds(served.token_gap.p50)} per token; "
            f"device utilization {served.utilization:.0%}."
        )
    if not evidence.has_device and evidence.comparison is None:
        yield f"This version of Quire does not support {hardware.device}; it runs on CPUs only."


def _reasons(evidence: Evidence, engine: str, situations: Sequence[Situation]) -> Iterator[str]:
    if evidence.comparison is not None:
        yield from evidence.comparison.sentences()
    served, summary = evidence.served, evidence.summary
    if Situation.ONE_USER in situations:
        rate = evidence.roofline.decode_rate(1, served.mean_context)
        yield (
            f"At most {count_noun(served.concurrency.peak, 'request')} at a time: start-up time and the speed of one "
            f"stream matter. Memory bandwidth limits one stream to {rate:,.0f} tokens/s here."
        )
    if Situation.SHARED in situations or Situation.MIXED in situations:
        yield (
            f"{evidence.shared:.0%} of the prompt tokens were in an earlier prompt. A prefix cache computes them once: "
            f"the simulated hit rate is {served.hit_rate:.0%}, which saves "
            f"{served.hit_rate * summary.num_prompt:,.0f} prompt tokens of this trace."
        )
    if Situation.UNIQUE in situations:
        yield (
            f"Only {evidence.shared:.0%} of the prompt tokens repeat: a prefix cache saves little. Batching and prompt "
            "speed matter."
        )
    if Situation.OFFLINE in situations:
        yield "Latency does not matter in a batch: the settings trade time to first token for throughput."
    if Situation.MANY_MODELS in situations:
        yield (
            f"{len(evidence.models)} models are used: one server loads and unloads them within one memory budget, and "
            "batches each separately."
        )
    if Situation.SEVERAL_MACHINES in situations and evidence.memory.is_enough:
        second = evidence.what_if("second_replica")
        peak, most = summary.arrivals.peak_ten_seconds, evidence.max_request_rate
        with_second = f" With a second one: {second.explanation}" if second else ""
        yield (
            f"The busiest ten seconds had {format_rate(peak)} requests; one device serves "
            f"{format_rate(most)}.{with_second}"
        )
    if len(summary.tenants) > 1:
        yield (
            f"{len(summary.tenants)} tenants: give each an API key (`quire key NAME`). Prefixes are not shared between "
            "keys, and each key gets a fair share of the engine."
        )
    if summary.structured_share > 0:
        yield (
            f"{summary.structured_share:.0%} of the answers have a prescribed format: Quire does not sample tokens "
            "that the grammar determines (jump_forward), measured at 1.4 to 1.5 times the speed of one stream."
        )
    yield from (f"{each.flag}: {each.reason}" for each in evidence.settings if engine == "quire")


def _changes(evidence: Evidence, engine: str) -> Iterator[str]:
    """Yield what would change the recommendation, with the thresholds."""
    served, roofline = evidence.served, evidence.roofline
    if not evidence.is_offline and 0 < evidence.load < FULL_LOAD:
        yield (
            f"{FULL_LOAD / evidence.load:.1f} times the load fills this device, which serves at most "
            f"{format_rate(evidence.max_request_rate)}: then add a replica, and route equal prefixes to the same one."
        )
    if evidence.shared >= HIGH_SHARE:
        yield "Variable text at the start of prompts (a date, a user's name) prevents cache hits: put it last."
    elif not evidence.is_offline:
        yield (
            f"Above {HIGH_SHARE:.0%} shared prompt tokens (now {evidence.shared:.0%}), the prefix cache matters more "
            "than anything else."
        )
    if roofline.hardware.memory_kind is MemoryKind.HOST and served.first_token.p95 > SLOW_FIRST_TOKEN:
        yield (
            f"First tokens within {format_seconds(SLOW_FIRST_TOKEN)} at p95 (now "
            f"{format_seconds(served.first_token.p95)}) need a GPU. Try --on l4 or --on h100."
        )
    yield from (str(each) for each in evidence.what_ifs if each.helps)
    if not evidence.has_device and engine != "quire":
        yield "A Quire version that supports this device: measure both with `quire bench compare` and use --compare."


def _measure_commands(evidence: Evidence, command: str) -> Iterator[str]:
    """Yield the commands that replace the simulation by measurements."""
    if evidence.comparison is not None or not evidence.has_device or not evidence.trace_file:
        return
    engine, file = shlex.quote(f"{command} --port {{port}}"), shlex.quote(evidence.trace_file)
    workload = shlex.quote(f"trace={evidence.trace_file}")
    yield (
        f"quire bench compare --engine quire={engine} --engine other={OTHER_ENGINE} --workload {workload} "
        "--out comparison"
    )
    yield f"quire advise {file} --compare comparison"
