"""How much memory a model will take, computed from its header alone, in milliseconds, before it is loaded."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from quire.config import BadSetting, Config
from quire.devices import base as devices
from quire.devices.facts import DeviceFacts, available, device_facts
from quire.engine.context import context_limit, with_model_limits
from quire.engine.drafting import draft_bytes
from quire.models.config import CheckpointSource
from quire.models.describe import describe
from quire.models.draw import draw
from quire.runner.cache_plan import CacheBytes, blocks_within, cache_bytes, context_blocks, plan_cache
from quire.runner.memory import (
    HOST_CONTEXTS,
    HOST_GROWTH,
    HOST_SHARE,
    buffer_bytes,
    fixed_bytes,
    source_bytes,
    with_kv_format,
)
from quire.types.formats import AUTO
from quire.weights.checkpoint import open_checkpoint

PROCESS_BYTES = 72 << 20  # of an engine that has no model: the interpreter, its packages, and what requests leave there
WHOLE = 1000  # parts of a GPU's memory


class Need(NamedTuple):
    """What a model takes of the host's memory."""

    fixed_bytes: int  # weights, buffers, and the process
    cache: CacheBytes
    config: Config
    max_context: int  # what the model was made for, or less, as set

    def at(self, context: int) -> Config:
        """The settings, for contexts of this length."""
        return replace(self.config, scheduler=replace(self.config.scheduler, max_context=context))

    def bytes_with(self, context: int, num_blocks: int) -> int:
        """With so many KV blocks, for contexts of this length."""
        return self.fixed_bytes + plan_cache(self.cache, self.at(context), num_blocks).num_bytes

    def bytes_for(self, context: int, contexts: int = 1) -> int:
        """With KV for some contexts of this length."""
        return self.bytes_with(context, contexts * context_blocks(self.at(context)))

    def most_bytes(self, context: int, budget: int) -> int:
        """With as much KV as is useful: a few contexts, and no more than a share of the memory beyond the first."""
        share = self.fixed_bytes + int(budget * HOST_SHARE)
        return min(budget, max(self.bytes_for(context), min(self.bytes_for(context, HOST_CONTEXTS), share)))

    def blocks_in(self, context: int, num_bytes: int) -> int:
        """KV blocks of an engine of this size, for contexts of this length."""
        config = self.at(context)
        most = HOST_GROWTH * HOST_CONTEXTS * context_blocks(config)
        return blocks_within(self.cache, config, num_bytes - self.fixed_bytes, most)

    def blocks_beside(self, context: int, num_blocks: int, num_bytes: int) -> int:
        """KV blocks in this size, beside window groups and states that were planned for another number of blocks."""
        if not self.can_resize(context):
            return num_blocks
        block = self.cache.within(context).tokens
        return num_blocks + max(0, num_bytes - self.bytes_with(context, num_blocks)) // block

    def can_resize(self, context: int) -> bool:
        """Do blocks take memory that can be given back? Window groups and states keep theirs."""
        return self.cache.within(context).tokens > 0

    def longest(self, num_bytes: int) -> int:
        """The longest context that fits; 0 if not even the rest does."""
        tokens = self.config.cache.block_tokens
        contexts = range(tokens, self.max_context + tokens, tokens)
        fitting = bisect_right(contexts, num_bytes, key=self.bytes_for)
        return min(self.max_context, fitting * tokens)


class Share(NamedTuple):
    """What a model takes of a device's own memory: the share that its engine may use, in parts of WHOLE, whatever the
    model's size. How much KV fits into that is known when it is loaded.
    """

    parts: int
    max_context: int


class Budget(NamedTuple):
    """What all models together may take."""

    amount: int
    unit: str = "bytes"  # of the host's memory; of a device's own, thousandths


def has_own_memory(device: str) -> bool:
    """Does this device have its own memory? False for one that is not installed."""
    return device in available() and device_facts(device).has_own_memory


def budget_of(device: str, config: Config) -> Budget:
    """Of a device's own memory, all of it: each model has its share of that."""
    if not device_facts(device).has_own_memory:
        return Budget(budget_bytes(config))
    if config.serve.memory_budget is not None:
        raise BadSetting(
            f"memory_budget is {config.serve.memory_budget:g}, which is of the host's memory, and models run on a GPU. "
            "Set memory_share: of a GPU's memory every model has that share, and as many are loaded as that allows.",
            field="memory_budget",
        )
    return Budget(WHOLE, "thousandths")


def budget_bytes(config: Config) -> int:
    """What all models together may take of the host's memory: as set, or the share of it that engines may use."""
    if config.serve.memory_budget is not None:
        return int(config.serve.memory_budget * 1e9)
    return int(devices.host_bytes() * config.cache.memory_share)


def memory_need(path: Path, device: str, config: Config) -> Need | Share:
    """What the checkpoint at this path takes of its device."""
    facts = device_facts(device)
    if not facts.has_own_memory:
        return need_of(path, config, facts)
    checkpoint = open_checkpoint(path, config.weights.load_format)
    max_context = context_limit(config, describe(checkpoint).config)  # only the engine draws the graph
    return Share(min(WHOLE, int(WHOLE * config.cache.memory_share)), max_context)


def need_of(path: Path, config: Config, facts: DeviceFacts) -> Need:
    """What the checkpoint at this path takes on the device with these facts."""
    config = with_kv_format(config, facts)
    checkpoint = open_checkpoint(path, config.weights.load_format)
    model = draw(checkpoint, partial(context_limit, config), config.embedding.pooling)
    config = replace(config, scheduler=with_model_limits(config, model).scheduler)
    fixed = fixed_bytes(model.weights, model.config.vocab_size, config, facts)
    fixed += draft_bytes(checkpoint, model, config, facts)
    buffers = buffer_bytes(model.graph, model.weights, config, facts) + source_bytes(model.source, config, facts)
    longest_source = 0 if model.source is None else model.source.max_tokens
    return Need(
        fixed_bytes=PROCESS_BYTES + fixed + buffers,
        cache=cache_bytes(model.graph.caches, config, facts.frees_windows, longest_source),
        config=config,
        max_context=model.context,
    )


def cache_sizes(checkpoint: CheckpointSource, device: str = AUTO, config: Config | None = None) -> CacheBytes:
    """Return the bytes of one token in the layers that keep all tokens and in those with windows, and of a state."""
    facts = device_facts(device)
    config = with_kv_format(Config() if config is None else config, facts)
    per_token = replace(config, cache=replace(config.cache, block_tokens=1))
    return cache_bytes(draw(checkpoint).graph.caches, per_token, facts.frees_windows)
