"""Mamba-2: every layer is a mixer with a state of a matrix for each head; no attention."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.bare_mamba import BARE_CONFIG, BARE_GGUF, BARE_NAMES
from quire.models.keys import ConfigKeys
from quire.models.mamba_blocks import MAMBA2_GGUF, MAMBA2_KEYS, PROJECTIONS2, ScanConfig, mamba2_mixer, mamba2_names
from quire.models.registry import architecture

CONFIG = BARE_CONFIG.override(
    reads=MAMBA2_KEYS,
    ignores=["time_step_rank"],
    spelling={"mamba_n_heads": "num_heads", "mamba_d_head": "head_dim", "mamba_n_groups": "n_groups"},
    defaults={"mamba_d_state": 128, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 8, "eos_token_id": 2},
    biases=PROJECTIONS2,
)


@architecture(
    "Mamba2ForCausalLM",
    model_type="mamba2",
    gguf="mamba2",
    names=BARE_NAMES.but(mamba2_names("mixer")),
    keys=ConfigKeys(CONFIG, BARE_GGUF.override(reads=MAMBA2_GGUF)),
    config=ScanConfig,
)
def mamba2(g: Graph, c: ScanConfig) -> Value:
    """The norm of a mixer is of each group of heads, as in its authors' code; transformers norms all groups as one."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, mamba2_mixer(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
