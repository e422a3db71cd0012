"""StarCoder 2: layer norms, a plain feed-forward block with gelu, biases."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ATTENTION, MLP, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import TensorName
from quire.models.registry import architecture

NAMES = LLAMA_NAMES.but(
    {
        "mlp.gate": None,
        "mlp.up": TensorName("mlp.c_fc", "ffn_up", ("ffn", "hidden")),
        "mlp.down": TensorName("mlp.c_proj", "ffn_down", ("hidden", "ffn")),
    }
).marked("attn.norm", "mlp.norm", "norm", biased=True)
CONFIG = LLAMA_CONFIG.override(
    reads=["sliding_window", "hidden_act"],
    ignores=["attention_bias", "mlp_bias", "residual_dropout", "embedding_dropout"],
    fixed={"norm_type": (None, "layer_norm"), "mlp_type": (None, "default")},
    biases={"use_bias": ATTENTION + MLP},
    spelling={"rms_norm_eps": "norm_epsilon"},
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu_pytorch_tanh", "use_bias": True, "tie_word_embeddings": True,
              "num_key_value_heads": 2, "initializer_range": 0.018042, "eos_token_id": 50256},
)  # fmt: skip
GGUF = LLAMA_GGUF.override(
    spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"},
    defaults={"hidden_act": "gelu_pytorch_tanh"},
)


@architecture(
    "Starcoder2ForCausalLM",
    model_type="starcoder2",
    gguf="starcoder2",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
)
def starcoder2(g: Graph, c: ModelConfig) -> Value:
    """Pre-norm decoder."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)))
        x = g.add(x, mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), c.activation))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
