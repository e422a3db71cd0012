"""Toys of Mistral. Its GGUF files are those of Llama, with a key for the window."""

from tests.models.case import Case, Conversion, pair_heads

KIND = "MistralForCausalLM"
CASES = {
    "mistral-window": Case(KIND, {"sliding_window": 11}),
    "mistral-null": Case(KIND, {"sliding_window": None}),
}
GGUF = Conversion("llama", keys=lambda c: {"attention.sliding_window": c.sliding_window}, tensor=pair_heads)
