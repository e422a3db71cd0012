"""Times the tuning candidates of products, and adds the fastest to the table of this GPU.

Each candidate is timed as a step runs it: by the program's instructions, norm and activation included, over the
matrices of all layers in turn, so that weights come from memory. `walk` times one candidate per step, so that idle time
can be used. The results take effect at the next start.
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
from .plain import Multiply
from .tiles import BUCKETS, FEW_TOKENS, ProductKey
from .tuned_table import TunedTable

logger = logging.getLogger(__name__)

TIMED_AT = {FEW_TOKENS: (1, FEW_TOKENS)}  # numbers of tokens; for other buckets their maximum
LIBRARY_MARGIN = 0.97  # beyond few tokens, a streamed product must take less than this fraction of the library's time
REPEATS = 9
Multiplying = Attend | AddProduct | Gate | Head | Multiply


@dataclass(frozen=True, slots=True, eq=False)
class TimedPass:
    """One multiplication with each of the matrices that share a key."""

    instructions: Sequence[Multiplying]
    x: Tensor  # [M, columns]
    residual: Tensor  # [M, outputs]

    def __call__(self) -> Any:
        """Run all of them; return the last product."""
        result = self.residual.zero_()
        for each in self.instructions:
            result = _perform(each, self.x, self.residual)
        return result


def _perform(instruction: Multiplying, x: Tensor, residual: Tensor) -> Any:
    """Run the product of an instruction, with the norm and activation fused to it."""
    none = x.new_empty(0, dtype=torch.int32)
    run = Run(none, TokenPlacement(none, none), none, {}, none, None, values={instruction.value: x})
    if isinstance(instruction, Attend):
        return multiply(run, instruction.value, instruction.norm, instruction.linear)
    if isinstance(instruction, AddProduct):
        run.values[instruction.residual] = residual
    instruction(run)
    return run.pending.get(instruction.out, run.values[instruction.out])


Timer = Callable[[TimedPass], float]  # the seconds that one pass takes


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The fastest candidate of a product."""

    key: ProductKey
    name: str
    seconds: float  # of one product
    library: float  # seconds of the library
    num_timed: int
    num_failed: int  # candidates that do not run here
    wall: float  # seconds of the whole timing

    def __str__(self) -> str:
        rows, columns, width, is_gate, tokens = self.key
        gate = ", gate" if is_gate else ""
        times = f"{self.seconds * 1e6:.1f} µs (library {self.library * 1e6:.1f} µs)"
        timed = f"{self.num_timed} timed, {self.num_failed} do not run, {self.wall:.1f} s"
        return f"{rows} x {columns}, {width} bytes{gate}, up to {tokens} tokens: {self.name}: {times}; {timed}"


