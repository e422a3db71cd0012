"""The answer: which engine to run, with which settings, why, and what would change it.

Situations are those in which different engines are the usual choice. More than one can apply; the first decides.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from quire.advisor.alternatives import alternatives
from quire.advisor.compared import Comparison
from quire.advisor.describe import Description
from quire.advisor.figures import rate, seconds, several
from quire.advisor.hardware import HERE
from quire.advisor.memory import Memory
from quire.advisor.published import HUB
from quire.advisor.roofline import FREE_SHARE, Roofline
from quire.advisor.settings import Chosen
from quire.advisor.simulate import Simulated
from quire.advisor.whatif import WhatIf, figures
from quire.advisor.winners import Winner, measured_winners, simulated_winners
from quire.config import ServeConfig
from quire.devices.facts import MemoryKind

FEW_USERS = 2  # at once
MUCH_SHARED, LITTLE_SHARED = 0.5, 0.15
MODEL_SHARE = 0.05  # of the requests, from which on a model counts
DEFAULT_PORT = ServeConfig().port
SOON = 2.0  # seconds to the first token
OTHER = "http://localhost:8080"  # where the engine to compare with is taken to listen
FULL = 0.85  # of what a device can serve: queues grow from here on


class Situation(StrEnum):
    """What the workload is like, as far as it decides what to run."""

    TOO_LARGE = "model too large"
    OFFLINE = "offline batch"
    SEVERAL_MACHINES = "several machines"
    MANY_MODELS = "many models"
    ONE_USER = "one user"
    SHARED = "many with shared context"
    UNIQUE = "many with unique prompts"
    MIXED = "many, some of their context shared"


MEANS = {
    Situation.TOO_LARGE: "The model does not fit",
    Situation.OFFLINE: "A batch that nobody waits for",
    Situation.SEVERAL_MACHINES: "More requests than one machine can serve",
    Situation.MANY_MODELS: "Many models",
    Situation.ONE_USER: "One user",
    Situation.SHARED: "Many users whose prompts share their beginnings",
    Situation.UNIQUE: "Many users whose prompts have little in common",
    Situation.MIXED: "Many users who share some of their context",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the answer is made from."""

    model: str  # as commands name it
    description: Description
    shared: float  # of the prompt tokens, that an earlier prompt had
    memory: Memory
    roofline: Roofline
    served: Simulated
    capacity: float  # requests a second at most
    whatifs: Sequence[WhatIf]
    settings: Sequence[Chosen]
    has_device: bool  # can this Quire compute on such a device?
    comparison: Comparison | None = None
    spelled: Mapping[str, str] = field(default_factory=dict)  # names of the trace's models, as commands name them
    flags: tuple[str, ...] = ()  # that the precision asks for
    trace_file: str = ""  # empty: the requests are not from a file

    @property
    def is_offline(self) -> bool:
        """Nobody waits for single answers."""
        return not self.description.has_times

    @property
    def load(self) -> float:
        """Of the most that can be served, what came in the fullest ten seconds."""
        return self.description.arrivals.peak_ten_seconds / self.capacity if self.capacity else float("inf")

    @property
    def models(self) -> list[str]:
        """Those that are really used."""
        counts = self.description.models
        return [name for name, count in counts.items() if count >= MODEL_SHARE * self.description.num_calls]

    def answers(self, name: str) -> WhatIf | None:
        """What one question came to."""
        return next((each for each in self.whatifs if each.name == name), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What to run."""

    line: str  # the answer in one line
    situations: tuple[str, ...]
    engine: str
    command: str  # can be pasted; empty: nothing can be run
    winners: tuple[Winner, ...]
    words: tuple[str, ...]
    reasons: tuple[str, ...]
    changes: tuple[str, ...]  # what would change it
    measure: tuple[str, ...] = ()  # commands that compare engines with these requests


def answer(facts: Facts) -> Answer:
    """Which engine and settings, and why."""
    situations = list(_situations(facts))
    engine = _engine(facts)
    if not facts.memory.is_enough and facts.comparison is None:
        return _too_large(facts, situations)
    command = _quire(facts, situations) if engine == "quire" else _other(facts, engine)
    if facts.comparison is not None:
        winners = measured_winners(facts.comparison)
    else:
        winners = simulated_winners(figures(facts.served), facts.whatifs)
    return Answer(
        _line(facts, engine),
        tuple(situations),
        engine,
        command,
        tuple(winners),
        tuple(_words(facts, engine, situations)),
        tuple(_reasons(facts, engine, situations)),
        tuple(_changes(facts, engine)),
        tuple(_measure(facts, command)),
    )


def _too_large(facts: Facts, situations: Sequence[Situation]) -> Answer:
    """No command: what would be started could not load the model."""
    shape, hardware, memory = facts.roofline.shape, facts.roofline.hardware, facts.memory
    line = (
        f"Do not run {facts.model} ({shape.precision}) on {_place(facts)}: with one request it needs "
        f"{(memory.model_bytes + memory.slots.paged_bytes) / 1e9:.1f} GB, and of {hardware.memory_bytes / 1e9:.0f} GB "
        f"{FREE_SHARE:.0%} may be used."
    )
    fitting = alternatives(facts.roofline, memory)
    others = [f"It fits with {each}." for each in fitting] or ["No weights and no device that are known here fit it."]
    words = f"{'; '.join(MEANS[each] for each in situations)}."
    return Answer(line, tuple(situations), "", "", (), (words, *others), (), ())


def _situations(facts: Facts) -> Iterator[Situation]:
    if not facts.memory.is_enough:
        yield Situation.TOO_LARGE
    if facts.is_offline:
        yield Situation.OFFLINE
    if facts.memory.is_enough and facts.load > FULL and not facts.is_offline:
        yield Situation.SEVERAL_MACHINES
    if len(facts.models) > 1:
        yield Situation.MANY_MODELS
    if not facts.is_offline and facts.served.company.peak <= FEW_USERS:
        yield Situation.ONE_USER
    elif facts.shared >= MUCH_SHARED:
        yield Situation.SHARED
    elif facts.shared <= LITTLE_SHARED:
        yield Situation.UNIQUE
    else:
        yield Situation.MIXED


def _engine(facts: Facts) -> str:
    """Figures decide where there are any; else whether this Quire runs on the device at all."""
    if facts.comparison is not None:
        best = facts.comparison.best
        return "quire" if best.is_ours else best.engine
    if facts.has_device:
        return "quire"
    return "sglang" if facts.shared >= MUCH_SHARED else "vllm"


def _quire(facts: Facts, situations: Sequence[Situation]) -> str:
    hardware = facts.roofline.hardware
    many = [facts.spelled.get(name, name) for name in facts.models] if Situation.MANY_MODELS in situations else []
    names = [name for name in many if name] or [facts.model]
    flags = [*([f"--device {hardware.device}"] if hardware.memory_kind is MemoryKind.OWN else []), *facts.flags]
    return " ".join(("quire serve", *map(shlex.quote, names), *flags, *(each.flag for each in facts.settings)))


def _other(facts: Facts, engine: str) -> str:
    """As the comparison started it, or as its documentation has it."""
    if facts.comparison is not None:
        return facts.comparison.best.what.replace("{port}", str(DEFAULT_PORT))
    said = {each.name: each.value for each in facts.settings}
    context = said.get("max_context")
    is_fp8, model = facts.roofline.shape.precision == "fp8", shlex.quote(facts.model.removeprefix(HUB))
    if engine == "sglang":
        parts = [f"python -m sglang.launch_server --model-path {model}"]
        parts += [f"--context-length {context}"] if context else []
    else:
        parts = [f"vllm serve {model}"]
        parts += [f"--max-model-len {context}"] if context else []
    return " ".join([*parts, *(["--quantization fp8"] if is_fp8 else [])])


def _place(facts: Facts) -> str:
    return "this machine" if facts.roofline.hardware.name == HERE else facts.roofline.hardware.name


def _line(facts: Facts, engine: str) -> str:
    """What to run, and what comes of it."""
    what = f"Run {engine} with {facts.model} ({facts.roofline.shape.precision}) on {_place(facts)}"
    if facts.comparison is not None:
        best = facts.comparison.best
        return f"{what}: measured {best.output_rate:,.0f} tok/s, first token p50 {seconds(best.first_token_p50)}."
    if facts.is_offline:
        return (
            f"{what}: all {facts.served.num_calls:,} requests are done in {seconds(facts.served.seconds)}, simulated."
        )
    return f"{what}: first token p95 {seconds(facts.served.first_token.p95)}, simulated."


def _words(facts: Facts, engine: str, situations: Sequence[Situation]) -> Iterator[str]:
    hardware, served = facts.roofline.hardware, facts.served
    yield f"{'; '.join(MEANS[each] for each in situations)}."
    if facts.is_offline:
        yield (
            f"Simulated for Quire: all {served.num_calls:,} requests are done in {seconds(served.seconds)}, "
            f"at {served.output_rate:,.0f} output tokens/s."
        )
    else:
        yield (
            f"Simulated for Quire: first token p50 {seconds(served.first_token.p50)}, "
            f"p95 {seconds(served.first_token.p95)}; a token every {seconds(served.token_gap.p50)}; "
            f"the device works {served.utilization:.0%} of the time."
        )
    if not facts.has_device and facts.comparison is None:
        yield f"This version of Quire does not compute on {hardware.device}; on a CPU it would be the answer."


def _reasons(facts: Facts, engine: str, situations: Sequence[Situation]) -> Iterator[str]:
    if facts.comparison is not None:
        yield from facts.comparison.sentences()
    served, description = facts.served, facts.description
    if Situation.ONE_USER in situations:
        yield (
            f"At most {several(served.company.peak, 'request')} ran at once: the start and one stream count, and "
            f"reading memory bounds that at {facts.roofline.decode_rate(1, served.mean_context):,.0f} tokens/s here."
        )
    if Situation.SHARED in situations or Situation.MIXED in situations:
        yield (
            f"{facts.shared:.0%} of the prompt tokens were in an earlier prompt. A prefix tree computes them once: the "
            f"simulated hit rate is {served.hit_rate:.0%}, which saves {served.hit_rate * description.num_prompt:,.0f} "
            "prompt tokens of this trace."
        )
    if Situation.UNIQUE in situations:
        yield (
            f"Only {facts.shared:.0%} of the prompt tokens repeat: a prefix cache saves little here; batches and fast "
            "prompts decide."
        )
    if Situation.OFFLINE in situations:
        yield "Nobody waits for single answers: the settings trade the time to the first token for throughput."
    if Situation.MANY_MODELS in situations:
        yield (
            f"{len(facts.models)} models are used: one server loads and unloads them under one memory budget, and each "
            "has batches of its own."
        )
    if Situation.SEVERAL_MACHINES in situations and facts.memory.is_enough:
        second = facts.answers("second_replica")
        came, most = description.arrivals.peak_ten_seconds, facts.capacity
        then = f" With a second one: {second.says}" if second else ""
        yield f"{rate(came)} came in the fullest ten seconds, and one device serves {rate(most)}.{then}"
    if len(description.tenants) > 1:
        yield (
            f"{len(description.tenants)} tenants: give each an API key (`quire key NAME`); prefixes are not shared "
            "between them, and each gets a fair share of the engine."
        )
    if description.structured_share > 0:
        yield (
            f"{description.structured_share:.0%} of the answers have a prescribed form: Quire does not sample tokens "
            "that it leaves no choice about (jump_forward); we measured 1.4 to 1.5 times the speed of one stream."
        )
    yield from (f"{each.flag}: {each.reason}" for each in facts.settings if engine == "quire")


def _changes(facts: Facts, engine: str) -> Iterator[str]:
    """Thresholds, in the trace's own units."""
    served, roofline = facts.served, facts.roofline
    if not facts.is_offline and 0 < facts.load < FULL:
        yield (
            f"{FULL / facts.load:.1f} times as many requests would fill this device, which serves "
            f"{rate(facts.capacity)} at most: then a second replica, with equal beginnings going to the same one."
        )
    if facts.shared >= MUCH_SHARED:
        yield "Prompts that begin with what changes (a date, a user's name) would undo the sharing: put that last."
    elif not facts.is_offline:
        yield (
            f"If more than {MUCH_SHARED:.0%} of the prompt tokens were shared (now {facts.shared:.0%}), the cache "
            "would decide more than anything else."
        )
    if roofline.hardware.memory_kind is MemoryKind.HOST and served.first_token.p95 > SOON:
        yield (
            f"First tokens within {seconds(SOON)} at p95 (now {seconds(served.first_token.p95)}) need faster "
            "arithmetic: a GPU. Try --on l4 or --on h100."
        )
    for each in facts.whatifs:
        if each.helps:
            yield f"{each.change[0].upper()}{each.change[1:]}: {each.says}"
    if not facts.has_device and engine != "quire":
        yield "A Quire that computes on this device: measure both (`quire bench compare`) and use --compare."


def _measure(facts: Facts, command: str) -> Iterator[str]:
    """The commands that get measured figures, which go before simulated ones."""
    if facts.comparison is not None or not facts.has_device or not facts.trace_file:
        return
    engine, file = shlex.quote(f"{command} --port {{port}}"), shlex.quote(facts.trace_file)
    workload = shlex.quote(f"trace={facts.trace_file}")
    yield (f"quire bench compare --engine quire={engine} --engine other={OTHER} --workload {workload} --out comparison")
    yield f"quire advise {file} --compare comparison"
