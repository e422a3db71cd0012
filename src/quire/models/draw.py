"""Turns a checkpoint into a model that a device can lower. Nothing large is read: weights stay handles until then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.graph.graph import Defaults, Graph
from quire.graph.weight import Weights, computed_weight
from quire.models.config import CheckpointSource, ModelConfig, read_config
from quire.models.errors import BadCheckpoint
from quire.models.names import bind_weights
from quire.models.registry import find_architecture
from quire.ops.registry import format_shape

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DrawnModel:
    """A model's graph and weights: the input of `Device.lower` and of the interpreter."""

    architecture: str
    config: ModelConfig
    graph: Graph
    weights: Weights


def draw(checkpoint: CheckpointSource) -> DrawnModel:
    """Find the architecture, bind its weights, check every shape, draw the graph."""
    arch = find_architecture(checkpoint)
    config = read_config(checkpoint, arch.keys)
    weights = bind_weights(checkpoint, config, arch.names)
    config = replace(config, tied=weights["head"] is weights["embed"])
    weights["rope.frequencies"] = computed_weight("rope.frequencies", _frequencies(checkpoint, config))
    defaults = Defaults(
        head_dim=config.head_dim,
        norm_eps=config.norm_eps,
        attention_scale=config.head_dim**-0.5,
        rope_scaling=config.rope.scaling,
    )
    graph = Graph(weights, defaults)
    arch.draw(graph, config)
    if unused := set(weights) - set(graph.weight_names()):
        raise TypeError(f"{arch.name} declares weights that it does not use: {', '.join(sorted(unused))}")
    return DrawnModel(arch.name, config, graph, weights)


def _frequencies(checkpoint: CheckpointSource, config: ModelConfig) -> Array:
    """Return the rope frequencies, float32 [rotary / 2]. GGUF stores llama3's scaling as divisors of them."""
    frequencies = config.rope.frequencies()
    if checkpoint.container != "gguf" or "rope_freqs.weight" not in checkpoint.tensors:
        return frequencies
    divisors = checkpoint.tensors["rope_freqs.weight"].dequantize()
    if divisors.shape != frequencies.shape:
        found, expected = format_shape(divisors.shape), format_shape(frequencies.shape)
        raise BadCheckpoint(f"The tensor rope_freqs.weight is {found}; by the configuration it must be {expected}.")
    if not (np.isfinite(divisors) & (divisors > 0)).all():
        raise BadCheckpoint("The tensor rope_freqs.weight has divisors that are not positive numbers.")
    return (frequencies / divisors).astype(np.float32)
