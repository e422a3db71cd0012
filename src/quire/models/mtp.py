"""Heads that predict one more token (MTP): layers over the model's hidden rows and the next tokens' embeddings.

norm of the embedding of token i, norm of the hidden row of token i - 1, side by side
→ a matrix → a layer of the model, or two → a norm → the model's head: the logits of token i + 1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.graph.graph import Graph, Layer, Value
from quire.graph.weight import StoredTensor
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.names import GGUF, Names, TensorName
from quire.models.rope import FULL

DrawLayer = Callable[[Graph, Any, Layer, Value], Value]
Tensors = Mapping[str, StoredTensor]


def is_first(c: ModelConfig, layer: int) -> bool:
    """Return whether it is the head's first layer."""
    return layer == 0


def is_last(c: ModelConfig, layer: int) -> bool:
    """Return whether it is the head's last layer."""
    return layer == c.num_layers - 1


# In files that store it as a layer behind the last one: DeepSeek-V3, GLM-4.5, and all GGUF files.
LAYER_ENTRIES = {
    "mtp.embed_norm": TensorName("enorm", "nextn.enorm", ("hidden",), only=is_first),
    "mtp.hidden_norm": TensorName("hnorm", "nextn.hnorm", ("hidden",), only=is_first),
    "mtp.matrix": TensorName("eh_proj", "nextn.eh_proj", ("hidden", "two_hidden"), only=is_first),
    "mtp.norm": TensorName("shared_head.norm", "nextn.shared_head_norm", ("hidden",), only=is_last),
}
# Names beside `mtp.layers`, and those of the same tensors in a layer behind the last one.
_BESIDE_LAYERS = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}
_OWN_LAYER = re.compile(r"^mtp\.layers\.(\d+)\.")
_OF_HEADS = re.compile(r"^mtp\.|\.eh_proj\.|\.nextn\.")


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A checkpoint whose head has the tensor names of layers after the model's last layer."""

    container: str
    metadata: Mapping[str, Any]
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class MtpHead:
    """How an architecture's checkpoints store the head, and how its layers are drawn."""

    draw_layer: DrawLayer
    entries: Mapping[str, TensorName] = field(default_factory=lambda: LAYER_ENTRIES)

    def files_of(self, checkpoint: CheckpointSource, config: ModelConfig) -> HeadFiles | None:
        """Return the checkpoint with the head as layers after the model's last. None: it has no head."""
        container, first = checkpoint.container, config.num_layers
        if container == "dummy":
            return None
        of_layers = self.in_gguf if container == GGUF else in_layers
        tensors = of_layers(checkpoint.tensors, first)
        matrix = f"blk.{first}.nextn.eh_proj.weight" if container == GGUF else f"model.layers.{first}.eh_proj.weight"
        return HeadFiles(container, checkpoint.metadata, tensors) if matrix in tensors else None

    def in_gguf(self, tensors: Tensors, first: int) -> Tensors:
        """Return the tensors of a GGUF file, with those of the head in the layers from `first` on."""
        return tensors

    def refusal(self, config: ModelConfig) -> str:
        """Return why a head of this model cannot draft; empty: it can."""
        return ""

    def names_of(self, names: Names, config: ModelConfig) -> Names:
        """Return the names of the head's tensors: those of a layer, the table and the head, and its own."""
        kept = {word: each for word, each in names.entries.items() if "." in word or word in ("embed", "head")}
        return replace(names, entries={**kept, **self.entries}, first=config.num_layers)

    def config_of(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration of the head: one layer with attention, and experts if the last one has some."""
        changes: dict[str, Any] = {"num_layers": 1, "layer_types": (FULL,), "windows": (None,), "extra_layers": 0}
        if (sparse := getattr(config, "sparse", None)) is not None:
            changes["sparse"] = sparse[-1:]
        return replace(config, **changes)

    def draw(self, g: Graph, c: ModelConfig) -> Value:
        """Draw the head. Its hidden rows are those after its last norm."""
        layers = list(g.layers(c.num_layers))
        first, last = layers[0], layers[-1]
        embedded = g.rms_norm(g.embed("embed"), first["mtp.embed_norm"], eps=c.norm_eps)
        hidden = g.rms_norm(g.features(c.hidden), first["mtp.hidden_norm"], eps=c.norm_eps)
        x = g.linear(g.concat(embedded, hidden), first["mtp.matrix"])
        for layer in layers:
            x = self.draw_layer(g, c, layer, x)
        x = g.outputs["hidden"] = g.rms_norm(x, last["mtp.norm"], eps=c.norm_eps)
        return g.logits(x, "head")


def in_layers(tensors: Tensors, first: int) -> Tensors:
    """Return the tensors of safetensors, with those under `mtp.` in the layers from `first` on."""

    def renamed(name: str) -> str:
        if own := _OWN_LAYER.match(name):
            return f"model.layers.{first + int(own[1])}.{name[own.end() :]}"
        prefix, _, rest = name.partition(".")
        word, _, kind = rest.partition(".")
        is_beside = prefix == "mtp" and word in _BESIDE_LAYERS
        return f"model.layers.{first}.{_BESIDE_LAYERS[word]}.{kind}" if is_beside else name

    return {renamed(name): tensor for name, tensor in tensors.items()}


def head_tensor(checkpoint: CheckpointSource) -> str | None:
    """Return the name of a tensor that only heads have. None: the checkpoint has no such tensor."""
    return next((name for name in checkpoint.tensors if _OF_HEADS.search(name)), None)
