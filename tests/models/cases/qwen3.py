"""Toys of Qwen3. GGUF has no key for its window."""

from tests.models.case import YARN, Case, Conversion

KIND = "Qwen3ForCausalLM"
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
CASES = {
    "qwen3": Case(KIND, {"head_dim": 16}),
    "qwen3-yarn-tied": Case(KIND, {"head_dim": 10, "tie_word_embeddings": True, **YARN}),
    "qwen3-window": Case(KIND, {"head_dim": 16, **WINDOW}, in_gguf=False),
}
GGUF = Conversion("qwen3")
