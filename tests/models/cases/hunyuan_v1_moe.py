"""Toys of Hunyuan v1 with experts. Converters write the stretched base of its rope."""

from tests.models.case import TOKENS, Case, Conversion, expert_keys, rope, split_experts
from tests.models.cases.hunyuan_v1_dense import GGUF as DENSE

KIND = "HunYuanMoEV1ForCausalLM"
EXPERTS = {"num_experts": 6, "moe_topk": 2, "head_dim": 8, **TOKENS}
ALPHA = rope("dynamic", factor=1.0, alpha=50.0)
CASES = {
    "hunyuan_moe": Case(KIND, {**EXPERTS, **ALPHA}),
    "hunyuan_moe-lists": Case(
        KIND, {**EXPERTS, "moe_topk": [3, 3], "attention_bias": True, "tie_word_embeddings": True}
    ),
}
GGUF = Conversion(
    "hunyuan-moe",
    keys=lambda c: {
        **DENSE.keys(c),
        **expert_keys(c),
        "expert_count": c.num_experts,
        "expert_used_count": c.moe_topk if isinstance(c.moe_topk, int) else c.moe_topk[0],
        "expert_feed_forward_length": c.intermediate_size,
        "expert_shared_feed_forward_length": c.intermediate_size,
        "expert_shared_count": 1,
    },
    tensor=split_experts,
)
