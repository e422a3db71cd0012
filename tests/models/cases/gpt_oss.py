"""Toys of gpt-oss. GGUF has no keys for the numbers of its activation, nor for biases that are left out."""

import numpy as np

from tests.models.case import Case, Config, Conversion, expert_keys, rope

KIND = "GptOssForCausalLM"
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32, truncate=False)
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 16, "intermediate_size": 40}
CASES = {
    "gpt_oss": Case(KIND, {**EXPERTS, **YARN, "sliding_window": 8}),
    "gpt_oss-clamped": Case(
        KIND,
        {**EXPERTS, "num_hidden_layers": 3, "sliding_window": 5, "swiglu_limit": 0.5, "swiglu_alpha": 1.2,
         "attention_bias": False, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        in_gguf=False,
        oldest="5.23",  # 5.17 clamps otherwise
    ),
}  # fmt: skip


def tensors(name: str, array: np.ndarray, c: Config) -> np.ndarray | dict[str, np.ndarray]:
    """GGUF has stacks [experts, out, in], gate and up apart."""
    stem, _, last = name.rpartition(".")
    if last == "sinks":
        return {f"{name}.weight": array}
    if not stem.endswith("experts"):
        return array
    kind = "bias" if last.endswith("_bias") else "weight"
    turned = array if kind == "bias" else np.ascontiguousarray(array.swapaxes(1, 2))
    if last.startswith("down"):
        return {f"{stem}.down_proj.{kind}": turned}
    return {f"{stem}.gate_proj.{kind}": turned[:, ::2], f"{stem}.up_proj.{kind}": turned[:, 1::2]}


GGUF = Conversion(
    "gpt-oss",
    keys=lambda c: {
        **expert_keys(c),
        "expert_feed_forward_length": c.intermediate_size,
        "attention.sliding_window": c.sliding_window,
    },
    tensor=tensors,
)
