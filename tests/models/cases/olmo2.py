"""Toys of OLMo 2."""

from tests.models.case import TOKENS, YARN, Case, Conversion

KIND = "Olmo2ForCausalLM"
CASES = {"olmo2": Case(KIND, {**TOKENS}), "olmo2-yarn": Case(KIND, {**YARN, **TOKENS})}
GGUF = Conversion("olmo2")
