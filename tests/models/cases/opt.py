"""Toys of OPT."""

from tests.models.case import TOKENS, Case

KIND = "OPTForCausalLM"
SMALL = {"ffn_dim": 88, "hidden_size": 48, **TOKENS}
CASES = {
    "opt": Case(KIND, {**SMALL}),
    "opt-norm-last": Case(
        KIND, {"do_layer_norm_before": False, "word_embed_proj_dim": 32, "activation_function": "gelu", **SMALL}
    ),
    "opt-plain": Case(
        KIND,
        {"enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False, **SMALL},
    ),
}
GGUF = None
