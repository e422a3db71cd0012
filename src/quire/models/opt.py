"""OPT: learned positions that begin at row 2, layer norms before or after each block, biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ATTENTION, MLP, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, ROPE_KEYS
from quire.models.names import Names, TensorName
from quire.models.registry import architecture
from quire.models.values import Values

FIRST_ROW = 2


def _part(name: str, *shape: str, flags: tuple[str, ...] = ()) -> TensorName:
    """A tensor of models whose configuration has these flags. Norms have biases."""
    return TensorName(name, None, shape, shape == ("hidden",), lambda c, _: all(getattr(c, flag) for flag in flags))


NAMES = Names(
    {
        "embed": _part("model.decoder.embed_tokens", "vocab", "embedding"),
        "positions": _part("model.decoder.embed_positions", "positions", "hidden"),
        "project_in": _part("model.decoder.project_in", "hidden", "embedding", flags=("is_projected",)),
        "attn.norm": _part("self_attn_layer_norm", "hidden", flags=("has_norm_weights",)),
        **{f"attn.{word}": _part(f"self_attn.{word}_proj", "q", "hidden") for word in "qkv"},
        "attn.out": _part("self_attn.out_proj", "hidden", "q"),
        "mlp.norm": _part("final_layer_norm", "hidden", flags=("has_norm_weights",)),
        "mlp.up": _part("fc1", "ffn", "hidden"),
        "mlp.down": _part("fc2", "hidden", "ffn"),
        "norm": _part("model.decoder.final_layer_norm", "hidden", flags=("has_norm_weights", "has_last_norm")),
        "project_out": _part("model.decoder.project_out", "embedding", "hidden", flags=("is_projected",)),
        "head": _part("lm_head", "vocab", "embedding"),
    },
    layers="model.decoder.layers",
)
KEYS = LLAMA_CONFIG.override(
    reads=["hidden_act", "do_layer_norm_before", "_remove_final_layer_norm", "word_embed_proj_dim",
           "layer_norm_elementwise_affine"],
    ignores=["dropout", "layerdrop"],
    lacks=[*ROPE_KEYS, "head_dim", "num_key_value_heads", "rms_norm_eps", "attention_bias", "mlp_bias"],
    biases={"enable_bias": ATTENTION + MLP},
    spelling={"intermediate_size": "ffn_dim", "hidden_act": "activation_function", "initializer_range": "init_std"},
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu", "do_layer_norm_before": True, "enable_bias": True,
              "layer_norm_elementwise_affine": True, "tie_word_embeddings": True, "eos_token_id": 2},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig(ModelConfig):
    """With the width of its embeddings and the places of its norms."""

    embedding: int
    is_projected: bool
    norms_first: bool
    has_last_norm: bool
    has_norm_weights: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        width, first = values.size("word_embed_proj_dim", base["hidden"]), values.flag("do_layer_norm_before")
        base |= {"embedding": width, "is_projected": width != base["hidden"], "norms_first": first}
        base["has_last_norm"] = first and not values.flag("_remove_final_layer_norm")
        return cls(**base, has_norm_weights=values.flag("layer_norm_elementwise_affine"))

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return ModelConfig.sizes(self, layer) | {"embedding": self.embedding, "positions": self.max_context + FIRST_ROW}


@architecture("OPTForCausalLM", model_type="opt", names=NAMES, keys=ConfigKeys(KEYS), config=OptConfig)
def opt(g: Graph, c: OptConfig) -> Value:
    """Each block is normed before it, or the sum is after it."""

    def norm(x: Value, weight: str, is_here: bool) -> Value:
        return g.layer_norm(x, weight if c.has_norm_weights else None, eps=c.norm_eps) if is_here else x

    x = g.linear(g.embed("embed"), "project_in") if c.is_projected else g.embed("embed")
    x = g.add(x, g.embed_positions("positions", offset=FIRST_ROW))
    for layer in g.layers(c.num_layers):
        h = attend(g, c, layer, norm(x, layer["attn.norm"], c.norms_first), rotates=False)
        x = norm(g.add(x, h), layer["attn.norm"], not c.norms_first)
        h = mlp(g, layer, norm(x, layer["mlp.norm"], c.norms_first), c.activation)
        x = norm(g.add(x, h), layer["mlp.norm"], not c.norms_first)
    x = norm(x, "norm", c.has_last_norm)
    return g.logits(g.linear(x, "project_out") if c.is_projected else x, "head")
