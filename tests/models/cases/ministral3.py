"""Toys of Ministral 3. GGUF has no key for its window, nor for the first mscale."""

from tests.models.case import TOKENS, Case, Conversion, pair_heads, rope

KIND = "Ministral3ForCausalLM"
SCALED = {"factor": 4.0, "original_max_position_embeddings": 24, "llama_4_scaling_beta": 0.3}
CASES = {
    "ministral3": Case(KIND, {"head_dim": 8, **TOKENS, **rope("yarn", mscale=1.0, mscale_all_dim=0.7, **SCALED)}),
    "ministral3-window": Case(
        KIND,
        {"head_dim": 10, "sliding_window": 9, **TOKENS, **rope("yarn", mscale=0.8, mscale_all_dim=0.5, **SCALED)},
        in_gguf=False,
    ),
}
GGUF = Conversion(
    "mistral3",
    keys=lambda c: {
        "rope.scaling.yarn_log_multiplier": c.rope_parameters["mscale_all_dim"],
        "attention.temperature_scale": c.rope_parameters["llama_4_scaling_beta"],
    },
    tensor=pair_heads,
)
