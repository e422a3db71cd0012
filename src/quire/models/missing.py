"""Why some architectures that users ask for cannot be run: what they compute that no op here does."""

from __future__ import annotations

_INDEXER = "its attention reads only the tokens that an indexer selects (index_topk)"

# by the names in safetensors and in GGUF files
REASONS = {
    **dict.fromkeys(("DeepseekV32ForCausalLM", "deepseek32"), _INDEXER),
    **dict.fromkeys(("GlmMoeDsaForCausalLM", "glm-dsa"), _INDEXER),
    **dict.fromkeys(
        ("DeepseekV4ForCausalLM", "deepseek4"),
        "its attention reads compressed tokens that an indexer selects, and it has several residual streams",
    ),
    **dict.fromkeys(
        ("PhimoeForCausalLM", "phimoe"), "its router weighs experts by a softmax over those near the best (sparsemixer)"
    ),
}
