"""Quire's settings for a workload, each with its reason. Only what differs from the defaults is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.advisor.describe import Description
from quire.advisor.figures import seconds, several, size
from quire.advisor.hits import Hits
from quire.advisor.memory import Memory
from quire.advisor.simulate import Simulated
from quire.config import SchedulerConfig
from quire.devices.facts import MemoryKind

CONTEXT_STEP, ROWS_STEP = 1024, 16
MOST_ROWS = {MemoryKind.HOST: 64, MemoryKind.OWN: 1024}  # a CPU computes no faster with more
SPARE, SPARE_ROWS = 1.25, 2  # room beyond what the trace needed
HOST_SHARE = 0.5  # of the memory beside the model: a host has other things to do
NEAR_BEST = 0.01  # points of hit rate that a smaller cache may cost
FRONT_RATE = 12_000  # tokens a second that one process writes to clients with ease
PATIENT_GAP = 5.0  # seconds between two tokens where nobody watches
LONG_WAIT = 30.0  # seconds to the first token that nobody waits for
OFFLINE_STEP = {MemoryKind.OWN: 8192, MemoryKind.HOST: 4096}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One setting."""

    name: str  # as config.py has it
    value: int | float | str
    reason: str

    @property
    def flag(self) -> str:
        """How it is spelled on the command line."""
        return f"--{self.name.replace('_', '-')} {self.value}"


def knee(curve: Sequence[Hits]) -> Hits:
    """The smallest cache that finds as much as the largest, nearly."""
    best = max(each.rate for each in curve)
    return next(each for each in curve if each.rate >= best - NEAR_BEST)


def longest_context(description: Description, most: int) -> int:
    """Room for the longest request of the trace and some more."""
    wanted = -(-int(description.context.high * SPARE) // CONTEXT_STEP) * CONTEXT_STEP
    return min(max(wanted, CONTEXT_STEP), most)


def blocks_wanted(description: Description, curve: Sequence[Hits], memory: Memory, served: Simulated) -> int:
    """What the hit rate needs, and no less than long requests in every row; at most what fits."""
    long = -(-int(description.context.p95) // memory.block_tokens)
    wanted = max(knee(curve).num_blocks, rows_wanted(description, served, memory, MemoryKind.HOST) * long)
    return max(1, min(int(wanted * SPARE), int(memory.num_blocks * HOST_SHARE)))


@dataclass(frozen=True, slots=True)
class Room:
    """What was simulated, and is to be had."""

    context: int
    num_blocks: int
    kind: MemoryKind  # of the device


def choose(
    description: Description, curve: Sequence[Hits], memory: Memory, served: Simulated, room: Room
) -> list[Chosen]:
    """All settings that should not be left as they are."""
    defaults, block_tokens = SchedulerConfig(), memory.block_tokens
    longest = f"the longest request had {description.context.high:,.0f} tokens."
    found = [Chosen("max_context", room.context, longest)]
    if room.kind is MemoryKind.HOST and room.num_blocks < memory.num_blocks:
        at, tokens = knee(curve), room.num_blocks * block_tokens
        found.append(
            Chosen(
                "num_blocks",
                room.num_blocks,
                f"{tokens:,} tokens of KV in {size(tokens * memory.token_bytes)}, for long requests in all rows; "
                f"of the prompt tokens {at.num_blocks:,} blocks find {at.rate:.0%}, and more blocks no more.",
            )
        )
    rows = rows_wanted(description, served, memory, room.kind)
    if rows != defaults.max_rows:
        peak = several(served.company.peak, "request")
        found.append(Chosen("max_rows", rows, f"at most {peak} were there at once."))
    if not description.has_times:
        step = max(OFFLINE_STEP[room.kind], rows)
        found.append(Chosen("max_step_tokens", step, "large steps: nobody waits for a token."))
        found.append(Chosen("stream_gap", PATIENT_GAP, "prompts need not make way for streams that nobody reads."))
        if description.num_calls > defaults.max_waiting:
            found.append(Chosen("max_waiting", description.num_calls, "all of them may be sent at once."))
    elif served.first_token.p95 > LONG_WAIT:
        wait = seconds(served.first_token.p95)
        found.append(Chosen("pressure", "reject", f"first tokens would take {wait} (p95): better said at once."))
    if served.output_rate > FRONT_RATE:
        found.append(Chosen("fronts", 1 + int(served.output_rate // FRONT_RATE), "one process writes 15,000 tokens/s."))
    return found


def rows_wanted(description: Description, served: Simulated, memory: Memory, kind: MemoryKind) -> int:
    """Twice as many as ran at once: what comes in a burst shall run, and not wait."""
    most = max(ROWS_STEP, memory.shared_slots.paged)
    wanted = served.company.peak * SPARE_ROWS if description.has_times else SchedulerConfig().max_rows
    return int(max(ROWS_STEP, min(-(-int(wanted) // ROWS_STEP) * ROWS_STEP, most, MOST_ROWS[kind])))
