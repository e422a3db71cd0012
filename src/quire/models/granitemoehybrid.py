"""Granite 4: Granite-MoE, or a dense Granite, in which most layers have a mixer of Mamba-2 instead of attention."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.granitemoe import NAMES as MOE_NAMES
from quire.models.granitemoehybrid_config import KEYS, GraniteHybridConfig
from quire.models.hybrid import attention_in_some, has_attention, has_recurrence
from quire.models.mamba_blocks import mamba2_mixer, mamba2_names
from quire.models.moe import is_dense, is_sparse
from quire.models.names import Stored, TensorName, part
from quire.models.registry import architecture

GATE, UP = (Stored("shared_mlp.input_linear", part(i, "ffn", "ffn")) for i in range(2))
NAMES = attention_in_some(MOE_NAMES.marked("mlp.router", only=is_sparse)).but(
    {
        **mamba2_names("mamba", has_recurrence),
        "mlp.gate": TensorName(GATE, "ffn_gate", ("ffn", "hidden"), only=is_dense),
        "mlp.up": TensorName(UP, "ffn_up", ("ffn", "hidden"), only=is_dense),
        "mlp.down": TensorName("shared_mlp.output_linear", "ffn_down", ("hidden", "ffn"), only=is_dense),
    }
)


@architecture(
    "GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    gguf="granitehybrid",
    names=NAMES,
    keys=KEYS,
    config=GraniteHybridConfig,
)
def granitemoehybrid(g: Graph, c: GraniteHybridConfig) -> Value:
    """Pre-norm decoder; every block's output is scaled before it is added. Most models have no rope."""
    x = g.scale(g.embed("embed"), c.embedding_multiplier)
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        if has_attention(c, layer.index):
            h = attend(g, c, layer, h, scale=c.attention_multiplier, rotates=c.rotates)
        else:
            h = mamba2_mixer(g, c, layer, h)
        x = g.add(x, g.scale(h, c.residual_multiplier))
        h = g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(x, g.scale(moe_mlp(g, c, layer, h, "silu", scores_chosen=True), c.residual_multiplier))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", factor=1.0 / c.logits_scaling)
