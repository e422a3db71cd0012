"""Gemma: Llama with scaled embeddings, norms of 1 + w and gelu."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import Stored, TensorName
from quire.models.registry import architecture


def gemma_norm(name: str, gguf: str, size: str = "hidden") -> TensorName:
    """A norm of which safetensors store w of 1 + w, and GGUF files the sum."""
    return TensorName(Stored(name, added=1.0), gguf, (size,))


NAMES = LLAMA_NAMES.but(
    {
        "attn.norm": gemma_norm("input_layernorm", "attn_norm"),
        "mlp.norm": gemma_norm("post_attention_layernorm", "ffn_norm"),
        "norm": gemma_norm("model.norm", "output_norm"),
    }
)
GELU = ("gelu_pytorch_tanh", "gelu")  # the first files say gelu and mean the approximation
GEMMA_CONFIG = LLAMA_CONFIG.override(
    ignores=["mlp_bias"],
    fixed={
        "hidden_act": GELU,
        "hidden_activation": (None, "gelu_pytorch_tanh"),
        "use_bidirectional_attention": (None, False),
    },
    defaults={"head_dim": 256, "tie_word_embeddings": True, "eos_token_id": 1},
)
CONFIG = GEMMA_CONFIG.override(defaults={"num_key_value_heads": 16})


@architecture("GemmaForCausalLM", model_type="gemma", gguf="gemma", names=NAMES, keys=ConfigKeys(CONFIG, LLAMA_GGUF))
def gemma(g: Graph, c: ModelConfig) -> Value:
    """Pre-norm decoder."""
    x = g.scale(g.embed("embed"), c.hidden**0.5)
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))
        x = g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
