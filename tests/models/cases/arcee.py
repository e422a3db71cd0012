"""Toys of Arcee."""

from tests.models.case import TOKENS, Case

KIND = "ArceeForCausalLM"
CASES = {"arcee": Case(KIND, {"head_dim": 8, **TOKENS})}
GGUF = None
