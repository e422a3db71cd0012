"""Toys of Phi-3."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys, rope

KIND = "Phi3ForCausalLM"
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 3.5, 4.5]}
LONG = {"original_max_position_embeddings": 64, **rope("longrope", **FACTORS)}
CASES = {
    "phi3": Case(KIND, {"sliding_window": 9, **TOKENS, **rope("default", partial_rotary_factor=0.5)}),
    "phi3-longrope": Case(KIND, {**TOKENS, **LONG}, min_tokens=65),
}


def _keys(c: Config) -> Keys:
    keys = {
        "rope.scaling.original_context_length": c.original_max_position_embeddings,
        "rope.dimension_count": int(c.rope_parameters["partial_rotary_factor"] * c.hidden_size)
        // c.num_attention_heads,
        "attention.sliding_window": c.sliding_window or 0,
    }
    if c.rope_parameters["rope_type"] == "longrope":
        ratio = c.max_position_embeddings / c.original_max_position_embeddings
        keys["rope.scaling.attn_factor"] = float(
            np.sqrt(1 + np.log(ratio) / np.log(c.original_max_position_embeddings))
        )
    return keys


def _factors(c: Config) -> Arrays:
    if c.rope_parameters["rope_type"] != "longrope":
        return {}
    lengths = ("long", "short")
    return {f"rope_factors_{each}.weight": np.array(FACTORS[f"{each}_factor"], np.float32) for each in lengths}


GGUF = Conversion("phi3", keys=_keys, extra=_factors)
