"""What architectures with experts share: their numbers, the names of their tensors, and their keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.models.config import ModelConfig
from quire.models.errors import UnsupportedModel
from quire.models.names import Layouts, Names, RowRule, Stored, TensorName, part
from quire.models.values import Values

MAX_EXPERTS = 1 << 14
# Keys that every architecture with experts has, under these names or others (`spelling`).
CONFIG_KEYS = ("num_experts", "num_experts_per_tok")
TRAINING_KEYS = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
GGUF_KEYS = ("expert_count", "expert_used_count", "expert_feed_forward_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(ModelConfig):
    """A decoder of which some layers have experts."""

    num_experts: int
    top: int  # experts of a token
    expert_ffn: int
    shared_ffn: int = 0  # width of the expert that all tokens use; 0: there is none
    sparse: tuple[bool, ...]  # per layer: whether it has experts
    renormalize: bool  # weights of a token's experts are divided by their sum
    factor: float = 1.0  # of these weights

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        """Keys that an architecture does not declare are never among the values: their defaults hold."""
        found = _gguf_numbers(base, values) if is_gguf else _numbers(base, values)
        if found["top"] > found["num_experts"]:
            raise UnsupportedModel(f"{found['top']} of {found['num_experts']} experts cannot be chosen.")
        return cls(**found, **base)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        shared = {"experts": self.num_experts, "expert_ffn": self.expert_ffn, "shared_ffn": self.shared_ffn}
        return {**ModelConfig.sizes(self, layer), **shared}


def _numbers(base: dict[str, Any], c: Values) -> dict[str, Any]:
    """The fields of MoeConfig by config.json."""
    expert_ffn = c.uniform_size("moe_intermediate_size", base["ffn"])
    num_shared = c.uniform_size("n_shared_experts", 0, least=0)
    return {
        "num_experts": c.uniform_size("num_experts", most=MAX_EXPERTS),
        "top": c.uniform_size("num_experts_per_tok", most=MAX_EXPERTS),
        "expert_ffn": expert_ffn,
        "shared_ffn": c.integer_or_none("shared_expert_intermediate_size") or num_shared * expert_ffn,
        "sparse": _sparse_layers(c, base["num_layers"]),
        "renormalize": c.flag("norm_topk_prob"),
        "factor": c.number("routed_scaling_factor", 1.0),
    }


def _sparse_layers(c: Values, num_layers: int) -> tuple[bool, ...]:
    """All layers, less the first and last ones, those that are listed, and those between each so many-th."""
    first, last = c.integer_or_none("first_k_dense_replace") or 0, c.integer_or_none("moe_layer_end_index", least=-1)
    step, dense = c.size("decoder_sparse_step", 1), c.integers("mlp_only_layers")
    end = num_layers if last in (None, -1) else last + 1
    return tuple(first <= i < end and i not in dense and (i + 1) % step == 0 for i in range(num_layers))


def _gguf_numbers(base: dict[str, Any], c: Values) -> dict[str, Any]:
    expert_ffn = c.size("expert_feed_forward_length", base["ffn"])
    first, step = c.integer_or_none("leading_dense_block_count") or 0, c.size("interleave_moe_layer_step", 1)
    num_shared = c.integer_or_none("expert_shared_count") or 0
    return {
        "num_experts": c.size("expert_count", most=MAX_EXPERTS),
        "top": c.size("expert_used_count", most=MAX_EXPERTS),
        "expert_ffn": expert_ffn,
        "shared_ffn": c.integer_or_none("expert_shared_feed_forward_length") or num_shared * expert_ffn,
        "sparse": tuple(i >= first and (i + 1) % step == 0 for i in range(base["num_layers"])),
        "renormalize": c.flag("expert_weights_norm"),
        "factor": c.number_unless_zero("expert_weights_scale", 1.0),
    }


def is_sparse(c: MoeConfig, layer: int) -> bool:
    """Whether a layer has experts."""
    return c.sparse[layer]


def is_dense(c: MoeConfig, layer: int) -> bool:
    """Whether a layer has a feed-forward block without experts."""
    return not c.sparse[layer]


def has_shared(c: MoeConfig, layer: int) -> bool:
    """Whether a layer has an expert that all tokens use."""
    return c.sparse[layer] and c.shared_ffn > 0


SHAPES = {
    "gate": ("experts", "expert_ffn", "hidden"),
    "up": ("experts", "expert_ffn", "hidden"),
    "down": ("experts", "hidden", "expert_ffn"),
}
HALVES = (part(0, "expert_ffn", "expert_ffn"), part(1, "expert_ffn", "expert_ffn"))
CORRECTION = Stored("exp_probs_b", kind="bias")
# GGUF files may have gate and up in one stack.
FUSED_GATE_UP: Layouts = {
    "ffn_gate_up_exps.weight": {
        f"experts.{word}": Stored("ffn_gate_up_exps", rows) for word, rows in zip(("gate", "up"), HALVES, strict=True)
    }
}
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def with_experts(
    names: Names,
    *,
    block: str = "mlp",
    words: tuple[str, str, str] = PROJECTIONS,
    router: str = "gate",
    corrections: tuple[Stored, Stored] | None = None,
    fused_block: str = "mlp",
) -> Names:
    """Add a router and stacks of experts to the names of a dense model, whose feed-forward block some layers may have.

    Safetensors have a tensor for each expert, `BLOCK.experts.3.WORD.weight`, or, written by transformers 5, stacks in
    `FUSED_BLOCK.experts`, of which one has the rows of gate and up. `corrections`: that of the router in either kind of
    file.
    """
    stems = [f"{block}.experts.*.{word}" for word in words]
    entries = {"mlp.router": TensorName(f"{block}.{router}", "ffn_gate_inp", ("experts", "hidden"), only=is_sparse)}
    entries |= {
        f"experts.{word}": _stack(word, stem.replace(".*", "")) for word, stem in zip(SHAPES, stems, strict=True)
    }
    dense = {word: replace(names.entries[word], only=is_dense) for word in ("mlp.gate", "mlp.up", "mlp.down")}
    both = f"{fused_block}.experts.gate_up_proj"
    layout = {
        **fused_stacks((both, f"{fused_block}.experts.down_proj")),
        "mlp.router": replace(entries["mlp.router"], safetensors=f"{fused_block}.{router}"),
    }
    if corrections is not None:
        entries["mlp.correction"] = TensorName(corrections[0], CORRECTION, ("experts",), only=is_sparse, in_all=False)
        layout["mlp.correction"] = replace(entries["mlp.correction"], safetensors=corrections[1])
    layouts = {**names.layouts, **FUSED_GATE_UP, both: layout}
    return names.but(entries | dense, stacked=names.stacked.union(stems), layouts=layouts)


def fused_stacks(
    stems: tuple[str, str],
    rows: tuple[RowRule, RowRule] = HALVES,
    biases: tuple[str, str] | None = None,
    *,
    transposed: bool = False,
    kind: str = "",
) -> dict[str, TensorName]:
    """The entries of two stacks: `stems` are the names of one with the rows of gate and up, and of that of down.

    `rows`: those of gate and of up. `biases`: their full names. `transposed`: the stacks are [experts, in, out].
    """
    both, down = biases or (None, None)
    stored = (
        Stored(stems[0], rows[0], transposed, bias=both, kind=kind),
        Stored(stems[0], rows[1], transposed, bias=both, kind=kind),
        Stored(stems[1], None, transposed, bias=down, kind=kind),
    )
    return {
        f"experts.{word}": replace(_stack(word, each), biased=biases is not None)
        for word, each in zip(SHAPES, stored, strict=True)
    }


def _stack(word: str, stored: str | Stored) -> TensorName:
    return TensorName(stored, f"ffn_{word}_exps", SHAPES[word], only=is_sparse)


def with_shared(names: Names, block: str) -> Names:
    """Add the expert that all tokens use."""
    shapes = {"gate": ("shared_ffn", "hidden"), "up": ("shared_ffn", "hidden"), "down": ("hidden", "shared_ffn")}
    return names.but(
        {
            f"shared.{word}": TensorName(f"{block}.{word}_proj", f"ffn_{word}_shexp", shape, only=has_shared)
            for word, shape in shapes.items()
        }
    )
