"""Toys of OLMo 3. Its GGUF files are those of OLMo 2, with keys for the windows."""

from tests.models.case import TOKENS, Case, Conversion, rope_keys

KIND = "Olmo3ForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = {"num_hidden_layers": 4, "sliding_window": 9}
YARN = {
    FULL: {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
CASES = {
    "olmo3": Case(KIND, {**LAYERS, **TOKENS}),
    "olmo3-yarn": Case(KIND, {**LAYERS, "layer_types": [FULL, SLIDING] * 2, "rope_parameters": YARN, **TOKENS}),
}
GGUF = Conversion(
    "olmo2",
    keys=lambda c: {
        **rope_keys(c.rope_parameters[FULL]),
        "rope.freq_base_swa": c.rope_parameters[SLIDING]["rope_theta"],
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": [each == SLIDING for each in c.layer_types],
    },
)
