"""GLM: Llama with one matrix for gate and up, and rope in pairs of the first half of each head."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import QKV, ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import FUSED_QKV, parts_of
from quire.models.registry import architecture

GATE_UP = {"mlp.gate": "ffn", "mlp.up": "ffn"}
GLM_NAMES = LLAMA_NAMES.but(parts_of("mlp.gate_up_proj", "ffn_up", GATE_UP), layouts=FUSED_QKV)
PARTIAL = RopeRules(is_partial=True)
CONFIG = LLAMA_CONFIG.override(
    ignores=["mlp_bias"],
    defaults={
        "attention_bias": True,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5,
        "eos_token_id": [151329, 151336, 151338],
    },
    rope=PARTIAL,
    biases={"attention_bias": QKV},
)
GLM_KEYS = ConfigKeys(CONFIG, LLAMA_GGUF.override(rope=PARTIAL))


@architecture("GlmForCausalLM", model_type="glm", gguf="chatglm", names=GLM_NAMES, keys=GLM_KEYS)
def glm(g: Graph, c: ModelConfig) -> Value:
    """Pre-norm decoder."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, interleaved=True))
        x = g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
