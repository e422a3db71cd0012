"""Nemotron: layer norms with 1 + w, a plain feed-forward block with squared relu, partial rope."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import Stored, TensorName
from quire.models.registry import architecture


def _norm(name: str, gguf: str) -> TensorName:
    return TensorName(Stored(name, added=1.0), gguf, ("hidden",), biased=True)


NAMES = LLAMA_NAMES.but(
    {
        "mlp.gate": None,
        "attn.norm": _norm("input_layernorm", "attn_norm"),
        "mlp.norm": _norm("post_attention_layernorm", "ffn_norm"),
        "norm": _norm("model.norm", "output_norm"),
    }
)
PARTIAL = RopeRules(is_partial=True)
CONFIG = LLAMA_CONFIG.override(
    fixed={"hidden_act": ("relu2",)},
    spelling={"rms_norm_eps": "norm_eps"},
    defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "eos_token_id": 3},
    rope=PARTIAL,
)
GGUF = LLAMA_GGUF.override(spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"}, rope=PARTIAL)


@architecture("NemotronForCausalLM", model_type="nemotron", gguf="nemotron", names=NAMES, keys=ConfigKeys(CONFIG, GGUF))
def nemotron(g: Graph, c: ModelConfig) -> Value:
    """Pre-norm decoder."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)))
        x = g.add(x, mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), "relu2"))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