@dataclass(slots=True, eq=False)
class Tuner:
    """Tunes the products of one program."""

    instructions: Sequence[Instruction]
    table: TunedTable
    timer: Timer
    _steps: Iterator[TuningResult | None] | None = None

    def advance(self) -> bool:
        """Time one candidate of a product that the table does not have. Return False if none is left."""
        if self._steps is None:
            known = self.table.read()
            self._steps = self.walk([key for key in self.keys() if key not in known])
        try:
            result = next(self._steps)
        except StopIteration:
            return False
        except torch.OutOfMemoryError as error:
            logger.warning("no more products are tuned: %s", error)
            return False
        if result is not None:
            logger.info("tuned for the next start: %s", result)
        return True

    def keys(self) -> list[ProductKey]:
        """Return the keys of all products, those of few tokens first."""
        return [key._replace(tokens=tokens) for tokens in BUCKETS for key in self._by_key()]

    def walk(
        self, keys: Sequence[ProductKey], prepare: Callable[[Callable[[], None]], object] | None = None
    ) -> Iterator[TuningResult | None]:
        """Time all candidates of these products; yield None after each one but the last of a product.

        A result is added to the table at once. `prepare` is called with a run of all candidates of a product before
        they are timed, to compile them together.
        """
        for key in keys:
            began, alike = time.monotonic(), self._by_key()[key._replace(tokens=FEW_TOKENS)]
            inputs = self._inputs(key, alike[0])
            passes = {each: _passes(each, alike, inputs) for each in candidates(key, alike[0].linear)}  # type: ignore[arg-type]
            if prepare is not None:
                _compile(prepare, [runs[-1] for runs in passes.values()])  # fewer tokens use the same kernels
            times: dict[Candidate, float] = {}
            for count, (each, runs) in enumerate(passes.items(), start=1):
                times[each] = self._timed(each, runs) / len(alike)
                if count < len(passes):
                    yield None
            best = fastest(times)
            if best is not None:
                self.table.add({key: best.choice})
            name, seconds = ("nothing runs", math.inf) if best is None else (best.name, times[best])
            library = next(times[each] for each in times if each.choice is None)
            num_failed = sum(map(math.isinf, times.values()))
            yield TuningResult(key, name, seconds, library, len(times), num_failed, time.monotonic() - began)

    def _by_key(self) -> dict[ProductKey, list[Multiplying]]:
        """Return the instructions by their product's key for few tokens, without those of float32 and 4 bits."""
        found: dict[ProductKey, list[Multiplying]] = {}
        for each in self.instructions:
            if isinstance(each, Multiplying) and isinstance(each.linear, Linear):
                key = ProductKey.of(each.linear.weight, FEW_TOKENS, each.linear.is_gate)
                if key.width <= 2:
                    found.setdefault(key, []).append(each)
        return found

    def _inputs(self, key: ProductKey, one: Multiplying) -> tuple[Tensor, Tensor]:
        """Return random tokens, and a residual of zeros."""
        dtype = next(each.table.dtype for each in self.instructions if isinstance(each, Embed))
        device = one.linear.raw.device
        x = torch.randn((key.tokens, key.columns), generator=torch.Generator(device).manual_seed(0), device=device)
        return x.to(dtype), torch.zeros((key.tokens, key.outputs), dtype=dtype, device=device)

    def _timed(self, candidate: Candidate, runs: Sequence[TimedPass]) -> float:
        """Return the mean time of its passes; infinite if it does not compile or run here."""
        try:
            return statistics.fmean(map(self.timer, runs))
        except Exception as error:  # any error of a compiler or driver: the candidate is not used
            level = logging.WARNING if candidate.choice is None else logging.DEBUG  # the library runs everywhere
            logger.log(level, "%s does not run for %s: %s", candidate.name, candidate.key, error)
            return math.inf


def _passes(candidate: Candidate, alike: Sequence[Multiplying], inputs: tuple[Tensor, Tensor]) -> list[TimedPass]:
    """Return one pass for each number of tokens that the bucket is timed at."""
    linears = [candidate.apply(each.linear) for each in alike]  # type: ignore[arg-type]
    look_ahead(linears)
    made = [replace(each, linear=linear) for each, linear in zip(alike, linears, strict=True)]
    counts = TIMED_AT.get(candidate.key.tokens, (candidate.key.tokens,))
    return [TimedPass(made, *(each[:count] for each in inputs)) for count in counts]


def fastest(times: dict[Candidate, float]) -> Candidate | None:
    """Return the fastest; beyond few tokens, the library unless another is clearly faster. None: none runs."""
    best = min(times, key=lambda each: times[each] * (LIBRARY_MARGIN if _is_default(each) else 1.0))
    return best if math.isfinite(times[best]) else None


def _is_default(candidate: Candidate) -> bool:
    return candidate.choice is None and candidate.key.tokens > FEW_TOKENS


def _compile(prepare: Callable[[Callable[[], None]], object], runs: Sequence[TimedPass]) -> None:
    def run() -> None:
        for each in runs:
            each()

    try:
        prepare(run)
    except Exception as error:  # one does not compile; the others are compiled when they are timed
        logger.debug("not all are compiled ahead: %s", error)


def wall_clock(run: TimedPass) -> float:
    """Time one run by the wall clock, for devices without CUDA graphs."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@dataclass(slots=True, eq=False)
class GraphTimer:
    """Records a pass as a graph and returns the median time of its replays. The cache is flushed before each replay."""

    stream: Any
    _others: Tensor | None = None  # float32, twice as large as the cache; reading it flushes the cache
    _graph: Any = None  # the last one: the next one reuses its memory pool, which lives as long as one of its graphs

    def __call__(self, run: TimedPass) -> float:
        device = self.stream.device
        if self._others is None:
            size = 2 * torch.cuda.get_device_properties(device).L2_cache_size // 4
            self._others = torch.zeros(size, device=device)
        graph, _ = record(run, self.stream, None if self._graph is None else self._graph.pool())
        self._graph = graph
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
        for start, end in marks:
            self._others.sum()  # a read, so that no writes to memory are pending
            start.record()
            graph.replay()
            end.record()
        self.stream.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in marks) / 1e3
