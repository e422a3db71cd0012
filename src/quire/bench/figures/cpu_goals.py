"""Goals of a CPU, by its instruction set."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from quire.bench.engines.peer import LLAMA_CPP, OPENVINO
from quire.bench.figures.figure import BEST, Goal, at_least, at_least_times, at_most, at_most_times

BANDWIDTH_SHARE = at_least(75)  # of decoding, per cent
COLD_PREFIX = at_most(1.5)  # prompts
DECODE = {  # by format
    "q4_1": at_least_times(2, LLAMA_CPP),
    "q4_0": at_least_times(1.5, LLAMA_CPP),
    "q8_0": at_least_times(1.3, LLAMA_CPP),
    "q4_k": at_least_times(1.5, LLAMA_CPP),
}
PROMPT = {"q4_1": at_least_times(4, LLAMA_CPP), "q4_0": at_least_times(2, LLAMA_CPP)}
FIRST_TOKEN = at_most_times(1 / 3, LLAMA_CPP)
LARGE_PROMPT, LARGE_DECODE, LARGE_UNIQUE = (at_least_times(bound, LLAMA_CPP) for bound in (2, 1.3, 3))


@dataclass(frozen=True, slots=True)
class CpuGoals:
    """Goals that depend on the width of the vector units."""

    prompt_share: Goal  # of the int8 peak, per cent
    unique: Goal  # output of many streams
    shared: Goal


NARROW = CpuGoals(at_least(45), at_least_times(2, OPENVINO), at_least_times(3, BEST))
AVX512 = CpuGoals(at_least(60), at_least_times(1.8, OPENVINO), at_least_times(4, BEST))


def goals_for(features: Collection[str]) -> CpuGoals:
    """Return the goals of a processor with these features (see devices.base.KernelReport)."""
    return AVX512 if "avx512f" in features else NARROW
