"""How much memory a model takes, and how much KV cache fits beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from math import prod

from quire.config import BadSetting, Config
from quire.devices.base import Limits, LoweringOptions, step_bytes
from quire.devices.facts import DeviceFacts
from quire.graph.graph import Graph
from quire.graph.weight import Weight, Weights
from quire.models.source import DrawnSource
from quire.quant.registry import all_formats
from quire.runner.cache_plan import CacheBytes, CachePlan, blocks_within, context_blocks, plan_cache
from quire.runner.sources import source_limits

HOST_CONTEXTS = 8  # full contexts that a host's KV cache holds by default
HOST_SHARE = 0.25  # and the most of the host's memory that it takes by default: a laptop has other things to do
HOST_GROWTH = 4  # address space for this many times the blocks, in case other models free memory later


def with_kv_format(config: Config, facts: DeviceFacts) -> Config:
    """The settings with `auto` replaced by the device's own KV format. One that the device does not have is refused."""
    return replace(config, cache=replace(config.cache, kv_dtype=facts.kv_format(config.cache.kv_dtype)))


def fixed_bytes(weights: Weights, vocab_size: int, config: Config, facts: DeviceFacts) -> int:
    """Weights as they lie on the device, each once, and the logits of the largest step."""
    resident = {id(weight): resident_weight_bytes(weight, facts) for weight in weights.values()}
    max_logits = config.scheduler.max_rows + config.scheduler.max_scored_tokens
    return sum(resident.values()) + max_logits * vocab_size * 4


def buffer_bytes(graph: Graph, weights: Weights, config: Config, facts: DeviceFacts) -> int:
    """The buffers between the ops of the largest step, fused or not as set."""
    options = LoweringOptions(dtype=config.device.dtype, quantize=config.weights.quantize, fuse=config.device.fuse)
    return step_bytes(facts, graph, weights, limits_of(config), options)


def source_bytes(source: DrawnSource | None, config: Config, facts: DeviceFacts) -> int:
    """What computes sources takes: its weights, its outputs, and the buffers of its largest steps."""
    if source is None:
        return 0
    options = LoweringOptions(dtype=config.device.dtype, quantize=config.weights.quantize, fuse=config.device.fuse)
    weights = sum(resident_weight_bytes(weight, facts) for weight in source.weights.values())
    limits = source_limits(source, limits_of(config))
    graphs = (source.encoder, source.pairs)
    buffers = (step_bytes(facts, *each, options) for each in zip(graphs, repeat(source.weights), limits, strict=False))
    outputs = sum(each.max_tokens * graph.output.dim * 4 for graph, each in zip(graphs, limits, strict=True))
    return weights + outputs + sum(buffers)


def resident_weight_bytes(weight: Weight, facts: DeviceFacts) -> int:
    """One weight in the device's memory. Formats that keep their values there keep their size, scales included."""
    is_stack = len(weight.shape) == 3
    resident = facts.stack_format(weight.format) if is_stack else facts.weight_formats.get(weight.format, weight.format)
    format = all_formats().get(resident)
    if format is None or format.name == weight.format:
        return weight.num_bytes
    return prod(weight.shape) * format.block_bytes // format.block_weights


def limits_of(config: Config, plan: CachePlan | None = None) -> Limits:
    """The most that a step may hold, so that a device can plan its buffers once, and the caches that it reserves."""
    num_blocks = config.cache.most_blocks or config.cache.num_blocks or 0
    blocks_of_context = context_blocks(config)
    return Limits(
        max_tokens=config.scheduler.max_step_tokens,
        max_rows=config.scheduler.max_rows,
        max_logits=config.scheduler.max_rows + config.scheduler.max_scored_tokens,
        max_blocks=min(blocks_of_context, num_blocks) if num_blocks else blocks_of_context,
        num_blocks=num_blocks,
        block_tokens=config.cache.block_tokens,
        kv_dtype=config.cache.kv_dtype,
        windows=() if plan is None else plan.windows,
        num_states=0 if plan is None else plan.num_states,
        num_source_blocks=0 if plan is None else plan.num_source_blocks,
        max_source_blocks=0 if plan is None else plan.sizes.source_blocks,
    )


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a device, and what a model takes of it."""

    total_bytes: int
    fixed_bytes: int  # weights, logits, and the buffers of the largest step
    cache: CacheBytes


def fit_cache(config: Config, memory: ModelMemory) -> tuple[Config, CachePlan]:
    """The cache of a model in a host's memory, and the settings with its number of blocks.

    Unless that is set, there are enough for a few contexts, not for all of the host's memory.
    """
    if config.cache.num_blocks is not None:
        plan = plan_cache(memory.cache, config, config.cache.num_blocks)
        most = config.cache.most_blocks if plan.sizes.tokens else None  # blocks without bytes are never too many
        return replace(config, cache=replace(config.cache, num_blocks=plan.num_blocks, most_blocks=most)), plan
    one_context, most = context_blocks(config), config.cache.most_blocks
    num_bytes = int(memory.total_bytes * HOST_SHARE)
    share = blocks_within(memory.cache, config, num_bytes, HOST_CONTEXTS * one_context)
    num_blocks = min(fitting_blocks(config, memory), max(one_context, share))
    plan = plan_cache(memory.cache, config, num_blocks if most is None else min(num_blocks, most))
    most = most or _most_blocks(config, memory, plan)
    return replace(config, cache=replace(config.cache, num_blocks=plan.num_blocks, most_blocks=most)), plan


def _most_blocks(config: Config, memory: ModelMemory, plan: CachePlan) -> int:
    """Return how many blocks of tokens the cache may grow to. Window groups and states keep their size."""
    if not plan.sizes.tokens:
        return plan.num_blocks
    rest = int(memory.total_bytes * config.cache.memory_share) - memory.fixed_bytes - plan.group_bytes
    return min(HOST_GROWTH * plan.num_blocks, rest // plan.sizes.tokens)


def fitting_blocks(config: Config, memory: ModelMemory) -> int:
    """Blocks of tokens that fit into the share of the memory that the engine may use. None at all is an error."""
    budget = int(memory.total_bytes * config.cache.memory_share)
    most = HOST_GROWTH * HOST_CONTEXTS * context_blocks(config)
    num_blocks = blocks_within(memory.cache, config, budget - memory.fixed_bytes, most)
    if num_blocks < 1:
        least = plan_cache(memory.cache, config, 1).num_bytes
        raise BadSetting(
            f"No memory is left for the KV cache: the model takes {memory.fixed_bytes / 1e6:.0f} MB of "
            f"{budget / 1e6:.0f} MB, and the smallest cache {least / 1e6:.0f} MB. Use a smaller model, lower "
            "max_context or max_step_tokens, or raise memory_share.",
            field="memory_share",
        )
    return num_blocks
