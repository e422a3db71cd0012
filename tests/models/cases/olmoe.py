"""Toys of OLMoE. GGUF has no key for renormalized weights."""

from tests.models.case import TOKENS, Case, Conversion, expert_keys, split_experts

KIND = "OlmoeForCausalLM"
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 40, **TOKENS}
CASES = {
    "olmoe": Case(KIND, EXPERTS),
    "olmoe-renormalized-biased": Case(KIND, {**EXPERTS, "norm_topk_prob": True, "attention_bias": True}, in_gguf=False),
}
GGUF = Conversion("olmoe", keys=expert_keys, tensor=split_experts)
