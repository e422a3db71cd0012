"""How much memory a model takes, and how many KV blocks fit beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from quire.config import BadSetting, Config
from quire.devices.base import Limits, LoweringOptions, step_bytes
from quire.devices.facts import DeviceFacts
from quire.graph.graph import Graph
from quire.graph.weight import Weight, Weights
from quire.quant.registry import all_formats
from quire.types.formats import KV_FORMATS

HOST_CONTEXTS = 8  # full contexts that a host's KV cache holds by default
HOST_SHARE = 0.25  # and the most of the host's memory that it takes by default: a laptop has other things to do
HOST_GROWTH = 4  # address space for this many times the blocks, in case other models free memory later


def with_kv_format(config: Config, facts: DeviceFacts) -> Config:
    """The settings with `auto` replaced by the device's own KV format. One that the device does not have is refused."""
    return replace(config, cache=replace(config.cache, kv_dtype=facts.kv_format(config.cache.kv_dtype)))


def block_bytes(graph: Graph, config: Config) -> int:
    """One KV block, over all layers. A model whose heads the KV format cannot hold is refused."""
    kv_format = KV_FORMATS[config.cache.kv_dtype]
    for spec in graph.caches:
        if any(size % kv_format.num_values for size in spec.vectors):
            raise BadSetting(
                f"kv_dtype is {kv_format.name!r}, which stores values in blocks of {kv_format.num_values}; "
                f"the heads of this model have {min(spec.vectors)}. Choose f16 or bf16.",
                field="kv_dtype",
            )
    values = sum(spec.values_per_token for spec in graph.caches)
    return values // kv_format.num_values * kv_format.num_bytes * config.cache.block_tokens


def fixed_bytes(weights: Weights, vocab_size: int, config: Config, facts: DeviceFacts) -> int:
    """Weights as they lie on the device, each once, and the logits of the largest step."""
    resident = {id(weight): resident_weight_bytes(weight, facts) for weight in weights.values()}
    max_logits = config.scheduler.max_rows + config.scheduler.max_scored_tokens
    return sum(resident.values()) + max_logits * vocab_size * 4


def buffer_bytes(graph: Graph, weights: Weights, config: Config, facts: DeviceFacts) -> int:
    """The buffers between the ops of the largest step, fused or not as set."""
    options = LoweringOptions(dtype=config.device.dtype, quantize=config.weights.quantize, fuse=config.device.fuse)
    return step_bytes(facts, graph, weights, limits_of(config), options)


def resident_weight_bytes(weight: Weight, facts: DeviceFacts) -> int:
    """One weight in the device's memory. Formats that keep their values there keep their size, scales included."""
    is_stack = len(weight.shape) == 3
    resident = facts.stack_format(weight.format) if is_stack else facts.weight_formats.get(weight.format, weight.format)
    format = all_formats().get(resident)
    if format is None or format.name == weight.format:
        return weight.num_bytes
    return prod(weight.shape) * format.block_bytes // format.block_weights


def limits_of(config: Config) -> Limits:
    """The most that a step may hold, so that a device can plan its buffers once."""
    num_blocks = config.cache.most_blocks or config.cache.num_blocks or 0
    blocks_of_context = -(-config.scheduler.max_context // config.cache.block_tokens)
    return Limits(
        max_tokens=config.scheduler.max_step_tokens,
        max_rows=config.scheduler.max_rows,
        max_logits=config.scheduler.max_rows + config.scheduler.max_scored_tokens,
        max_blocks=min(blocks_of_context, num_blocks) if num_blocks else blocks_of_context,
        num_blocks=num_blocks,
        block_tokens=config.cache.block_tokens,
        kv_dtype=config.cache.kv_dtype,
    )


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a device, and what a model takes of it."""

    total_bytes: int
    fixed_bytes: int  # weights, logits, and the buffers of the largest step
    block_bytes: int  # one KV block, over all layers


def plan_blocks(config: Config, memory: ModelMemory) -> Config:
    """The settings with their number of KV blocks: enough for a few contexts, not all of the host's memory."""
    if config.cache.num_blocks is not None:
        return config
    most_fitting = fitting_blocks(config, memory)
    one_context = -(-config.scheduler.max_context // config.cache.block_tokens)
    share = int(memory.total_bytes * HOST_SHARE) // memory.block_bytes
    num_blocks = min(most_fitting, max(one_context, min(HOST_CONTEXTS * one_context, share)))
    most = config.cache.most_blocks or min(most_fitting, HOST_GROWTH * num_blocks)
    return replace(config, cache=replace(config.cache, num_blocks=min(num_blocks, most), most_blocks=most))


def fitting_blocks(config: Config, memory: ModelMemory) -> int:
    """KV blocks that fit into the share of the memory that the engine may use. None at all is an error."""
    budget = memory.total_bytes * config.cache.memory_share
    num_blocks = (int(budget) - memory.fixed_bytes) // memory.block_bytes
    if num_blocks < 1:
        raise BadSetting(
            f"No memory is left for the KV cache: the model takes {memory.fixed_bytes / 1e6:.0f} MB of "
            f"{budget / 1e6:.0f} MB. Use a smaller model, or raise memory_share.",
            field="memory_share",
        )
    return num_blocks
