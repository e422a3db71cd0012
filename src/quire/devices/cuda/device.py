"""The device "cuda": lowers a graph for one GPU, and gives the remaining memory to the KV cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from quire.devices._triton import attention, latent
from quire.devices._triton.attention_work import WorkLimits
from quire.devices._triton.chain import compile_ahead
from quire.devices._triton.state_work import StateLimits
from quire.devices.base import DEFAULT_OPTIONS, KernelReport, Limits, LoweringOptions, Peaks
from quire.devices.facts import DeviceFacts, DeviceMemory, DeviceUnavailable, MemoryKind
from quire.graph.graph import Graph
from quire.graph.weight import Weights
from quire.types.errors import StepFailed

from . import ACTIVATIONS, FACTS
from .attention import AttendCache
from .caches import Caches
from .encoder import CudaEncoder
from .expert_placement import HostChoice
from .experts import Route
from .extra_rows import RowBuffers
from .few_rows import FewRows
from .host_experts import EXPERT_OPS, HostExperts, host_share, measure_bandwidths, other_bytes, report
from .inputs import StepSplit
from .instructions import Attend, Instruction
from .latent import EXPANDED_TOKENS, AttendLatent
from .lower import Lowering
from .plan import most_held_bytes, state_bytes, state_slots, values_of_blocks
from .program import CudaProgram
from .sampler import DeviceSampler
from .sources import source_blocks
from .tiles import ProductKey, TileChoice, Tiles, shipped
from .tuned_table import TunedTable, TuningTarget
from .values import prepare_graph
from .variants import OutputValues, Variant
from .warm_up import largest_steps, warm_up_steps, whole_text_steps, with_pools
from .weights import Placer
from .wide_attention import WideAttention

logger = logging.getLogger("quire.devices.cuda")

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8_e4m3": torch.float8_e4m3fn}
FIXED_CHUNK = 512  # keys, in deterministic mode
HEADROOM = 1 << 30  # bytes left for the driver, graphs and fragmentation
CTAS_PER_SM = 3
WORK_BYTES = 1 << 30  # of attention, sampling, and products of the library


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU. `place` is torch's name for it; with a CPU, all of this can be tested through Triton's interpreter."""

    place: str = "cuda"
    name: str = FACTS.name

    def facts(self) -> DeviceFacts:
        """Its number formats, and its memory where torch finds a GPU."""
        if self.place != "cuda" or not torch.cuda.is_available():
            return FACTS
        free, total = torch.cuda.mem_get_info()
        return replace(FACTS, memory=DeviceMemory(MemoryKind.OWN, total, free))

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> CudaProgram | CudaEncoder:
        """Place the weights, measure a step of the largest size, and fill the remaining memory with KV blocks.

        limits.num_blocks of 0 means as many blocks as fit.
        """
        formats = {name: weight.format for name, weight in weights.items()}
        FACTS.check(limits.kv_dtype, formats, options.quantize)
        device = self._device()
        is_fixed = options.deterministic
        dtype = DTYPES[options.dtype or ACTIVATIONS]
        table = _table(device, options.tuned)
        tiles = Tiles(_num_processors(device), is_fixed, _known(device, table))
        placer = Placer(weights, device, dtype, tiles, options.quantize)
        probe = 1 + max(limits.max_blocks, 1) if limits.num_blocks == 0 else limits.num_blocks
        step = most_held_bytes(graph, weights, limits, options)
        room = self._room(graph, limits, options, step)
        placer.host_share = host_share(graph, placer, HostChoice(options.experts_on_host), room)
        bandwidths = measure_bandwidths(device) if placer.host_share else None
        graph = prepare_graph(graph, options.fuse)
        rows = RowBuffers.of(graph, limits.max_tokens, dtype, device)
        caches = _caches(graph, limits, probe, device)
        lowering = Lowering(graph, placer, caches, _positions(limits), _chunk(is_fixed), rows)
        captures = options.captures and device.type == "cuda"
        if not graph.caches and not (options.samples and "logits" in graph.outputs):
            encoder = CudaEncoder(lowering.walk(), graph.output, device, rows, limits, captures)
            if device.type == "cuda":
                _compile_encoder(encoder, limits)
            return encoder
        sampler = DeviceSampler(limits.max_rows, limits.max_logits, graph.output.dim, device)
        instructions = lowering.walk()
        work = _work(instructions, lowering.caches, limits, is_fixed)
        if placer.dequantized:
            kinds = ", ".join(sorted(placer.dequantized))
            logger.info("matrices in %s are dequantized: there is no kernel for these formats", kinds)
        hosted = HostExperts.of(instructions)
        if hosted is not None:
            logger.info(report(hosted.layers, other_bytes(graph, placer), bandwidths))
        program = CudaProgram(
            instructions, _outputs(graph, lowering), lowering.caches, limits, work, sampler, device, captures,
            table=None if is_fixed else table, tunes=options.tune, hosted=hosted, step_bytes=step, rows=rows,
            layout=_layout(device, limits, options),
        )  # fmt: skip
        try:
            if device.type == "cuda":
                program.variants = _variants(instructions, lowering.caches, is_fixed)
                with ThreadPoolExecutor(1) as side:  # while Triton compiles
                    wide = side.submit(WideAttention.for_instructions, instructions, lowering.caches)
                    _compile(program, limits)
                program.wide = wide.result()
            if limits.num_blocks == 0:
                num_blocks = self._fitting(program, graph, limits, options.memory_share)
                lowering.caches.resize(num_blocks)
        except StepFailed:
            raise DeviceUnavailable(
                "The GPU has too little memory for this model and the largest step. Use a smaller model, quantize it, "
                f"or lower max_step_tokens.{_advice(graph)}"
            ) from None
        return program

    def describe(self) -> KernelReport:
        """Describe the GPU."""
        if not torch.cuda.is_available():
            return KernelReport(None, "torch finds no GPU", (), 0, 0, remedy="Install torch with CUDA, and a driver.")
        gpu = torch.cuda.get_device_properties(0)
        features = (f"sm_{gpu.major}{gpu.minor}", f"{gpu.total_memory / 1e9:.0f} GB")
        return KernelReport("triton", gpu.name, features, 1, gpu.multi_processor_count)

    def peaks(self, seconds: float = 1.0) -> Peaks | None:
        """Not measured."""
        return None

    def _device(self) -> torch.device:
        if self.place == "cuda" and not torch.cuda.is_available():
            raise DeviceUnavailable(
                "torch finds no GPU on this machine. Run on the CPU, or install a CUDA build of torch."
            )
        return torch.device("cuda", torch.cuda.current_device()) if self.place == "cuda" else torch.device(self.place)

    def _room(self, graph: Graph, limits: Limits, options: LoweringOptions, step: int) -> int | None:
        """Return the bytes that the GPU has for weights beside the KV cache of one context, and the largest step."""
        if self.place != "cuda":
            return None
        free, total = torch.cuda.mem_get_info()
        cache = values_of_blocks(graph, limits) * DTYPES[limits.kv_dtype].itemsize + state_bytes(graph, limits)
        return min(int(total * options.memory_share), free) - HEADROOM - cache - step - WORK_BYTES

    def _fitting(self, program: CudaProgram, graph: Graph, limits: Limits, share: float) -> int:
        """Return the KV blocks that fit beside the largest step, which is run once to measure its memory."""
        size = program.caches.block_bytes
        if not size:  # blocks take no memory: enough that states run out first
            return max(limits.max_blocks, 1) * max(program.caches.num_states, 1)
        if program.device.type != "cuda":
            return max(limits.max_blocks, 1)
        torch.cuda.reset_peak_memory_stats()
        for batch in largest_steps(limits):
            program.launch(batch).result()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()
        probe = size * (program.num_blocks + 1)
        available = min(int(total * share), total - others) - (peak - probe) - HEADROOM
        num_blocks = available // size - 1
        if num_blocks < limits.max_blocks:
            raise DeviceUnavailable(
                f"The GPU has room for {max(num_blocks, 0)} KV blocks beside this model, but one context needs "
                f"{limits.max_blocks}. Use a smaller model, quantize it, or lower max_context.{_advice(graph)}"
            )
        logger.info("%.1f GB of KV cache: %d blocks", num_blocks * size / 1e9, num_blocks)
        return num_blocks


