"""Toys of Granite-MoE. GGUF has no key for the size of its heads."""

import numpy as np

from tests.models.case import TOKENS, Case, Config, Conversion, expert_keys, pair_heads, split_experts
from tests.models.cases.granite import FACTORS
from tests.models.cases.granite import GGUF as GRANITE

KIND = "GraniteMoeForCausalLM"
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 40, **TOKENS}
CASES = {
    "granitemoe": Case(KIND, {**EXPERTS, **FACTORS}),
    "granitemoe-biased": Case(KIND, {**EXPERTS, "attention_bias": True, "tie_word_embeddings": True}),
}


def tensors(name: str, array: np.ndarray, c: Config) -> np.ndarray | dict[str, np.ndarray]:
    """Gate and up apart, those of the shared expert too."""
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(array, 2)
        stem = name.replace("shared_mlp.input_linear.weight", "mlp.shared_expert")
        return {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
    if name.endswith("shared_mlp.output_linear.weight"):
        return {name.replace("shared_mlp.output_linear", "mlp.shared_expert.down_proj"): array}
    found = split_experts(name, pair_heads(name, array, c), c)
    both = found if isinstance(found, dict) else {name: found}
    renamed = {"block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight"}
    return {_renamed(each.replace("block_sparse_moe.experts", "mlp.experts"), renamed): both[each] for each in both}


def _renamed(name: str, ends: dict[str, str]) -> str:
    return next((name.removesuffix(old) + new for old, new in ends.items() if name.endswith(old)), name)


GGUF = Conversion("granitemoe", keys=lambda c: {**GRANITE.keys(c), **expert_keys(c)}, tensor=tensors)
