"""OPT: learned positions that begin at row 2, layer norms before or after each block, biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ATTENTION, MLP, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES, ROPE_KEYS
from quire.models.names import TensorName
from quire.models.registry import architecture
from quire.models.values import Values

FIRST_ROW, HIDDEN = 2, ("hidden",)
NAMES = LLAMA_NAMES.but(
    {
        "embed": TensorName("model.decoder.embed_tokens", None, ("vocab", "width")),
        "positions": TensorName("model.decoder.embed_positions", None, ("positions", "hidden")),
        "project_in": TensorName("model.decoder.project_in", None, ("hidden", "width"), only=lambda c, _: c.projects),
        "attn.norm": TensorName("self_attn_layer_norm", None, HIDDEN, True, lambda c, _: c.has_norm_weights),
        "attn.out": TensorName("self_attn.out_proj", None, ("hidden", "q")),
        "mlp.norm": TensorName("final_layer_norm", None, HIDDEN, True, lambda c, _: c.has_norm_weights),
        "mlp.gate": None, "mlp.up": TensorName("fc1", None, ("ffn", "hidden")),
        "mlp.down": TensorName("fc2", None, ("hidden", "ffn")),
        "norm": TensorName("model.decoder.final_layer_norm", None, HIDDEN, True,
                           lambda c, _: c.has_norm_weights and c.norms_first),
        "project_out": TensorName("model.decoder.project_out", None, ("width", "hidden"), only=lambda c, _: c.projects),
        "head": TensorName("lm_head", None, ("vocab", "width")),
    },
    layers="model.decoder.layers",
)  # fmt: skip
KEYS = LLAMA_CONFIG.override(
    reads=["hidden_act", "do_layer_norm_before", "word_embed_proj_dim", "layer_norm_elementwise_affine"],
    ignores=["dropout", "layerdrop"], fixed={"_remove_final_layer_norm": (False,)},
    lacks=[*ROPE_KEYS, "head_dim", "num_key_value_heads", "rms_norm_eps", "attention_bias", "mlp_bias"],
    biases={"enable_bias": ATTENTION + MLP},
    spelling={"intermediate_size": "ffn_dim", "hidden_act": "activation_function", "initializer_range": "init_std"},
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu", "do_layer_norm_before": True, "enable_bias": True,
              "layer_norm_elementwise_affine": True, "tie_word_embeddings": True, "eos_token_id": 2},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig(ModelConfig):
    """With the width of embeddings and the places of its norms."""

    width: int
    projects: bool
    norms_first: bool
    has_norm_weights: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        width, first = values.size("word_embed_proj_dim", base["hidden"]), values.flag("do_layer_norm_before")
        base |= {"width": width, "projects": width != base["hidden"], "norms_first": first}
        return cls(**base, has_norm_weights=values.flag("layer_norm_elementwise_affine"))

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return ModelConfig.sizes(self, layer) | {"width": self.width, "positions": self.max_context + FIRST_ROW}


@architecture("OPTForCausalLM", model_type="opt", names=NAMES, keys=ConfigKeys(KEYS), config=OptConfig)
def opt(g: Graph, c: OptConfig) -> Value:
    """Each block is normed before it, or the sum is after it."""

    def norm(x: Value, weight: str, is_here: bool) -> Value:
        return g.layer_norm(x, weight if c.has_norm_weights else None, eps=c.norm_eps) if is_here else x

    x = g.linear(g.embed("embed"), "project_in") if c.projects else g.embed("embed")
    x = g.add(x, g.embed_positions("positions", offset=FIRST_ROW))
    for layer in g.layers(c.num_layers):
        h = attend(g, c, layer, norm(x, layer["attn.norm"], c.norms_first), rotates=False)
        x = norm(g.add(x, h), layer["attn.norm"], not c.norms_first)
        h = mlp(g, layer, norm(x, layer["mlp.norm"], c.norms_first), c.activation)
        x = norm(g.add(x, h), layer["mlp.norm"], not c.norms_first)
    h = norm(x, "norm", c.norms_first)
    return g.logits(g.linear(h, "project_out") if c.projects else h, "head")
