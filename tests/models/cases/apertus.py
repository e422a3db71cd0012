"""Toys of Apertus. The numbers of its activation are keys in GGUF, without the architecture's name."""

from tests.models.case import LLAMA3, TOKENS, Case, Conversion, llama3_divisors, rope

KIND = "ApertusForCausalLM"
CASES = {
    "apertus": Case(KIND, {"head_dim": 8, **LLAMA3, **TOKENS}),
    "apertus-biased": Case(KIND, {"head_dim": 8, "attention_bias": True, **TOKENS, **rope("default")}),
}
GGUF = Conversion(
    "apertus",
    tensor=lambda name, array, c: None if ".act_fn." in name else array,
    extra=llama3_divisors,
    numbers={f"xielu.{name}": f"mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
)