def _advice(graph: Graph) -> str:
    has_experts = any(node.op.name in EXPERT_OPS for node in graph.nodes)
    return " Or set experts_on_host to more GB of experts than are in host memory now." if has_experts else ""


def _variants(instructions: list[Instruction], caches: Caches, is_fixed: bool) -> tuple[Variant, ...]:
    """Return the variants of a program beside its instructions. In deterministic mode there are none."""
    few_rows = None if is_fixed else FewRows.of(instructions, caches)
    return () if few_rows is None else (few_rows,)


def _compile(program: CudaProgram, limits: Limits) -> None:
    """Compile all kernels, so that no request waits for a compiler."""
    began, captures = time.monotonic(), program.captures
    counts = {count for each in program.instructions if isinstance(each, Route) for count in each.first_counts}
    program.captures = False

    def run() -> None:
        steps = warm_up_steps(limits, sorted(counts))
        for batch in steps if program.outputs.pooled is None else with_pools(steps):
            program.launch(batch).result()

    num_new = compile_ahead(run)
    program.captures = captures
    logger.info("compiled or loaded %d kernels in %.1f s", num_new, time.monotonic() - began)


def _compile_encoder(encoder: CudaEncoder, limits: Limits) -> None:
    """Compile all kernels of an encoder."""

    def run() -> None:
        for batch in whole_text_steps(limits):
            encoder.launch(batch).result()

    began, captures = time.monotonic(), encoder.captures
    encoder.captures = False  # a graph that is captured now would have no kernels
    num_new = compile_ahead(run)
    encoder.captures = captures
    logger.info("compiled or loaded %d kernels in %.1f s", num_new, time.monotonic() - began)


