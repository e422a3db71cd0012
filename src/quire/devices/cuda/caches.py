"""The KV cache and the states of all layers on the device. Layers whose KV has the same shape share one allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.ops.cache import CacheSpec, Latent, PagedKV, State


@dataclass(slots=True, eq=False)
class Caches:
    """K and V, or the latents, or the states of every layer. The last block and the last state are for padding.

    Layers whose keys and values have one size are in one tensor [layers, 2, blocks, kv_heads, block_tokens, dim].
    Others have a tensor for K and one for V, [layers, blocks, kv_heads, block_tokens, dim] each. Layers of latent
    attention have one, [layers, blocks, 1, block_tokens, dim + rope_dim]. A recurrent layer has states of its own,
    [states, *shape] in float32.
    """

    specs: Sequence[CacheSpec]  # of the layers
    block_tokens: int
    dtype: torch.dtype
    device: torch.device
    num_blocks: int  # that requests may use
    num_states: int = 0  # that requests may use
    _states: dict[int, Tensor] = field(default_factory=dict)  # of recurrent layers
    _tensors: list[Tensor] = field(default_factory=list)
    _layers: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)  # K and V, or the latents, of other layers
    _indices: dict[int, int] = field(default_factory=dict)  # of layers in their tensors

    def __post_init__(self) -> None:
        for layer, spec in enumerate(self.specs):
            if isinstance(spec, State):
                self._states[layer] = torch.zeros((self.num_states + 1, *spec.shape), device=self.device)
        self.resize(self.num_blocks)

    @property
    def is_uniform(self) -> bool:
        """Whether the KV of all layers is in one tensor."""
        return len(self._tensors) == 1

    @property
    def whole(self) -> Tensor:
        """The only tensor, if the KV of all layers is in one: [layers, 2, blocks, kv_heads, block_tokens, dim]."""
        (tensor,) = self._tensors
        return tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, with the one for padding."""
        return sum(each.nbytes for each in self._tensors)

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of one layer: [blocks, kv_heads, block_tokens, dim] each."""
        keys, values = self._layers[layer]
        return keys, values

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

    def resize(self, num_blocks: int) -> None:
        """Allocate another number of blocks, all empty. The old ones are freed first: memory does not hold both."""
        self.num_blocks = num_blocks
        self._tensors, self._layers = [], {}
        paged = {layer: _sizes(spec) for layer, spec in enumerate(self.specs) if not isinstance(spec, State)}
        for sizes in dict.fromkeys(paged.values()):
            layers = [layer for layer, each in paged.items() if each == sizes]
            parts = self._allocate(len(layers), *sizes)
            self._layers |= {layer: tuple(part[i] for part in parts) for i, layer in enumerate(layers)}
            self._indices |= {layer: i for i, layer in enumerate(layers)}

    def copy(self, copies: NDArray[Any]) -> None:
        """Copy the first tokens of one block to another, for every (from, to, num tokens) of [C, 3], in order."""
        for source, target, num_tokens in copies.tolist():
            for each in self._tensors:
                each[..., target, :, :num_tokens, :] = each[..., source, :, :num_tokens, :]

    def _allocate(self, num_layers: int, num_heads: int, dims: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return the parts of layers of one shape: [layers, blocks, kv_heads, block_tokens, dim] each."""
        block = (self.num_blocks + 1, num_heads, self.block_tokens)
        options: Any = {"dtype": self.dtype, "device": self.device}
        if len(dims) == 2 and dims[0] == dims[1]:
            both = torch.zeros((num_layers, 2, *block, dims[0]), **options)
            self._tensors.append(both)
            return both[:, 0], both[:, 1]
        parts = tuple(torch.zeros((num_layers, *block, dim), **options) for dim in dims)
        self._tensors += parts
        return parts


def _sizes(spec: PagedKV | Latent) -> tuple[int, tuple[int, ...]]:
    """The heads of a layer, and the sizes of what is stored of each."""
    return (spec.num_heads, spec.vectors) if isinstance(spec, PagedKV) else (1, (spec.values_per_token,))
