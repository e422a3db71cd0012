"""Toys of Hunyuan v1 dense. Converters write the stretched base of its rope."""

from tests.models.case import TOKENS, Case, Conversion, rope

KIND = "HunYuanDenseV1ForCausalLM"
CASES = {
    "hunyuan": Case(KIND, {"head_dim": 8, **TOKENS, **rope("dynamic", factor=1.0, alpha=50.0)}),
    "hunyuan-biased": Case(KIND, {"head_dim": 10, "attention_bias": True, "tie_word_embeddings": True, **TOKENS}),
}


def _keys(c):
    alpha = c.rope_parameters.get("alpha", 1.0)
    base = c.rope_parameters["rope_theta"] * alpha ** (c.head_dim / (c.head_dim - 2))
    return {"rope.freq_base": base, "rope.scaling.type": "none", "rope.scaling.factor": 1.0}


GGUF = Conversion("hunyuan-dense", keys=_keys)
