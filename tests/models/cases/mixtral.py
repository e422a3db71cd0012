"""Toys of Mixtral. In GGUF it is a Llama with experts."""

from tests.models.case import Case, Conversion, expert_keys, pair_heads, split_experts

KIND = "MixtralForCausalLM"
CASES = {
    "mixtral": Case(KIND, {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40}),
    "mixtral-all": Case(KIND, {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 7}, in_gguf=False),
}
GGUF = Conversion(
    "llama", keys=expert_keys, tensor=lambda name, array, c: split_experts(name, pair_heads(name, array, c), c)
)
