"""Heads that predict one more token (MTP): a layer over the model's hidden rows and the next tokens' embeddings.

norm of the embedding of token i, norm of the hidden row of token i - 1, side by side
→ a matrix → a layer of the model → a norm → the model's head: the logits of token i + 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.graph.graph import Graph, Layer, Value
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.names import GGUF, Names, TensorName
from quire.models.rope import FULL

DrawLayer = Callable[[Graph, Any, Layer, Value], Value]

# In files that store it as a layer behind the last one: DeepSeek-V3, GLM-4.5.
LAYER_ENTRIES = {
    "mtp.embed_norm": TensorName("enorm", "nextn.enorm", ("hidden",)),
    "mtp.hidden_norm": TensorName("hnorm", "nextn.hnorm", ("hidden",)),
    "mtp.matrix": TensorName("eh_proj", "nextn.eh_proj", ("hidden", "two_hidden")),
    "mtp.norm": TensorName("shared_head.norm", "nextn.shared_head_norm", ("hidden",)),
}


@dataclass(frozen=True, slots=True)
class MtpHead:
    """How an architecture's checkpoints store the head, and how its layer is drawn."""

    draw_layer: DrawLayer
    entries: Mapping[str, TensorName] = field(default_factory=lambda: LAYER_ENTRIES)
    layers: str | None = None  # prefix of the head's layers in safetensors; None: they follow the model's
    in_gguf: bool = True  # GGUF files store it, as further layers

    @property
    def _prefix(self) -> str:
        return "mtp." if self.layers is None else "mtp_"

    def is_in(self, checkpoint: CheckpointSource, config: ModelConfig) -> bool:
        """Has the checkpoint a head?"""
        container = checkpoint.container
        if container == "dummy" or (container == GGUF and not self.in_gguf):
            return False
        if self.layers is None and not config.extra_layers:
            return False
        stored = self.entries[f"{self._prefix}matrix"].stored(container)
        assert stored is not None
        layer = 0 if self.layers is None else None
        return self.names_of(Names({}), config).full_name(container, stored.name, layer, "weight") in checkpoint.tensors

    def names_of(self, names: Names, config: ModelConfig) -> Names:
        """Return the names of the head's tensors: those of a layer, the table and the head, and its own."""
        kept = {word: each for word, each in names.entries.items() if "." in word or word in ("embed", "head")}
        if self.layers is None:
            return replace(names, entries={**kept, **self.entries}, first=config.num_layers)
        return replace(names, entries={**kept, **self.entries}, layers=self.layers)

    def config_of(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration of the head: one layer with attention, and experts if the last one has some."""
        changes: dict[str, Any] = {"num_layers": 1, "layer_types": (FULL,), "windows": (None,), "extra_layers": 0}
        if (sparse := getattr(config, "sparse", None)) is not None:
            changes["sparse"] = sparse[-1:]
        return replace(config, **changes)

    def draw(self, g: Graph, c: ModelConfig) -> Value:
        """Draw the head. Its hidden rows are those after its last norm."""
        (layer,) = g.layers(1)
        roles = ("embed_norm", "hidden_norm", "matrix", "norm")
        words = (f"{self._prefix}{role}" for role in roles)
        embed_norm, hidden_norm, matrix, last_norm = (layer[word] if "." in word else word for word in words)
        embedded = g.rms_norm(g.embed("embed"), embed_norm, eps=c.norm_eps)
        hidden = g.rms_norm(g.features(c.hidden), hidden_norm, eps=c.norm_eps)
        x = self.draw_layer(g, c, layer, g.linear(g.concat(embedded, hidden), matrix))
        x = g.outputs["hidden"] = g.rms_norm(x, last_norm, eps=c.norm_eps)
        return g.logits(x, "head")