def _caches(graph: Graph, limits: Limits, num_blocks: int, device: torch.device) -> Caches:
    dtype, states = DTYPES[limits.kv_dtype], state_slots(graph, limits)
    groups = limits.windows, limits.num_source_blocks
    return Caches(graph.caches, limits.block_tokens, dtype, device, num_blocks, states, *groups)


def _layout(device: torch.device, limits: Limits, options: LoweringOptions) -> str:
    """Return what the bytes of KV blocks depend on, beside weights and text: formats, and the kind of kernels.

    It begins with the device's name: the CPU stores blocks in another order, so the two never exchange any. In
    deterministic mode a text must have the bits of one engine, and these depend on the GPU, by which tiles are chosen,
    and on the compiler.
    """
    activations, quantize = options.dtype or ACTIVATIONS, options.quantize
    kernels = "cpu" if device.type != "cuda" else "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    if options.deterministic:
        kernels += f" deterministic on {_name(device)} with torch {torch.__version__}"
    form = f"{limits.kv_dtype}, {limits.block_tokens} tokens, {[each.window for each in limits.windows]}"
    return f"cuda {kernels} {activations} quantize {quantize} fuse {options.fuse}: {form}"


def _outputs(graph: Graph, lowering: Lowering) -> OutputValues:
    """Return what a program returns. Which instructions a step needs differs only if it may pool."""
    logits, pooled = graph.outputs.get("logits"), graph.outputs.get("pooled") or graph.outputs.get("scores")
    if pooled is None:
        return OutputValues(graph.output.id)
    rows = (frozenset(lowering.rows_of.get(kind, ())) for kind in ("logits", "pooled"))
    none = torch.zeros((0, pooled.dim), device=lowering.placer.device)
    return OutputValues(None if logits is None else logits.id, pooled.id, none, *rows)


def _work(instructions: Sequence[Instruction], caches: Caches, limits: Limits, is_fixed: bool) -> StepSplit:
    """Return how attention is split, for each kind of layer, and the rows of recurrent layers."""
    attends = [each for each in instructions if isinstance(each, Attend | AttendCache | AttendLatent)]
    kinds = {each.kind: each for each in attends}
    attention = {kind: _work_of(each, limits, caches.device, is_fixed) for kind, each in kinds.items()}
    states = StateLimits(caches.num_states, not is_fixed) if caches.num_states else None
    return StepSplit(attention, states, tuple(each.window for each in caches.windows))


def _work_of(
    attend: Attend | AttendCache | AttendLatent, limits: Limits, device: torch.device, is_fixed: bool
) -> WorkLimits:
    kind, cache_dtype, num_processors = attend.kind, DTYPES[limits.kv_dtype], _num_processors(device)
    configs: attention.AttentionConfigs | latent.LatentTiles
    if isinstance(attend, AttendLatent):
        configs, ctas_per_sm = latent.latent_tiles(kind.group, attend.keys.dtype, cache_dtype), 1
    else:
        configs = attention.configs_for(kind.dim, cache_dtype, group=kind.group, fixed=is_fixed)
        ctas_per_sm = CTAS_PER_SM
    return WorkLimits(
        max_tokens=limits.max_tokens,
        max_rows=limits.max_rows,
        max_length=(source_blocks(limits) if kind.is_source else limits.max_blocks) * limits.block_tokens,
        kv_heads=kind.kv_heads,
        group=kind.group,
        num_ctas=num_processors * ctas_per_sm,
        wide_ctas=num_processors,
        narrow_queries=configs.narrow.block_m,
        wide_queries=configs.wide.block_m,
        block_tokens=limits.block_tokens,
        window=kind.window,
        reads_all=kind.is_source,
        chunk=kind.chunk,
        fixed_chunk=_chunk(is_fixed),
        expanded_tokens=EXPANDED_TOKENS if kind.is_latent and not is_fixed else None,
    )


def _positions(limits: Limits) -> int:
    return limits.max_blocks * limits.block_tokens


def _chunk(is_fixed: bool) -> int | None:
    return FIXED_CHUNK if is_fixed else None


def _table(device: torch.device, folder: Path | None) -> TunedTable | None:
    return None if folder is None else TunedTable(folder, TuningTarget.here(_name(device)))


def _known(device: torch.device, table: TunedTable | None) -> dict[ProductKey, TileChoice]:
    """Return the known choices for products: those tuned on this machine override the shipped ones."""
    found = {} if table is None else table.read()
    if table is not None and found:
        logger.info("%d products are tuned: %s", len(found), table.path)
    return {**shipped(_name(device)), **found}


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


DEVICE = CudaDevice()
