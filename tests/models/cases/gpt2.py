"""Toys of GPT-2."""

from tests.models.case import TOKENS, Case

KIND = "GPT2LMHeadModel"
CASES = {"gpt2": Case(KIND, {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 1088, **TOKENS})}
GGUF = None
