"""Toys of Seed-OSS."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "SeedOssForCausalLM"
BIASED = {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}
CASES = {
    "seed_oss": Case(KIND, {"head_dim": 10, **TOKENS}),
    "seed_oss-biased": Case(KIND, {"head_dim": 8, **BIASED, **TOKENS}),
}
GGUF = Conversion("seed_oss")
