"""Toys of Qwen2. GGUF has no key for its window."""

from tests.models.case import Case, Conversion

KIND = "Qwen2ForCausalLM"
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
CASES = {
    "qwen2": Case(KIND, {"tie_word_embeddings": True}),
    "qwen2-window": Case(KIND, WINDOW, in_gguf=False),
}
GGUF = Conversion("qwen2")
