"""The device "cpu": lowers a graph to native kernels, or to the references if they were not built."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from types import ModuleType

from quire.devices.base import DEFAULT_OPTIONS, KernelReport, Limits, LoweringOptions, Peaks, Program
from quire.devices.facts import DeviceFacts
from quire.graph.graph import Graph
from quire.graph.weight import Weights

from . import FACTS
from .bindings import REMEDY, find_native, native
from .lower import lower_graph
from .memory import host_memory
from .pack import Packer, precision_of
from .program import ReferenceProgram
from .threads import allowed_threads, pool_for
from .variant_choice import (
    KEY,
    TOKEN_WEIGHTS,
    WHOLE_TEXT_WEIGHTS,
    VariantChoice,
    choose_variants,
    from_bytes,
    to_bytes,
)


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """This machine's processors."""

    name: str = FACTS.name

    def facts(self) -> DeviceFacts:
        """Its number formats, and the memory that this process may use."""
        return replace(FACTS, memory=host_memory(), kv_formats=_kv_formats())

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> Program:
        """Lower to a program that runs a whole step in one native call. Packed weights of `kept` are used in place."""
        formats = {name: weight.format for name, weight in weights.items()}
        FACTS.check(limits.kv_dtype, formats, options.quantize)
        module = native()
        if module is None:
            return ReferenceProgram(graph, weights, limits)
        variant, kept = options.variant or module.variants()[0], options.kept
        pool = pool_for(module, options.num_threads)
        program = module.Program(variant, pool, _sizes(limits))
        recipe = f"cpu layout {module.layout} precision {precision_of(options)}"
        found = (kept.find(recipe) if kept is not None else None) or {}
        packer = Packer(program, weights, precision_of(options), found)
        lowered = lower_graph(program, graph, packer, limits, options.fuse)
        sizes = TOKEN_WEIGHTS if "logits" in graph.outputs else WHOLE_TEXT_WEIGHTS
        fastest = {} if options.variant else from_bytes(module, pool, found.get(KEY), sizes)
        is_cached = fastest is not None and not packer.num_packed
        if fastest is None:
            fastest = choose_variants(module, pool, variant, packer.matrices(), sizes)
        default = VariantChoice(variant, {})
        form = f"{limits.kv_dtype}, {limits.block_tokens} tokens, {[each.window for each in limits.windows]}"
        lowered.layout = f"cpu {variant} layout {module.layout} {precision_of(options)} fuse {options.fuse}: {form}"
        lowered.multiply_with({matrix.format: default for matrix in packer.matrices()} | dict(fastest))
        if kept is not None and not is_cached:
            kept.keep(recipe, {**packer.panels(), KEY: to_bytes(module, pool, fastest, sizes)})
        return lowered

    def describe(self) -> KernelReport:
        """Describe the kernels that `lower` would choose (apart from products) and the threads."""
        module, problem = find_native()
        processors = os.cpu_count() or 1
        if module is None:
            is_broken = not isinstance(problem, ModuleNotFoundError)
            why = f"the native module does not load: {problem}" if is_broken else "quire was installed without them"
            return KernelReport(None, why, (), 1, processors, is_broken, REMEDY)
        variant = module.variants()[0]
        features = tuple(module.features())
        return KernelReport(variant, _why(module, variant), features, allowed_threads(), processors)

    def peaks(self, seconds: float = 1.0) -> Peaks | None:
        """Measure with the threads and the kernels that `lower` would choose. None without native code."""
        module = native()
        if module is None:
            return None
        variant, pool = module.variants()[0], pool_for(module, None)
        return Peaks(
            read_bytes=module.read_bytes_per_second(variant, pool, seconds),
            multiply_adds=module.multiply_adds_per_second(variant, pool, seconds),
            num_threads=pool.num_threads,
            kernels=variant,
        )


def _why(module: ModuleType, variant: str) -> str:
    """Say which kernels are wider than the variant, and what this CPU lacks for them."""
    features = set(module.features())
    compiled = list(module.needs())
    wider = compiled[[name for name, _ in compiled].index(variant) + 1 :]
    missing = [f"{name} needs {', '.join(f for f in needs if f not in features)}" for name, needs in wider]
    return f"the fastest that this CPU can run; {'; '.join(missing)}" if missing else "the fastest that there are"


def _kv_formats() -> tuple[str, ...]:
    """Return the formats of KV caches, bf16 first where attention multiplies pairs of it: twice as fast as float32."""
    module = native()
    if module is None or module.rounding(module.variants()[0], "bf16") != "pairs of bf16":
        return FACTS.kv_formats
    return ("bf16", *(name for name in FACTS.kv_formats if name != "bf16"))


def _sizes(limits: Limits) -> list[int]:
    rows = (limits.max_tokens, limits.max_rows, limits.max_logits)
    return [*rows, limits.max_blocks, limits.num_blocks, limits.block_tokens]


DEVICE = CpuDevice()
