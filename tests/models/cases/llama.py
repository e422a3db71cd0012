"""Toys of Llama."""

from tests.models.case import LLAMA3, YARN, Case, Conversion, llama3_divisors, pair_heads, rope

KIND = "LlamaForCausalLM"
CASES = {
    "llama": Case(KIND),
    "llama-tied-biased": Case(KIND, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-llama3": Case(KIND, {**LLAMA3, "num_hidden_layers": 3}),
    "llama-linear": Case(KIND, rope("linear", factor=4.0)),
    "llama-yarn": Case(KIND, YARN),
    "llama-wide-heads": Case(KIND, {"head_dim": 20, "num_key_value_heads": 1}),
}
GGUF = Conversion("llama", tensor=pair_heads, extra=llama3_divisors)
