"""The tensors of Nemotron-H: each kind of layer has its own."""

from __future__ import annotations

from typing import Any

from quire.models.hybrid import LINEAR, attention_in_some, has_attention
from quire.models.llama import LLAMA_NAMES
from quire.models.mamba_blocks import mamba2_names
from quire.models.moe import is_sparse
from quire.models.names import Stored, TensorName
from quire.models.nemotron_h_config import MLP, NemotronHConfig


def is_mixer(c: NemotronHConfig, layer: int) -> bool:
    """Is the layer a mixer?"""
    return c.layer_types[layer] == LINEAR


def is_mlp(c: NemotronHConfig, layer: int) -> bool:
    """Is the layer a feed-forward block without experts?"""
    return c.layer_types[layer] == MLP


def _has_latent(c: NemotronHConfig, layer: int) -> bool:
    return c.sparse[layer] and c.latent > 0


def _of_moe(safetensors: str | Stored, gguf: str | Stored, *shape: str, **fields: Any) -> TensorName:
    return TensorName(safetensors, gguf, shape, **{"only": is_sparse, **fields})


STACKS = ("mixer.experts.up_proj", "mixer.experts.down_proj")
WHOLE = {f"experts.{word}": Stored(f"mixer.experts.{word}_proj", kind="") for word in ("up", "down")}
ATTENTION = {
    f"attn.{word}": TensorName(f"mixer.{word[0]}_proj", f"attn_{gguf}", shape, only=has_attention)
    for word, gguf, shape in (("q", "q", ("q", "hidden")), ("k", "k", ("kv", "hidden")),
                              ("v", "v", ("kv", "hidden")), ("out", "output", ("hidden", "q")))
}  # fmt: skip
NAMES = attention_in_some(LLAMA_NAMES).but(
    {
        **ATTENTION,
        **mamba2_names("mixer", is_mixer),
        "embed": TensorName("model.embeddings", "token_embd", ("vocab", "hidden")),
        "norm": TensorName("model.norm_f", "output_norm", ("hidden",)),
        "attn.norm": TensorName("norm", "attn_norm", ("hidden",)),
        "mlp.norm": None,
        "mlp.gate": None,
        "mlp.up": TensorName("mixer.up_proj", "ffn_up", ("ffn", "hidden"), only=is_mlp),
        "mlp.down": TensorName("mixer.down_proj", "ffn_down", ("hidden", "ffn"), only=is_mlp),
        "mlp.router": _of_moe("mixer.gate", "ffn_gate_inp", "experts", "hidden"),
        "mlp.correction": _of_moe("mixer.gate.e_score_correction_bias", "exp_probs_b.bias", "experts", kind=""),
        "experts.up": _of_moe(STACKS[0], "ffn_up_exps", "experts", "expert_ffn", "expert_dim"),
        "experts.down": _of_moe(STACKS[1], "ffn_down_exps", "experts", "expert_dim", "expert_ffn"),
        "shared.up": _of_moe("mixer.shared_experts.up_proj", "ffn_up_shexp", "shared_ffn", "hidden"),
        "shared.down": _of_moe("mixer.shared_experts.down_proj", "ffn_down_shexp", "hidden", "shared_ffn"),
        "latent.in": _of_moe("mixer.fc1_latent_proj", "ffn_latent_down", "latent", "hidden", only=_has_latent),
        "latent.out": _of_moe("mixer.fc2_latent_proj", "ffn_latent_up", "hidden", "latent", only=_has_latent),
    },
    other_prefix="backbone",  # of the published files
    stacked=frozenset(each.replace("experts.", "experts.*.") for each in STACKS),
    layouts={STACKS[0]: WHOLE},
    ignored=r"^mtp\.",  # layers for drafting
)
