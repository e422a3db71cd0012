"""OLMo 2: norms after each block, and on the whole width of queries and keys."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import TensorName
from quire.models.registry import architecture

NAMES = LLAMA_NAMES.but(
    {
        "attn.norm": None,
        "mlp.norm": None,
        "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("q",)),
        "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("kv",)),
        "attn.post_norm": TensorName("post_attention_layernorm", "post_attention_norm", ("hidden",)),
        "mlp.post_norm": TensorName("post_feedforward_layernorm", "post_ffw_norm", ("hidden",)),
    }
)
CONFIG = LLAMA_CONFIG.override(ignores=["mlp_bias"], defaults={"rms_norm_eps": 1e-5, "eos_token_id": 50279})
# These files are OLMo 2, or OLMo 3 if they have a window.
GGUF = LLAMA_GGUF.override(
    reads=["rope.freq_base_swa"],
    defaults={"attention.sliding_window_pattern": 4},
    rope=RopeRules(by_layer_type=True),
)


@architecture("Olmo2ForCausalLM", model_type="olmo2", gguf="olmo2", names=NAMES, keys=ConfigKeys(CONFIG, GGUF))
def olmo2(g: Graph, c: ModelConfig) -> Value:
    """Each block reads the residual stream as it is; its output is normed, then added."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = attend(g, c, layer, x, head_norm="wide")
        x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
        x = g.add(x, g.rms_norm(gated_mlp(g, layer, x, "silu"), layer["mlp.post_norm"], eps=c.norm_eps))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
