"""Toys of Nemotron."""

from tests.models.case import TOKENS, Case

KIND = "NemotronForCausalLM"
CASES = {"nemotron": Case(KIND, {"head_dim": 8, "norm_eps": 1e-5, **TOKENS})}
GGUF = None
