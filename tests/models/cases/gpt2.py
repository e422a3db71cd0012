"""Toys of GPT-2. GGUF stores matrices the other way round."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "GPT2LMHeadModel"
CASES = {"gpt2": Case(KIND, {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 1088, **TOKENS})}
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
GGUF = Conversion(
    "gpt2",
    keys=lambda c: {"feed_forward_length": 4 * c.n_embd},
    tensor=lambda name, array, c: (
        array.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else array
    ),
)
