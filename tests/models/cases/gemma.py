"""Toys of Gemma."""

from tests.models.case import Case, Conversion

KIND = "GemmaForCausalLM"
CASES = {
    "gemma": Case(KIND, {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma-biased": Case(
        KIND, {"head_dim": 8, "attention_bias": True, "hidden_act": "gelu_pytorch_tanh"}, in_gguf=False
    ),
}
GGUF = Conversion("gemma", tensor=lambda name, array, c: array + 1 if name.endswith("norm.weight") else array)
