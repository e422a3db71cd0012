"""EAGLE-3 heads as their authors publish them: one layer of Llama over the hidden rows of three layers of a model.

a matrix of three hidden rows side by side (part of the model's graph)
→ norm of the token's embedding and norm of that row, side by side → attention, added to the row
→ feed-forward → a norm → logits of the likeliest tokens alone: `d2t` maps these to tokens of the model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from quire.graph.graph import Graph, Value
from quire.graph.weight import StoredTensor, Weight
from quire.models.blocks import attend, gated_mlp
from quire.models.config import CheckpointSource, ModelConfig, read_config
from quire.models.draw import DrawnModel, drawn
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.models.hidden import keep_fused_rows
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES
from quire.models.names import TensorName, bind_weights
from quire.models.values import Values

Array = NDArray[Any]
ARCHITECTURE = "LlamaForCausalLMEagle3"
TO_TOKEN, IS_DRAFTED = "d2t", "t2d"  # the distance from a token of the head to that of the model; which tokens it has
FUSION, TABLE = "fc", "embed"
NEUTRAL: tuple[Any, ...] = (None, False, {}, [])
NESTED, LAYERS, READS_LAYERS = "eagle_config", "eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"
CONFIG = LLAMA_CONFIG.override(
    reads=["draft_vocab_size", NESTED, LAYERS],  # the last two are checked by `_layers_read`
    fixed={"norm_before_residual": NEUTRAL},
    ignores=["target_hidden_size"],  # the shape of the matrix has it too
)
_WIDE = {
    f"attn.{word}": TensorName(f"self_attn.{word}_proj", None, (rows, "two_hidden"))
    for word, rows in (("q", "q"), ("k", "kv"), ("v", "kv"))
}
NAMES = LLAMA_NAMES.but(
    {
        **_WIDE,
        "attn.hidden_norm": TensorName("hidden_norm", None, ("hidden",)),
        FUSION: TensorName("model.fc", None, ("hidden", "fused")),
        "head": TensorName("lm_head", None, ("draft_vocab", "hidden")),
    }
)
# Names of published files -> those above.
RENAMED = {"midlayer.": "model.layers.0.", "layers.0.": "model.layers.0.", "fc.": "model.fc.", "norm.": "model.norm.",
           "embed_tokens.": "model.embed_tokens."}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(ModelConfig):
    """With the size of the head's own vocabulary."""

    draft_vocab: int

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**base, draft_vocab=values.size("draft_vocab_size", base["vocab_size"]))

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        own = {"draft_vocab": self.draft_vocab, "fused": 3 * self.hidden}
        return {**ModelConfig.sizes(self, layer), **own}


class EagleFile(NamedTuple):
    """A published file with the names that we have for its tensors."""

    container: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


class EagleHead(NamedTuple):
    """A head, the model with the output that the head reads, and the model's tokens by those of the head."""

    head: DrawnModel
    target: DrawnModel
    to_token: Array | None


def is_eagle3(checkpoint: CheckpointSource) -> bool:
    """Is this the checkpoint of an EAGLE-3 head?"""
    return checkpoint.container == "safetensors" and ARCHITECTURE in (checkpoint.metadata.get("architectures") or ())


def draw_eagle3(checkpoint: CheckpointSource, target: DrawnModel) -> EagleHead:
    """Draw a head for this model, and the output that the model needs for it."""
    file = EagleFile("safetensors", checkpoint.metadata, {_ours(name): t for name, t in checkpoint.tensors.items()})
    config = read_config(file, ConfigKeys(CONFIG), Eagle3Config)
    assert isinstance(config, Eagle3Config)
    _check(config, target)
    config = replace(config, tied=False, vocab_size=target.config.vocab_size)
    has_table = "model.embed_tokens.weight" in file.tensors
    names = NAMES if has_table else NAMES.but({TABLE: None})
    weights = bind_weights(file, config, names.but(ignored=rf"^({TO_TOKEN}|{IS_DRAFTED})$"))
    matrix: Weight = weights.pop(FUSION)
    if not has_table:
        weights[TABLE] = target.weights[TABLE]
    tapped = keep_fused_rows(target, _layers_read(file.metadata, target.config.num_layers), matrix)
    head = drawn(file, ARCHITECTURE, config, weights, target.context, draw_head)
    return EagleHead(head, tapped, _tokens(file, config, target.config.vocab_size))


