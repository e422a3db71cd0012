"""How much memory a model gets: the context length that fits into the budget, and the bytes its engine may use."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.config import Config, ServeConfig
from quire.engine.need import Need, Share
from quire.serve.errors import ModelTooLarge
from quire.serve.residency.policy import Demand


@dataclass(frozen=True, slots=True)
class HostFit:
    """A model in the host's memory, which moves between engines as KV blocks."""

    need: Need
    context: int
    demand: Demand

    def blocks_in(self, num_bytes: int) -> int:
        """KV blocks that an engine of this size has."""
        return (num_bytes - self.need.fixed_bytes) // self.need.block_bytes

    def bytes_with(self, num_blocks: int) -> int:
        """Size of an engine with this many KV blocks."""
        return self.need.fixed_bytes + num_blocks * self.need.block_bytes

    def engine_config(self, config: Config, num_bytes: int) -> Config:
        """The engine's configuration: its KV blocks, and none of the server's secrets."""
        num_blocks, most_blocks = self.blocks_in(num_bytes), self.blocks_in(self.demand.most)
        cache = replace(config.cache, num_blocks=num_blocks, most_blocks=most_blocks)
        scheduler = replace(config.scheduler, max_context=self.context)
        return replace(config, cache=cache, scheduler=scheduler, serve=ServeConfig())


@dataclass(frozen=True, slots=True)
class GpuFit:
    """A model with a fixed share of a GPU's memory. Its engine decides how many KV blocks fit into the share."""

    context: int
    demand: Demand  # in parts of the GPU's memory

    def engine_config(self, config: Config, num_bytes: int) -> Config:
        """The engine's configuration, without the server's secrets. The share is already a setting."""
        scheduler = replace(config.scheduler, max_context=self.context)
        return replace(config, scheduler=scheduler, serve=ServeConfig())


def fit_model(name: str, need: Need | Share, config: Config, budget: int) -> HostFit | GpuFit:
    """The longest context that fits, up to the model's or the setting's. Raises ModelTooLarge if that is too short."""
    if isinstance(need, Share):
        return GpuFit(need.max_context, Demand(need.parts, need.parts))
    if config.cache.num_blocks is not None:
        size = need.fixed_bytes + config.cache.num_blocks * need.block_bytes
        if size > budget:
            raise ModelTooLarge(name, (need.max_context, size), budget, need.longest(budget))
        return HostFit(need, need.max_context, Demand(size, size))
    context = need.longest(budget)
    least = min(config.serve.min_context, need.max_context)
    if context < least:
        raise ModelTooLarge(name, (least, need.bytes_for(least)), budget, context)
    return HostFit(need, context, Demand(need.bytes_for(context), need.most_bytes(context, budget)))
