"""All of it in order: describe the trace, size the cache, serve it in simulation, ask what would help, and answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.advisor.answer import LITTLE_SHARED, Answer, Facts, answer
from quire.advisor.compared import Comparison
from quire.advisor.describe import Company, describe, measured_company
from quire.advisor.hits import Hits, enough_blocks, hit_curve, simulate_hits
from quire.advisor.memory import Memory, memory_of
from quire.advisor.prefixes import PrefixTree, prefix_tree
from quire.advisor.roofline import Roofline
from quire.advisor.settings import Room, blocks_wanted, choose, longest_context
from quire.advisor.simulate import REPLAYED, SERVED, Simulated, busiest
from quire.advisor.whatif import Setup, num_per_second, what_if
from quire.advisor.workload import Workload
from quire.config import Config
from quire.devices.facts import MemoryKind, available
from quire.types.errors import InvalidRequest

GPU_STEP_TOKENS = 8192
MOST_WAITING = 1 << 20
Compare = Callable[[bool, float, bool], Comparison]  # is it shared, how many at once, does nobody wait


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be run, and where."""

    model: str  # as commands name it
    roofline: Roofline
    config: Config
    compare: Compare | None = None
    served_blocks: int | None = None  # of the server that the trace is from
    notes: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)  # the trace's names of models, as commands name them
    flags: tuple[str, ...] = ()  # of `quire serve`, for the precision
    trace_file: str = ""  # empty: the trace is not from a file


@dataclass(frozen=True, slots=True)
class Advice:
    """Everything that was found."""

    planned: Planned
    workload: Workload
    tree: PrefixTree
    curve: tuple[Hits, ...]
    now: Hits | None  # with as many blocks as the server of the trace has
    company: Company
    facts: Facts
    answer: Answer
    notes: tuple[str, ...]


def advise(workload: Workload, planned: Planned, say: Callable[[str], Any] = lambda text: None) -> Advice:
    """What to run for a workload. `say` is told what is being done."""
    if not workload.calls:
        raise InvalidRequest("Every request of the trace was refused: nothing can be said of it.", field="trace")
    say("describing the trace")
    description, tree = describe(workload), prefix_tree(workload)
    roofline, block_tokens = planned.roofline, planned.config.cache.block_tokens
    memory = memory_of(workload, description.context, roofline, block_tokens, tree.share)
    say("replaying it through caches of several sizes")
    sizes = [count for count in (planned.served_blocks, memory.num_blocks) if count]
    replayed = busiest(workload, REPLAYED)
    curve = hit_curve(replayed, block_tokens, sizes)
    now = simulate_hits(workload, planned.served_blocks, block_tokens) if planned.served_blocks else None
    say("serving it in simulation")
    part, context = busiest(workload, SERVED), longest_context(description, roofline.shape.max_context)
    setup = _setup(planned, memory, context, part)
    served = setup.serve(part)
    if roofline.hardware.memory_kind is MemoryKind.HOST and planned.config.cache.num_blocks is None:
        wanted = max(blocks_wanted(description, curve, memory, served), -(-context // block_tokens))
        setup = replace(setup, num_blocks=wanted)
        served = setup.serve(part)
    capacity = num_per_second(setup, part)
    say("asking what would help")
    whatifs = what_if(part, setup, served, tree if part is workload else prefix_tree(part)) if memory.is_enough else []
    settings = choose(
        description, curve, memory, served, Room(context, setup.num_blocks, roofline.hardware.memory_kind)
    )
    company = measured_company(workload) or served.company
    comparison = None
    if planned.compare is not None:
        comparison = planned.compare(tree.share > LITTLE_SHARED, company.mean, not description.has_times)
    facts = Facts(
        model=planned.model,
        description=description,
        shared=tree.share,
        memory=memory,
        roofline=roofline,
        served=served,
        capacity=capacity,
        whatifs=whatifs,
        settings=settings,
        has_device=_has_device(roofline.hardware.device),
        comparison=comparison,
        spelled=planned.spelled,
        flags=planned.flags,
        trace_file=planned.trace_file,
    )
    notes = (*planned.notes, *_notes(workload, part, replayed, memory, served))
    return Advice(planned, workload, tree, tuple(curve), now, company, facts, answer(facts), notes)


def _has_device(name: str) -> bool:
    """Has this Quire such a device?"""
    return name in available()


def _setup(planned: Planned, memory: Memory, context: int, part: Workload) -> Setup:
    """As large as fits, with the given settings. Only what is more than nothing can be simulated."""
    config, roofline = planned.config, planned.roofline
    scheduler = replace(config.scheduler, max_context=context + 1, max_waiting=MOST_WAITING)
    if roofline.hardware.memory_kind is MemoryKind.OWN:
        rows = max(1, min(1024, memory.slots.paged))
        scheduler = replace(scheduler, max_step_tokens=max(GPU_STEP_TOKENS, rows), max_rows=rows)
    least = -(-context // memory.block_tokens) + 1
    most = max(least, memory.num_blocks)
    num_blocks = config.cache.num_blocks or min(most, max(enough_blocks(part, memory.block_tokens), least))
    return Setup(roofline, scheduler, num_blocks, memory.block_tokens)


def _notes(workload: Workload, part: Workload, replayed: Workload, memory: Memory, served: Simulated) -> list[str]:
    """What a reader has to know to judge the figures."""
    said, count = [], len(workload.calls)
    if not workload.knows_prompts:
        said.append("The trace has lengths but no prompts: what they share is not known, and none of it is assumed.")
    if (estimated := workload.exactness["estimated"]) > 0:
        said.append(f"{estimated:,} prompts were counted by pieces of text: give --model to count its own tokens.")
    if assumed := count - workload.num_counted:
        said.append(f"The length of {assumed:,} answers is not in the trace: max_tokens is assumed, and at most 512.")
    if part is not workload:
        said.append(f"Served in simulation: {len(part.calls):,} of {count:,} requests, where they came closest.")
    if replayed is not workload:
        said.append(f"Hit rates by size: of {len(replayed.calls):,} of {count:,} requests, where they came closest.")
    if not memory.is_enough:
        said.append("The model does not fit: times are those of a device with just enough memory.")
    if served.num_refused:
        said.append(f"{served.num_refused} requests are too long for the context, and were left out of the simulation.")
    return said
