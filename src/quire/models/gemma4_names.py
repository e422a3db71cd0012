"""The tensors of Gemma 4."""

from __future__ import annotations

from quire.models.gemma4_config import Gemma4Config
from quire.models.gemma4_experts import with_expert_names
from quire.models.llama import LLAMA_NAMES
from quire.models.names import TensorName


def _inputs(name: str, gguf: str, *shape: str) -> TensorName:
    return TensorName(name, gguf, shape, only=Gemma4Config.has_inputs)


LLAMA = LLAMA_NAMES.marked("attn.k", only=Gemma4Config.has_keys)
DENSE = LLAMA.marked("attn.v", only=Gemma4Config.has_values, in_all=False).but(
    {
        "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
        "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",), only=Gemma4Config.has_keys),
        "attn.post_norm": TensorName("post_attention_layernorm", "post_attention_norm", ("hidden",)),
        "mlp.norm": TensorName("pre_feedforward_layernorm", "ffn_norm", ("hidden",)),
        "mlp.post_norm": TensorName("post_feedforward_layernorm", "post_ffw_norm", ("hidden",)),
        "inputs.gate": _inputs("per_layer_input_gate", "inp_gate", "input", "hidden"),
        "inputs.out": _inputs("per_layer_projection", "proj", "hidden", "input"),
        "inputs.norm": _inputs("post_per_layer_input_norm", "post_norm", "hidden"),
        "layer.scale": TensorName("layer_scalar", "layer_output_scale.weight", ("one",), kind=""),
        "inputs_table": _inputs("model.embed_tokens_per_layer", "per_layer_token_embd", "vocab", "inputs"),
        "inputs_linear": _inputs("model.per_layer_model_projection", "per_layer_model_proj", "inputs", "hidden"),
        "inputs_norm": _inputs("model.per_layer_projection_norm", "per_layer_proj_norm", "input"),
    },
    # some files have unused tensors for the keys of layers that share those of others
    ignored=r"\.self_attn\.[kv]_(proj|norm)\.weight$|^blk\.\d+\.attn_(k|v|k_norm)\.weight$",
)
NAMES = with_expert_names(DENSE)
