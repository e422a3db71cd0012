"""Toys of Qwen3."""

from tests.models.case import YARN, Case, Conversion

KIND = "Qwen3ForCausalLM"
CASES = {
    "qwen3": Case(KIND, {"head_dim": 16}),
    "qwen3-yarn-tied": Case(KIND, {"head_dim": 10, "tie_word_embeddings": True, **YARN}),
}
GGUF = Conversion("qwen3")
