"""The architectures whose checkpoints may have a head that predicts one more token."""

from __future__ import annotations

from dataclasses import replace

from quire.models import deepseek_v3, glm4_moe_lite, qwen3_5_moe  # noqa: F401  # registered here
from quire.models.deepseek_v2 import deepseek_layer
from quire.models.glm4_moe import glm4_moe_layer
from quire.models.mellum import MellumHead
from quire.models.mtp import LAYER_ENTRIES, MtpHead
from quire.models.names import Stored
from quire.models.nemotron_h_head import NemotronHead
from quire.models.qwen3_5 import qwen3_5_layer
from quire.models.qwen3_next import qwen3_next_layer
from quire.models.registry import add_mtp

# Of the head's norms, as of all others, safetensors of Qwen store w of 1 + w, and GGUF files the sum.
QWEN_ENTRIES = {
    word: replace(each, safetensors=Stored(str(each.safetensors), added=1.0)) if word.endswith("norm") else each
    for word, each in LAYER_ENTRIES.items()
}

add_mtp("Glm4MoeForCausalLM", MtpHead(glm4_moe_layer))
for name in ("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"):
    add_mtp(name, MtpHead(deepseek_layer))
add_mtp("Qwen3_5ForCausalLM", MtpHead(qwen3_5_layer, QWEN_ENTRIES))
for name in ("Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM"):
    add_mtp(name, MtpHead(qwen3_next_layer, QWEN_ENTRIES))
add_mtp("MellumForCausalLM", MellumHead())
for name in ("NemotronHForCausalLM", "NemotronHMoeForCausalLM"):
    add_mtp(name, NemotronHead())
