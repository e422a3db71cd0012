"""Cohere 2 (Command R7B): Cohere with a window and rope in three of four layers; the fourth has neither."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.cohere import COHERE_CONFIG, COHERE_GGUF, COHERE_NAMES, CohereConfig
from quire.models.config import SLIDING
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture

NAMES = COHERE_NAMES.but({"attn.q_norm": None, "attn.k_norm": None})
CONFIG = COHERE_CONFIG.override(
    reads=["sliding_window", "sliding_window_pattern", "layer_types"],
    lacks=["head_dim", "use_sliding_window", "max_window_layers"],
    fixed={"use_qk_norm": (None, False), "position_embedding_type": (None, "rope_gptj")},
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4, "rope_theta": 10000.0},
)
GGUF = COHERE_GGUF.override(defaults={"attention.sliding_window_pattern": 4})


@architecture(
    "Cohere2ForCausalLM",
    model_type="cohere2",
    gguf="cohere2",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=CohereConfig,
)
def cohere2(g: Graph, c: CohereConfig) -> Value:
    """Both blocks read the same normed value."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)
        attended = attend(g, c, layer, h, interleaved=True, rotates=c.layer_types[layer.index] == SLIDING)
        x = g.add(g.add(x, attended), gated_mlp(g, layer, h, "silu"))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head", factor=c.logit_scale)
