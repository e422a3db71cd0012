"""What of a model fits into the memory: the length of its context, and how many bytes it may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.config import Config, ServeConfig
from quire.engine.need import Need, Share
from quire.gateway.residency import Demand
from quire.serve.errors import ModelTooLarge


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model that fits."""

    need: Need
    context: int
    demand: Demand

    def blocks_in(self, num_bytes: int) -> int:
        """KV blocks of so many bytes in all."""
        return (num_bytes - self.need.fixed_bytes) // self.need.block_bytes

    def bytes_of(self, num_blocks: int) -> int:
        """In all, with so many KV blocks."""
        return self.need.fixed_bytes + num_blocks * self.need.block_bytes

    def config_for(self, config: Config, num_bytes: int) -> Config:
        """What its engine is told: how much it may take, and nothing of the server's secrets."""
        num_blocks, most_blocks = self.blocks_in(num_bytes), self.blocks_in(self.demand.most)
        cache = replace(config.cache, num_blocks=num_blocks, most_blocks=most_blocks)
        scheduler = replace(config.scheduler, max_context=self.context)
        return replace(config, cache=cache, scheduler=scheduler, serve=ServeConfig())


@dataclass(frozen=True, slots=True)
class OnGpu:
    """A model that has its share of a GPU's memory. It is never given another: its engine found out what fits."""

    context: int
    demand: Demand  # parts of the GPU's memory

    def config_for(self, config: Config, num_bytes: int) -> Config:
        """What its engine is told: nothing of the server's secrets. Its share is a setting already."""
        scheduler = replace(config.scheduler, max_context=self.context)
        return replace(config, scheduler=scheduler, serve=ServeConfig())


def on_gpu(share: Share) -> OnGpu:
    """As many models are there at a time as have room beside each other: with the usual share, one."""
    return OnGpu(share.max_context, Demand(share.parts, share.parts))


def fit(name: str, need: Need, config: Config, budget: int) -> Fitted:
    """The longest context that fits, up to what was promised. Raises with both numbers if that is too short."""
    promised = need.max_context
    if config.cache.num_blocks is not None:
        size = need.fixed_bytes + config.cache.num_blocks * need.block_bytes
        if size > budget:
            raise ModelTooLarge(name, (promised, size), budget, need.longest(budget))
        return Fitted(need, promised, Demand(size, size))
    context = need.longest(budget)
    least = min(config.serve.min_context, promised)
    if context < least:
        raise ModelTooLarge(name, (least, need.bytes_for(least)), budget, context)
    return Fitted(need, context, Demand(need.bytes_for(context), need.most_bytes(context, budget)))


def equal_share(config: Config, num_models: int) -> Config:
    """What an engine is told where several share the memory and none ever goes."""
    cache = replace(config.cache, memory_share=config.cache.memory_share / max(1, num_models))
    return replace(config, cache=cache, serve=ServeConfig())
