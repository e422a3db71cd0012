"""Models of which some layers have attention and the others a recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from quire.models.config import ModelConfig
from quire.models.names import Names
from quire.models.rope import FULL, SLIDING
from quire.models.values import Values

Only = Callable[[Any, int], bool]

LINEAR = "linear_attention"  # the type of a layer with a recurrence in most architectures
KV_HEADS = "attention.head_count_kv"


def has_attention(c: ModelConfig, layer: int) -> bool:
    """Whether a layer has attention."""
    return c.layer_types[layer] in (FULL, SLIDING)


def has_recurrence(c: ModelConfig, layer: int) -> bool:
    """Whether a layer has a recurrence instead of attention."""
    return not has_attention(c, layer)


def attention_in_some(names: Names) -> Names:
    """The same names, where only layers with attention have its tensors."""
    entries = {word: each for word, each in names.entries.items() if word.startswith("attn.") and word != "attn.norm"}
    return names.but({word: replace(each, only=_if_attention(each.only)) for word, each in entries.items()})


def _if_attention(only: Only | None) -> Only:
    return has_attention if only is None else lambda c, layer: has_attention(c, layer) and only(c, layer)


def types_by_heads(base: dict[str, Any], values: Values, kind: str = LINEAR) -> tuple[str, ...]:
    """The types of the layers of a GGUF file, in which a layer of this kind has no key heads."""
    counts = values.integers(KV_HEADS)
    if len(counts) != base["num_layers"] or len(set(counts) - {0}) > 1:
        raise values.refusal(KV_HEADS, f"a list of {base['num_layers']} numbers: 0, or one that is the same for all")
    return types_where([not count for count in counts], base, kind)


def types_where(is_recurrent: Iterable[bool], base: dict[str, Any], kind: str = LINEAR) -> tuple[str, ...]:
    """The types of the layers, of which some are of this kind, and the others as `base` has them."""
    return tuple(kind if each else known for each, known in zip(is_recurrent, base["layer_types"], strict=True))
