"""Falcon-H1: attention and a mixer of Mamba-2 side by side in every layer, with factors almost everywhere."""

from __future__ import annotations

from dataclasses import replace

from quire.graph.graph import Graph, Layer, Value
from quire.models.bamba import NAMES as BAMBA_NAMES
from quire.models.blocks import attend
from quire.models.config import ATTENTION
from quire.models.falcon_h1_config import KEYS, XBC, FalconH1Config, has_norm
from quire.models.mamba_blocks import mamba2_mixer, mamba2_names
from quire.models.names import Stored
from quire.models.registry import architecture

MIXER = mamba2_names("mamba")
NAMES = (
    BAMBA_NAMES.but(MIXER | {"ssm.norm": replace(MIXER["ssm.norm"], only=has_norm, in_all=False)})
    .marked(*ATTENTION, only=None)
    .marked("mlp.norm", gguf=Stored("ffn_norm", kind=""))
)


@architecture(
    "FalconH1ForCausalLM", model_type="falcon_h1", gguf="falcon-h1", names=NAMES, keys=KEYS, config=FalconH1Config
)
def falcon_h1(g: Graph, c: FalconH1Config) -> Value:
    """Pre-norm decoder. The factor of keys is that of scores."""
    f = c.factors
    x = g.scale(g.embed("embed"), f["embedding_multiplier"])
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        mixed = _mix(g, c, layer, g.scale(h, f["ssm_in_multiplier"]))
        h = g.scale(h, f["attention_in_multiplier"])
        attended = attend(g, c, layer, h, scale=c.head_dim**-0.5 * f["key_multiplier"])
        both = g.add(g.scale(mixed, f["ssm_out_multiplier"]), g.scale(attended, f["attention_out_multiplier"]))
        x = g.add(x, both)
        x = g.add(x, _mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", factor=f["lm_head_multiplier"])


def _mix(g: Graph, c: FalconH1Config, layer: Layer, h: Value) -> Value:
    factors = (c.ssm_factors[0], XBC if XBC in g.shapes else None, c.ssm_factors[4])
    return mamba2_mixer(g, c, layer, h, norm_first=c.norm_first, factors=factors)


def _mlp(g: Graph, c: FalconH1Config, layer: Layer, h: Value) -> Value:
    gate = g.activation(g.scale(g.linear(h, layer["mlp.gate"]), c.mlp_factors[0]), "silu")
    out = g.linear(g.multiply(gate, g.linear(h, layer["mlp.up"])), layer["mlp.down"])
    return g.scale(out, c.mlp_factors[1])
