"""The architectures whose checkpoints may have a head that predicts one more token."""

from __future__ import annotations

from quire.models import deepseek_v3, glm4_moe_lite, qwen3_5_moe  # noqa: F401  # registered here
from quire.models.deepseek_v2 import deepseek_layer
from quire.models.gemma import gemma_norm
from quire.models.glm4_moe import glm4_moe_layer
from quire.models.mtp import MtpHead
from quire.models.names import TensorName
from quire.models.qwen3_5 import qwen3_5_layer
from quire.models.qwen3_next import qwen3_next_layer
from quire.models.registry import add_mtp

# Qwen: the head's layers have a prefix of their own, and its other tensors are beside them.
QWEN_ENTRIES = {
    "mtp_embed_norm": gemma_norm("mtp.pre_fc_norm_embedding", "mtp_embed_norm"),
    "mtp_hidden_norm": gemma_norm("mtp.pre_fc_norm_hidden", "mtp_hidden_norm"),
    "mtp_matrix": TensorName("mtp.fc", None, ("hidden", "two_hidden")),
    "mtp_norm": gemma_norm("mtp.norm", "mtp_norm"),
}

add_mtp("Glm4MoeForCausalLM", MtpHead(glm4_moe_layer))
for name in ("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"):
    add_mtp(name, MtpHead(deepseek_layer))
add_mtp("Qwen3_5ForCausalLM", MtpHead(qwen3_5_layer, QWEN_ENTRIES, "mtp.layers", in_gguf=False))
for name in ("Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM"):
    add_mtp(name, MtpHead(qwen3_next_layer, QWEN_ENTRIES, "mtp.layers", in_gguf=False))
