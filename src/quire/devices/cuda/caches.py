"""The KV cache and the states of all layers on the device. Layers of a group whose KV has the same shape share one
allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices.base import WindowLimits
from quire.ops.cache import CacheSpec, Cross, Latent, PagedKV, State, cache_groups

ALL_TOKENS = 0  # the group of layers that keep all tokens; window groups follow


@dataclass(slots=True, eq=False)
class Caches:
    """K and V, or the latents, or the states of every layer. The last block and the last state are for padding.

    Layers of a group whose keys and values have one size are in one tensor [layers, 2, blocks, kv_heads, block_tokens,
    dim]. Others have a tensor for K and one for V, [layers, blocks, kv_heads, block_tokens, dim] each. Layers of latent
    attention have one, [layers, blocks, 1, block_tokens, dim + rope_dim]. A recurrent layer has states of its own,
    [states, *shape] in float32. Each group has its own number of blocks; the last one has the sources that layers of
    cross-attention read.
    """

    specs: Sequence[CacheSpec]  # of the layers
    block_tokens: int
    dtype: torch.dtype
    device: torch.device
    num_blocks: int  # of all tokens, that requests may use
    num_states: int = 0  # that requests may use
    windows: tuple[WindowLimits, ...] = ()  # the window groups
    num_source_blocks: int = 0  # of encoders' outputs
    _states: dict[int, Tensor] = field(default_factory=dict)  # of recurrent layers
    _tensors: dict[int, list[Tensor]] = field(default_factory=dict)  # by group
    _layers: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)  # K and V, or the latents, of other layers
    _both: dict[int, Tensor] = field(default_factory=dict)  # the tensor that has K and V of a layer
    _indices: dict[int, int] = field(default_factory=dict)  # of layers in their tensors
    _groups: dict[int, int] = field(default_factory=dict)  # of layers

    def __post_init__(self) -> None:
        groups = cache_groups(self.specs, [each.window for each in self.windows])
        members = [groups.tokens, *(each.caches for each in groups.windows), groups.sources]
        self._groups = {layer: group for group, layers in enumerate(members) for layer in layers}
        self._states = {
            layer: torch.zeros((self.num_states + 1, *spec.shape), device=self.device)
            for layer, spec in enumerate(self.specs)
            if isinstance(spec, State)
        }
        for group in range(len(members)):
            self._allocate(group)

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks of all groups, with those for padding."""
        return sum(each.nbytes for tensors in self._tensors.values() for each in tensors)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of all tokens; 0: no layer keeps all tokens."""
        return sum(each.nbytes for each in self._tensors[ALL_TOKENS]) // (self.num_blocks + 1)

    @property
    def trash_slots(self) -> list[int]:
        """The slot of each group that padding writes to, after the last block."""
        return [count * self.block_tokens for count in (self.num_blocks, *(each.num_blocks for each in self.windows))]

    def group_of(self, layer: int) -> int:
        """Return the group of a layer: ALL_TOKENS, or 1 + the index of its window group; sources are the last one."""
        return self._groups[layer]

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of one layer: [blocks, kv_heads, block_tokens, dim] each."""
        keys, values = self._layers[layer]
        return keys, values

    def both_of(self, layer: int) -> Tensor | None:
        """Return the tensor that has K and V of a layer: [layers, 2, blocks, kv_heads, block_tokens, dim].

        None: they have different sizes, or it has none.
        """
        return self._both.get(layer)

    def latents_of(self, layer: int) -> Tensor:
        """Return the latents of one layer, each with its rotated key: [blocks, block_tokens, dim + rope_dim]."""
        (latents,) = self._layers[layer]
        return latents[:, 0]

    def index_of(self, layer: int) -> int:
        """Return the index of a layer in the tensor that has its KV."""
        return self._indices[layer]

    def states_of(self, layer: int) -> Tensor:
        """Return the states of a recurrent layer, float32 [states, *shape]."""
        return self._states[layer]

    def tensors_of(self, group: int) -> Sequence[Tensor]:
        """Return the tensors of a group, each [..., blocks, kv_heads, block_tokens, dim]."""
        return self._tensors[group]

    @property
    def states(self) -> Sequence[Tensor]:
        """The states of all recurrent layers."""
        return tuple(self._states.values())

    def resize(self, num_blocks: int) -> None:
        """Allocate another number of blocks of all tokens, all empty. Window groups keep theirs."""
        self.num_blocks = num_blocks
        self._allocate(ALL_TOKENS)

    def copy(self, copies: NDArray[Any], group: int = ALL_TOKENS) -> None:
        """Copy the first tokens of one block to another, for every (from, to, num tokens) of [C, 3], in order."""
        for source, target, num_tokens in copies.tolist():
            for each in self._tensors[group]:
                each[..., target, :, :num_tokens, :] = each[..., source, :, :num_tokens, :]

    def _allocate(self, group: int) -> None:
        """Allocate the blocks of a group. Its old ones are freed first: memory does not hold both."""
        sizes_of = {layer: _sizes(self.specs[layer]) for layer, each in self._groups.items() if each == group}
        self._tensors[group] = []
        for layer in sizes_of:
            self._layers.pop(layer, None)
            self._both.pop(layer, None)
        windows = [each.num_blocks for each in self.windows]
        num_blocks = [self.num_blocks, *windows, self.num_source_blocks][group]
        for sizes in dict.fromkeys(sizes_of.values()):
            layers = [layer for layer, each in sizes_of.items() if each == sizes]
            parts = self._allocate_layers(group, layers, num_blocks, sizes)
            self._layers |= {layer: tuple(part[i] for part in parts) for i, layer in enumerate(layers)}
            self._indices |= {layer: i for i, layer in enumerate(layers)}

    def _allocate_layers(
        self, group: int, layers: list[int], num_blocks: int, sizes: tuple[int, tuple[int, ...]]
    ) -> tuple[Tensor, ...]:
        """Return the parts of layers of one shape: [layers, blocks, kv_heads, block_tokens, dim] each."""
        num_heads, dims = sizes
        block = (num_blocks + 1, num_heads, self.block_tokens)
        options: Any = {"dtype": self.dtype, "device": self.device}
        if len(dims) == 2 and dims[0] == dims[1]:
            both = torch.zeros((len(layers), 2, *block, dims[0]), **options)
            self._tensors[group].append(both)
            self._both |= dict.fromkeys(layers, both)
            return both[:, 0], both[:, 1]
        parts = tuple(torch.zeros((len(layers), *block, dim), **options) for dim in dims)
        self._tensors[group] += parts
        return parts


def _sizes(spec: CacheSpec) -> tuple[int, tuple[int, ...]]:
    """The heads of a layer, and the sizes of what is stored of each."""
    assert isinstance(spec, PagedKV | Latent | Cross)
    return (1, (spec.values_per_token,)) if isinstance(spec, Latent) else (spec.num_heads, spec.vectors)
