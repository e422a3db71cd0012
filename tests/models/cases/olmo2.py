"""Toys of Olmo2."""

from tests.models.case import TOKENS, Case

KIND = "Olmo2ForCausalLM"
CASES = {"olmo2": Case(KIND, {**TOKENS})}
GGUF = None
