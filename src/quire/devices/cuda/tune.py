"""Times the ways to multiply, and puts the fastest into the table of this GPU.

Each is timed as a step runs it: by the program's own instructions, norm and activation included, over the matrices of
all layers in turn, so that weights come from memory. One candidate at a time: whoever has time to spare goes one step
of the walk. What is found is used at the next start.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quire.devices._triton.rope import TokenPlacement

from .candidates import Candidate, candidates
from .capture import record
from .instructions import AddProduct, Attend, Embed, Gate, Head, Instruction, Run, multiply
from .linear import Linear
from .lower import look_ahead
from .tiles import BUCKETS, FEW_TOKENS, Key
from .tuned import TunedTable

logger = logging.getLogger(__name__)

TIMED_AT = {FEW_TOKENS: (1, FEW_TOKENS)}  # numbers of tokens; of other buckets the most
WORTH = 0.97  # of the library's time: beyond few tokens a streamed product must be so much faster
REPEATS = 9
Multiplying = Attend | AddProduct | Gate | Head


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One multiplication with each of the matrices that are alike."""

    instructions: Sequence[Multiplying]
    x: Tensor  # [M, columns]
    residual: Tensor  # [M, answers]

    def __call__(self) -> Any:
        """What the last of them answers."""
        answer = self.residual.zero_()
        for each in self.instructions:
            answer = _perform(each, self.x, self.residual)
        return answer


def _perform(instruction: Multiplying, x: Tensor, residual: Tensor) -> Any:
    """The part of an instruction that is its product, with what stands around it."""
    none = x.new_empty(0, dtype=torch.int32)
    run = Run(none, TokenPlacement(none, none), none, {}, none, None, values={instruction.value: x})
    if isinstance(instruction, Attend):
        return multiply(run, instruction.value, instruction.norm, instruction.linear)
    if isinstance(instruction, AddProduct):
        run.values[instruction.residual] = residual
    instruction(run)
    return run.pending.get(instruction.out, run.values[instruction.out])


