"""Turns a checkpoint into a model that a device can lower. Nothing large is read: weights stay handles until then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.graph.graph import Graph, Value
from quire.graph.weight import Weight, Weights, computed_weight
from quire.models.alibi import alibi_slopes
from quire.models.answers import answer_ids, bind_answers
from quire.models.config import SLOPES, CheckpointSource, ModelConfig
from quire.models.describe import describe
from quire.models.embedding import draw_modules, modules_of, pooling_of, unpooled
from quire.models.errors import BadCheckpoint
from quire.models.mtp import head_tensor
from quire.models.names import bind_weights
from quire.models.rope import SLIDING, RopeConfig
from quire.models.source import DrawnSource, draw_source
from quire.ops.registry import format_shape
from quire.types.kinds import PoolKind

Array = NDArray[Any]
logger = logging.getLogger("quire.models")


@dataclass(frozen=True, slots=True)
class DrawnModel:
    """A model's graph and weights: the input of `Device.lower` and of the interpreter."""

    architecture: str
    config: ModelConfig
    graph: Graph
    weights: Weights
    context: int  # the longest text that it was drawn for
    pool: PoolKind | None = None  # how pooled requests are pooled; None: there are none
    source: DrawnSource | None = None  # of an encoder-decoder: what computes the sources that it reads

    @property
    def is_encoder(self) -> bool:
        """Does it read a text as a whole, and keep nothing of it?"""
        return not self.graph.caches


def trained_context(config: ModelConfig) -> int:
    """Return the context that the model was trained for."""
    return config.max_context


def draw(
    checkpoint: CheckpointSource,
    context: Callable[[ModelConfig], int] = trained_context,
    pooling: str | None = None,
) -> DrawnModel:
    """Find the architecture, bind its weights, check every shape, draw the graph.

    `context` returns the longest text that will be served. Ropes whose factors depend on the length of the text choose
    them by it, once: another choice for each text would allow no cache hits. `pooling`: how vectors of tokens become
    one, as the user sets it; None: as the model's files say.
    """
    modules = modules_of(checkpoint)
    pool, answers = pooling_of(checkpoint, pooling), answer_ids(checkpoint)
    checkpoint, arch, config = describe(checkpoint)
    weights = bind_weights(checkpoint, config, arch.names)
    config = replace(config, tied=weights.get("head") is weights["embed"]).complete(weights)
    if config.alibi:
        weights[SLOPES] = computed_weight(SLOPES, config.alibi * alibi_slopes(config.num_heads))
    if answers:
        bind_answers(weights, answers)
    pool = config.classifier_pool if answers or "score" in weights else pool
    if pool is None and "head" not in weights:
        raise unpooled(arch.name)

    def draw_pooled(graph: Graph, config: ModelConfig) -> Value:
        graph.pools = pool is not None
        out = arch.draw(graph, config)
        if "pooled" in graph.outputs:
            draw_modules(graph, modules, weights)
        return out

    model = drawn(checkpoint, arch.name, config, weights, context(config), draw_pooled)
    source = None if arch.source is None else draw_source(checkpoint, model.config, arch.source)
    return replace(model, pool=pool, source=source)


def draw_mtp(checkpoint: CheckpointSource, length: int) -> DrawnModel | None:
    """Draw the head of a model that predicts one more token (MTP), for texts up to `length`. None: it has none.

    Its graph reads the model's hidden rows as features. Of several such layers it is the first.
    """
    checkpoint, arch, config = describe(checkpoint)
    head = arch.mtp
    files = None if head is None else head.files_of(checkpoint, config)
    if head is None or files is None or (why := head.refusal(config)):
        if (tensor := head_tensor(checkpoint)) is not None:
            reason = f"heads of {arch.name} are not supported" if head is None or files is None else why
            logger.warning("the model's MTP head (%s, …) is not used: %s", tensor, reason)
        return None
    names, config = head.names_of(arch.names, config), head.config_of(config)
    weights = bind_weights(files, config, names, is_part=True)
    config = replace(config, tied=weights["head"] is weights["embed"]).complete(weights)
    return drawn(files, f"{arch.name} (MTP)", config, weights, length, head.draw)


def drawn(
    checkpoint: CheckpointSource,
    name_of_model: str,
    config: ModelConfig,
    weights: dict[str, Weight],
    length: int,
    draw_graph: Callable[[Graph, Any], Value],
) -> DrawnModel:
    """Draw a graph over these weights, for texts up to `length`, and drop the weights that it does not use."""
    config = replace(config, windows=tuple(None if each and each >= length else each for each in config.windows))
    for kind, rope in config.ropes.items():
        name = f"rope.{kind}"
        if choice := rope.choice(length):
            logger.info("rope of type %s with %s", rope.kind, choice)
        frequencies = _frequencies(checkpoint, rope, length, has_divisors=kind != SLIDING)
        weights[name] = computed_weight(name, frequencies)
    graph = Graph.over(weights)
    draw_graph(graph, config)
    unused = set(weights) - set(graph.weight_names())
    if forgotten := {name for name in unused if not name.startswith("rope.")}:
        raise TypeError(f"{name_of_model} names weights that it does not draw: {', '.join(sorted(forgotten))}")
    used = {name: weight for name, weight in weights.items() if name not in unused}  # a rope may be that of no layer
    return DrawnModel(name_of_model, config, graph, used, length)


def _frequencies(checkpoint: CheckpointSource, rope: RopeConfig, context: int, *, has_divisors: bool) -> Array:
    """Return the frequencies, float32 [pairs]. GGUF stores the factors of llama3 and longrope as divisors of them."""
    frequencies = rope.frequencies(context)
    length = "long" if context > rope.original_context else "short"
    names = ("rope_freqs.weight", f"rope_factors_{length}.weight") if checkpoint.container == "gguf" else ()
    name = next((each for each in names if has_divisors and each in checkpoint.tensors), None)
    if name is None:
        return frequencies
    divisors = checkpoint.tensors[name].dequantize()
    if divisors.shape != frequencies.shape:
        found, expected = format_shape(divisors.shape), format_shape(frequencies.shape)
        raise BadCheckpoint(f"The tensor {name} is {found}; by the configuration it must be {expected}.")
    if not (np.isfinite(divisors) & (divisors > 0)).all():
        raise BadCheckpoint(f"The tensor {name} has divisors that are not positive numbers.")
    return (frequencies / divisors).astype(np.float32)
