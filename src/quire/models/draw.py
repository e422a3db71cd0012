"""From a checkpoint to a model that a device can lower. Nothing large is read: weights are handles until lowering."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.graph.graph import Graph
from quire.graph.weight import Weights, computed_weight
from quire.models.alibi import alibi_slopes
from quire.models.config import SLOPES, CheckpointSource, ModelConfig, read_config
from quire.models.errors import BadCheckpoint
from quire.models.names import bind_weights
from quire.models.registry import find_architecture
from quire.models.rope import SLIDING, RopeConfig
from quire.ops.registry import format_shape

Array = NDArray[Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrawnModel:
    """A drawn model: what `Device.lower` and the interpreter take."""

    architecture: str
    config: ModelConfig
    graph: Graph
    weights: Weights


def draw(checkpoint: CheckpointSource, context: int | None = None, *, extends: bool = False) -> DrawnModel:
    """Find the architecture, bind its names, check every shape, draw the graph.

    `context` is the longest text that will be served, at most the model's own limit, which is taken if it is None. A
    model with dynamic rope `extends` that limit if it is told to.
    """
    arch = find_architecture(checkpoint)
    config = read_config(checkpoint, arch.keys, arch.config)
    if context and extends and any(rope.kind == "dynamic" for rope in config.ropes.values()):
        config = replace(config, max_context=context)
    context = min(context or config.max_context, config.max_context)
    weights = bind_weights(checkpoint, config, arch.names)
    config = replace(config, tied=weights["head"] is weights["embed"]).complete(weights)
    if config.alibi:
        weights[SLOPES] = computed_weight(SLOPES, config.alibi * alibi_slopes(config.num_heads))
    for kind, rope in config.ropes.items():
        name = f"rope.{kind}"
        frequencies = _frequencies(checkpoint, rope, context, has_divisors=kind != SLIDING)
        weights[name] = computed_weight(name, frequencies)
    graph = Graph.over(weights)
    arch.draw(graph, config)
    unused = set(weights) - set(graph.weight_names())
    if forgotten := {name for name in unused if not name.startswith("rope.")}:
        raise TypeError(f"{arch.name} names weights that it does not draw: {', '.join(sorted(forgotten))}")
    used = {name: weight for name, weight in weights.items() if name not in unused}  # a rope may be that of no layer
    return DrawnModel(arch.name, config, graph, used)


def _frequencies(checkpoint: CheckpointSource, rope: RopeConfig, context: int, *, has_divisors: bool) -> Array:
    """float32 [pairs]. GGUF files have the factors of llama3 and longrope as a tensor with a divisor for each pair."""
    frequencies = rope.frequencies(context)
    if rope.kind in ("dynamic", "longrope"):
        logger.info(
            "The frequencies of rope (%s) are those for texts of %d tokens. Set max_context to choose others.",
            rope.kind,
            context,
        )
    length = "long" if context > rope.original_context else "short"
    names = ("rope_freqs.weight", f"rope_factors_{length}.weight") if checkpoint.container == "gguf" else ()
    name = next((each for each in names if has_divisors and each in checkpoint.tensors), None)
    if name is None:
        return frequencies
    divisors = checkpoint.tensors[name].dequantize()
    if divisors.shape != frequencies.shape:
        found, expected = format_shape(divisors.shape), format_shape(frequencies.shape)
        raise BadCheckpoint(f"The tensor {name} is {found}; by the configuration it is {expected}.")
    if not (np.isfinite(divisors) & (divisors > 0)).all():
        raise BadCheckpoint(f"The tensor {name} has divisors that are not above 0.")
    return (frequencies / divisors).astype(np.float32)
