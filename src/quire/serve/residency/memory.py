"""How much memory a model gets: the context length that fits into the budget, and the bytes its engine may use."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.config import Config, ServeConfig
from quire.engine.messages import Ready
from quire.engine.need import Need, Share
from quire.serve.errors import ModelTooLarge
from quire.serve.residency.policy import Demand


@dataclass(frozen=True, slots=True)
class HostFit:
    """A model in the host's memory, which moves between engines as KV blocks."""

    need: Need
    context: int
    demand: Demand

    def engine_config(self, config: Config, num_bytes: int) -> Config:
        """The engine's configuration: its KV blocks, and none of the server's secrets."""
        num_blocks = config.cache.num_blocks or self.need.blocks_in(self.context, num_bytes)
        most_blocks = self.need.blocks_beside(self.context, num_blocks, self.demand.most)
        cache = replace(config.cache, num_blocks=num_blocks, most_blocks=most_blocks)
        scheduler = replace(config.scheduler, max_context=self.context)
        return replace(config, cache=cache, scheduler=scheduler, serve=ServeConfig())

    def blocks_in(self, num_bytes: int, ready: Ready) -> int:
        """KV blocks that a running engine has in this size. Its window groups and states keep theirs."""
        if not ready.block_bytes:
            return ready.num_blocks
        return (num_bytes - self.need.fixed_bytes - ready.group_bytes) // ready.block_bytes

    def bytes_with(self, num_blocks: int, ready: Ready) -> int:
        """Size of a running engine with this many KV blocks."""
        return self.need.fixed_bytes + ready.group_bytes + num_blocks * ready.block_bytes


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
        size = need.bytes_with(need.max_context, config.cache.num_blocks)
        if size > budget:
            raise ModelTooLarge(name, (need.max_context, size), budget, need.longest(budget))
        return HostFit(need, need.max_context, Demand(size, size))
    context = need.longest(budget)
    shortest = min(config.serve.min_context, need.max_context)
    if context < shortest:
        raise ModelTooLarge(name, (shortest, need.bytes_for(shortest)), budget, context)
    most = need.most_bytes(context, budget)
    least = need.bytes_for(context) if need.can_resize(context) else most
    return HostFit(need, context, Demand(least, most))
