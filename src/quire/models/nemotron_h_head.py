"""The head of Nemotron 3 that predicts one more token: as every layer is one block, it is several layers.

In GGUF files its two layers, with attention and with experts, are one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from quire.models.config import ModelConfig
from quire.models.hybrid import LINEAR
from quire.models.mtp import LAYER_ENTRIES, DrawLayer, MtpHead, Tensors
from quire.models.names import TensorName
from quire.models.nemotron_h import nemotron_h_layer
from quire.models.nemotron_h_config import MOE, NemotronHConfig

ENTRIES = {**LAYER_ENTRIES, "mtp.norm": replace(LAYER_ENTRIES["mtp.norm"], safetensors="final_layernorm")}
# In the head's block of GGUF files: the starts of the names of tensors of its second layer, and the norm before it.
_OF_EXPERTS = ("ffn_", "exp_probs_b.", "nextn.shared_head_norm.")
_NORM = "post_attention_norm."


@dataclass(frozen=True, slots=True)
class NemotronHead(MtpHead):
    """A head whose layers the configuration lists."""

    draw_layer: DrawLayer = nemotron_h_layer
    entries: Mapping[str, TensorName] = field(default_factory=lambda: ENTRIES)

    def in_gguf(self, tensors: Tensors, first: int) -> Tensors:
        """Return the tensors with the block of the head as two layers."""

        def renamed(name: str) -> str:
            own = name.removeprefix(f"blk.{first}.")
            if own == name or not own.startswith((*_OF_EXPERTS, _NORM)):
                return name
            word = f"attn_norm.{own.removeprefix(_NORM)}" if own.startswith(_NORM) else own
            return f"blk.{first + 1}.{word}"

        return {renamed(name): tensor for name, tensor in tensors.items()}

    def refusal(self, config: ModelConfig) -> str:
        """A mixer has a state, which cannot go back behind a rejected draft."""
        assert isinstance(config, NemotronHConfig)
        return "it has a mixer, whose state cannot go back" if LINEAR in config.head_types else ""

    def config_of(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration with the layers of the head."""
        assert isinstance(config, NemotronHConfig)
        types = config.head_types
        sparse, windows = tuple(each == MOE for each in types), (None,) * len(types)
        return replace(config, num_layers=len(types), layer_types=types, windows=windows, sparse=sparse, extra_layers=0)