Timer = Callable[[Pass], float]  # the seconds that one pass takes


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is fastest for a product."""

    key: Key
    name: str
    seconds: float  # of one product
    library: float  # the same by the library
    num_timed: int
    num_failed: int  # that do not run here
    wall: float  # seconds that the timing took

    def __str__(self) -> str:
        rows, columns, width, is_gate, tokens = self.key
        gate = ", gate" if is_gate else ""
        times = f"{self.seconds * 1e6:.1f} µs (library {self.library * 1e6:.1f} µs)"
        timed = f"{self.num_timed} timed, {self.num_failed} do not run, {self.wall:.1f} s"
        return f"{rows} x {columns}, {width} bytes{gate}, up to {tokens} tokens: {self.name}: {times}; {timed}"


@dataclass(slots=True, eq=False)
class Tuner:
    """Of one program."""

    instructions: Sequence[Instruction]
    table: TunedTable
    timer: Timer
    _steps: Iterator[Chosen | None] | None = None

    def advance(self) -> bool:
        """Time one candidate of a product that the table does not have. False: there is none left."""
        if self._steps is None:
            known = self.table.read()
            self._steps = self.walk([key for key in self.keys() if key not in known])
        try:
            chosen = next(self._steps)
        except StopIteration:
            return False
        except torch.OutOfMemoryError as error:
            logger.warning("no more products are tuned: %s", error)
            return False
        if chosen is not None:
            logger.info("tuned for the next start: %s", chosen)
        return True

    def keys(self) -> list[Key]:
        """Of all products, those of few tokens first."""
        return [key._replace(tokens=tokens) for tokens in BUCKETS for key in self._alike()]

    def walk(
        self, keys: Sequence[Key], prepare: Callable[[Callable[[], None]], object] | None = None
    ) -> Iterator[Chosen | None]:
        """Through all candidates of these products; None after each but the last of a product.

        What is chosen is in the table at once. `prepare` is given a run of all candidates of a product before they are
        timed, to compile them together.
        """
        for key in keys:
            began, alike = time.monotonic(), self._alike()[key._replace(tokens=FEW_TOKENS)]
            given = self._given(key, alike[0])
            passes = {each: _passes(each, alike, given) for each in candidates(key, alike[0].linear)}  # type: ignore[arg-type]
            if prepare is not None:
                _compile(prepare, [runs[-1] for runs in passes.values()])  # its kernels are those of fewer tokens too
            times: dict[Candidate, float] = {}
            for count, (each, runs) in enumerate(passes.items(), start=1):
                times[each] = self._timed(each, runs) / len(alike)
                if count < len(passes):
                    yield None
            best = choose(times)
            if best is not None:
                self.table.add({key: best.choice})
            name, seconds = ("nothing runs", math.inf) if best is None else (best.name, times[best])
            library = next(times[each] for each in times if each.choice is None)
            num_failed = sum(map(math.isinf, times.values()))
            yield Chosen(key, name, seconds, library, len(times), num_failed, time.monotonic() - began)

    def _alike(self) -> dict[Key, list[Multiplying]]:
        """Instructions by their products, each with the key of few tokens. Those of float32 and of 4 bits have none."""
        found: dict[Key, list[Multiplying]] = {}
        for each in self.instructions:
            if isinstance(each, Multiplying) and isinstance(each.linear, Linear):
                key = Key.of(each.linear.weight, FEW_TOKENS, each.linear.is_gate)
                if key.width <= 2:
                    found.setdefault(key, []).append(each)
        return found

    def _given(self, key: Key, one: Multiplying) -> tuple[Tensor, Tensor]:
        """Tokens, and a residual."""
        dtype = next(each.table.dtype for each in self.instructions if isinstance(each, Embed))
        device = one.linear.raw.device
        x = torch.randn((key.tokens, key.columns), generator=torch.Generator(device).manual_seed(0), device=device)
        return x.to(dtype), torch.zeros((key.tokens, key.answers), dtype=dtype, device=device)

    def _timed(self, candidate: Candidate, runs: Sequence[Pass]) -> float:
        """The mean of its passes; infinite if it does not compile or run here."""
        try:
            return statistics.fmean(map(self.timer, runs))
        except Exception as error:  # whatever a compiler or a driver says of it: it is not chosen
            level = logging.WARNING if candidate.choice is None else logging.DEBUG  # the library runs everywhere
            logger.log(level, "%s does not run for %s: %s", candidate.name, candidate.key, error)
            return math.inf


def _passes(candidate: Candidate, alike: Sequence[Multiplying], given: tuple[Tensor, Tensor]) -> list[Pass]:
    """One for each number of tokens that the bucket is timed at."""
    linears = [candidate.make(each.linear) for each in alike]  # type: ignore[arg-type]
    look_ahead(linears)
    made = [replace(each, linear=linear) for each, linear in zip(alike, linears, strict=True)]
    counts = TIMED_AT.get(candidate.key.tokens, (candidate.key.tokens,))
    return [Pass(made, *(each[:count] for each in given)) for count in counts]


def choose(times: dict[Candidate, float]) -> Candidate | None:
    """The fastest; beyond few tokens the library unless another is clearly faster. None: none runs."""
    best = min(times, key=lambda each: times[each] * (WORTH if _is_default(each) else 1.0))
    return best if math.isfinite(times[best]) else None


def _is_default(candidate: Candidate) -> bool:
    return candidate.choice is None and candidate.key.tokens > FEW_TOKENS


def _compile(prepare: Callable[[Callable[[], None]], object], runs: Sequence[Pass]) -> None:
    def run() -> None:
        for each in runs:
            each()

    try:
        prepare(run)
    except Exception as error:  # one that does not compile; the others do when they are timed
        logger.debug("not all are compiled ahead: %s", error)


def by_clock(run: Pass) -> float:
    """Where there are no graphs: once, as long as it takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@dataclass(slots=True, eq=False)
class Replays:
    """A pass is recorded once and replayed; the median is told. Before each replay the cache is filled otherwise."""

    stream: Any
    _others: Tensor | None = None  # float32, twice as large as the cache
    _graph: Any = None  # the last one: its memory is the next one's, and is lost with the last of its graphs

    def __call__(self, run: Pass) -> float:
        device = self.stream.device
        if self._others is None:
            size = 2 * torch.cuda.get_device_properties(device).L2_cache_size // 4
            self._others = torch.zeros(size, device=device)
        graph, _ = record(run, self.stream, None if self._graph is None else self._graph.pool())
        self._graph = graph
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
        for start, end in marks:
            self._others.sum()  # read, not written: nothing is to be written back meanwhile
            start.record()
            graph.replay()
            end.record()
        self.stream.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in marks) / 1e3
