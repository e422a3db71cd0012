"""Toys of Ministral."""

from tests.models.case import Case

KIND = "MinistralForCausalLM"
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
CASES = {
    "ministral": Case(KIND, {"sliding_window": 11, "layer_types": LAYERS, "num_hidden_layers": 3, "head_dim": 8}),
    "ministral-windows": Case(KIND, {"sliding_window": 7, "head_dim": 12}),
}
GGUF = None
