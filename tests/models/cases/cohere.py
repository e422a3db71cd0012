"""Toys of Cohere. GGUF has no key for norms of heads: files that have them have their tensors."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "CohereForCausalLM"
CASES = {
    "cohere": Case(KIND, {**TOKENS}),
    "cohere-normed-heads": Case(KIND, {"use_qk_norm": True, "logit_scale": 0.5, **TOKENS}),
}
GGUF = Conversion("command-r", keys=lambda c: {"logit_scale": c.logit_scale, "rope.scaling.type": "none"})