def draw_head(g: Graph, c: Eagle3Config) -> Value:
    """Draw the head. Its hidden rows are those before its last norm."""
    (layer,) = g.layers(1)
    row = g.features(c.hidden)
    embedded = g.rms_norm(g.embed(TABLE), layer["attn.norm"], eps=c.norm_eps)
    both = g.concat(embedded, g.rms_norm(row, layer["attn.hidden_norm"], eps=c.norm_eps))
    x = g.add(row, attend(g, c, layer, both))
    x = g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))
    g.outputs["hidden"] = x
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")


def _ours(name: str) -> str:
    return next((ours + name.removeprefix(theirs) for theirs, ours in RENAMED.items() if name.startswith(theirs)), name)


def _check(config: Eagle3Config, target: DrawnModel) -> None:
    """Refuse a head of another model."""
    if config.num_layers != 1:
        raise UnsupportedModel(f"The EAGLE-3 head has num_hidden_layers = {config.num_layers}; supported is 1.")
    for what, own, others in (
        ("hidden size", config.hidden, target.config.hidden),
        ("vocabulary", config.vocab_size, target.config.vocab_size),
    ):
        if own != others:
            raise UnsupportedModel(
                f"The EAGLE-3 head has a {what} of {own}, and the model ({target.architecture}) has {others}: it is a "
                "head of another model."
            )
    if target.config.num_layers < 6:
        raise UnsupportedModel(
            f"The model has {target.config.num_layers} layers; an EAGLE-3 head reads three of at least 6."
        )


def _layers_read(metadata: Mapping[str, Any], num_layers: int) -> tuple[int, int, int]:
    """Return the layers whose inputs the head reads. Refuses a head that names others.

    Published files count in two ways: the layers whose inputs are read, or those whose outputs are, one less.
    """
    layers = (2, num_layers // 2, num_layers - 3)
    nested = metadata.get(NESTED) or {}
    if not isinstance(nested, Mapping):
        raise UnsupportedModel(f"The EAGLE-3 head has {NESTED} = {nested!r}, which is not supported.")
    for name, value in nested.items():
        if name not in (LAYERS, READS_LAYERS) or (name == READS_LAYERS and not value):
            raise UnsupportedModel(f"The EAGLE-3 head has {NESTED}.{name} = {value!r}, which is not supported.")
    known = [list(layers), [layer - 1 for layer in layers]]
    for given in (metadata.get(LAYERS), nested.get(LAYERS)):
        if given and given not in known:
            raise UnsupportedModel(
                f"The EAGLE-3 head has {LAYERS} = {given}; supported for {num_layers} layers: {known[0]} or {known[1]}."
            )
    return layers


def _tokens(file: EagleFile, config: Eagle3Config, vocab_size: int) -> Array | None:
    """Return the model's token of each token of the head. None: they are the same."""
    stored = file.tensors.get(TO_TOKEN)
    if stored is None:
        if config.draft_vocab != vocab_size:
            raise BadCheckpoint(
                f"The EAGLE-3 head has {config.draft_vocab} of {vocab_size} tokens, and lacks {TO_TOKEN}."
            )
        return None
    distances = stored.dequantize().astype(np.int64).reshape(-1)
    if len(distances) != config.draft_vocab:
        raise BadCheckpoint(
            f"The tensor {TO_TOKEN} has {len(distances)} entries; draft_vocab_size is {config.draft_vocab}."
        )
    tokens = np.arange(len(distances)) + distances
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise BadCheckpoint(f"The tensor {TO_TOKEN} maps to tokens outside 0 to {vocab_size - 1}.")
    return tokens
