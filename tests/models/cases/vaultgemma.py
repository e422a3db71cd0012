"""Toys of VaultGemma."""

from tests.models.case import Case

KIND = "VaultGemmaForCausalLM"
CASES = {
    "vaultgemma": Case(
        KIND, {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 7, "query_pre_attn_scalar": 10}
    ),
}
GGUF = None
