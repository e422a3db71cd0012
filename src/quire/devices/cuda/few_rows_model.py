"""A model in the form that the one-kernel step for few rows takes (`few_rows.py`), and what it does not take.

Every operand of every instruction is checked. A field that an instruction gains later must have its default value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.norm import Norm
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables

from .caches import Caches
from .instructions import AddProduct, Attend, Embed, Forget, Gate, Head, Instruction, Select
from .linear import Linear
from .tensor_map import BOX_BYTES

MAX_GROUPED = 8  # heads that share a key head
MAX_QUERIES = 1024  # numbers of the queries that share a key head
HEAD_DIMS = (64, 128, 256)
MAX_KINDS = 2  # of windows, and of ropes
KEYS_AT_ONCE = 16  # that a warp reads: of one block of the cache
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu2")  # in the order of the kernel's `Activation`
NO_HEAD_NORM, EACH_HEAD, ALL_HEADS = range(3)  # the kernel's `HeadNormKind`
FORMATS = {(torch.bfloat16, True), (torch.float8_e4m3fn, False)}  # number format, and whether there is no scale
GATE = 2  # among the matrices of a layer
KNOWN_FIELDS: dict[type, tuple[str, ...]] = {
    Embed: ("table", "out", "factor"),
    Attend: (
        "value", "norm", "linear", "heads", "head_norm", "turns", "caches", "layer", "scale", "window", "fixed_chunk",
        "out", "softcap",
    ),
    AddProduct: ("value", "linear", "residual", "out", "post_norm", "factor"),
    Gate: ("value", "norm", "linear", "out", "rounds", "kind"),
    Head: ("value", "norm", "linear", "out", "factor", "cap"),
    Norm: ("weight", "eps"),
    HeadNorm: ("q", "k", "eps", "is_wide"),
    RopeTables: ("cos", "sin", "interleaved"),
    Heads: ("num_heads", "kv_heads", "dim"),
    Linear: ("weight", "scale", "bias", "tiles", "scratch", "is_gate", "kind", "ahead"),
}  # fmt: skip


class LayerInstructions(NamedTuple):
    """The four instructions of a layer."""

    attend: Attend
    out_proj: AddProduct
    gate: Gate
    down: AddProduct

    @property
    def linears(self) -> tuple[Any, Any, Any, Any]:
        return self.attend.linear, self.out_proj.linear, self.gate.linear, self.down.linear


class ModelInstructions(NamedTuple):
    """The instructions of a model, in the form that the kernel supports."""

    embed: Embed
    layers: list[LayerInstructions]
    head: Head

    @classmethod
    def of(cls, instructions: Sequence[Instruction]) -> ModelInstructions | None:
        """Group the instructions. None: they are not attention and gated feed-forward blocks, one after the other."""
        steps = [each for each in instructions if not isinstance(each, Forget | Select)]
        kinds = [type(each) for each in steps]
        num_layers = (len(steps) - 2) // 4
        if kinds != [Embed, *[Attend, AddProduct, Gate, AddProduct] * num_layers, Head] or not num_layers:
            return None
        layers = [LayerInstructions(*steps[1 + 4 * i : 5 + 4 * i]) for i in range(num_layers)]  # type: ignore[arg-type]
        found = cls(steps[0], layers, steps[-1])  # type: ignore[arg-type]
        selects = {each.out: each.value for each in instructions if isinstance(each, Select)}
        return found if found._is_chain(selects) else None

    def _is_chain(self, selects: dict[int, int]) -> bool:
        """Does every instruction read what the one before wrote, and every sum the residual?"""
        stream = self.embed.out
        for attend, out_proj, gate, down in self.layers:
            for block, product in ((attend, out_proj), (gate, down)):
                read = [block.value, product.residual, product.value]
                if [selects.get(each, each) for each in read] != [stream, stream, block.out]:
                    return False
                stream = product.out
        return selects.get(self.head.value, self.head.value) == stream

    @property
    def head_norm(self) -> int:
        """The kernel's HEAD_NORM, by the first layer."""
        attend = self.layers[0].attend
        if attend.head_norm is None:
            return NO_HEAD_NORM
        return ALL_HEADS if attend.head_norm.is_wide else EACH_HEAD

    @property
    def kinds(self) -> dict[AttentionKind, int]:
        """The kinds of attention, which differ in their windows, in the order of their first layers; a cache of each.

        Layers of one kind have caches of one shape and one group: all are in the same tensor.
        """
        kinds: dict[AttentionKind, int] = {}
        for layer in self.layers:
            kinds.setdefault(layer.attend.kind, layer.attend.layer)
        return kinds

    @property
    def ropes(self) -> list[RopeTables]:
        """The different tables of rope, in the order of their first layers."""
        found = {
            (id(layer.attend.turns.cos), layer.attend.turns.interleaved): layer.attend.turns for layer in self.layers
        }
        return list(found.values())

    @property
    def num_pairs(self) -> int:
        """Numbers of a head that rope rotates, halved. Layers without rope have a table that rotates by 0."""
        return max(each.cos.shape[1] for each in self.ropes) or self.layers[0].attend.heads.dim // 2

    @property
    def post_norm(self) -> Norm | None:
        """The norm after the first block."""
        return self.layers[0].out_proj.post_norm

    def unsupported(self, caches: Caches) -> str | None:
        """Return what the kernel does not support of the model and its cache. None: it supports all."""
        return next((reason for check in self._checks for reason in check(caches)), None)

    @property
    def _checks(self) -> tuple[Callable[[Caches], Iterator[str]], ...]:
        return self._caches, self._unknown, self._formats, self._norms, self._heads

    def _caches(self, caches: Caches) -> Iterator[str]:
        """Layers of one kind of attention read one tensor, each at its index there."""
        indices: dict[int, list[int]] = {}  # of a tensor's layers, in their order
        tensors: dict[int, Tensor] = {}
        for layer in (each.attend.layer for each in self.layers):
            if (tensor := caches.both_of(layer)) is None:
                yield "keys and values of different sizes"
                return
            tensors[id(tensor)] = tensor
            indices.setdefault(id(tensor), []).append(caches.index_of(layer))
        if not _agree(each.shape[3:] for each in tensors.values()):
            yield "layers whose caches differ"
        if any(found != list(range(len(tensors[each]))) for each, found in indices.items()):
            yield "layers that do not have one cache each"

    def _unknown(self, caches: Caches) -> Iterator[str]:
        steps: list[Any] = [self.embed, self.head, *(each for layer in self.layers for each in layer)]
        parts = [getattr(each, name, None) for each in steps for name in ("norm", "post_norm", "head_norm", "linear")]
        ropes = [part for layer in self.layers for part in (layer.attend.turns, layer.attend.heads)]
        for each in [*steps, *parts, *ropes]:
            if each is None:
                continue
            if type(each) not in KNOWN_FIELDS:
                yield f"{type(each).__name__}"
                return
            for name in _other_fields(each):
                yield f"{type(each).__name__}.{name}"

    def _formats(self, caches: Caches) -> Iterator[str]:
        linears, head = [each for layer in self.layers for each in layer.linears], self.head.linear
        assert isinstance(head, Linear)
        if len({(each.weight.dtype, each.scale is None) for each in linears} | FORMATS) > len(FORMATS):
            yield "the format of a matrix"
        if not _agree((each.weight.dtype, each.scale is None) for each in linears):
            yield "matrices in different formats"
        if not _agree(tuple(each.weight.shape for each in layer.linears) for layer in self.layers):
            yield "layers with different sizes"
        if (head.weight.dtype, head.scale) != (torch.bfloat16, None):
            yield "the format of the head"
        if any(each.weight.shape[1] * each.weight.element_size() % BOX_BYTES for each in [*linears, head]):
            yield "rows of a matrix that are not whole boxes of the copy engine"
        if any(each.bias is not None for layer in self.layers for each in layer.linears[1:]) or head.bias is not None:
            yield "a bias of another matrix than q, k and v"
        biases = [layer.attend.linear.bias for layer in self.layers]  # type: ignore[attr-defined]
        if not _agree(None if bias is None else bias.dtype for bias in biases):
            yield "layers with and without biases"
        if biases[0] is not None and biases[0].dtype != torch.bfloat16:
            yield "the format of a bias"
        if not caches.dtype == self.embed.table.dtype == torch.bfloat16:
            yield "the format of the cache or of the embeddings"
        if [layer.gate.linear.is_gate for layer in self.layers] != [True] * len(self.layers):  # type: ignore[attr-defined]
            yield "a gate whose halves are apart"
        if any(each.kind for layer in self.layers for i, each in enumerate(layer.linears) if i != GATE):
            yield "an activation of another matrix than the gate"
        kinds = {kind for layer in self.layers for kind in (layer.gate.kind, layer.linears[GATE].kind)}
        if len(kinds) > 1 or not kinds <= set(ACTIVATIONS):
            yield f"the activation {', '.join(sorted(kinds))}"

    def _norms(self, caches: Caches) -> Iterator[str]:
        before = [norm for layer in self.layers for norm in (layer.attend.norm, layer.gate.norm)]
        after = [each.post_norm for layer in self.layers for each in (layer.out_proj, layer.down)]
        of_heads = [layer.attend.head_norm for layer in self.layers]
        if self.head.norm is None:
            yield "a head without a norm"
            return
        if not _agree(norm is None for norm in before) or not _agree(norm is None for norm in after):
            yield "a norm of some blocks"
        if not _agree(norm.eps for norm in [*before, self.head.norm] if norm):
            yield "norms with different epsilons"
        if not _agree(each.factor for layer in self.layers for each in (layer.out_proj, layer.down)):
            yield "different factors of blocks"
        if not _agree(norm.eps for norm in after if norm):
            yield "norms after blocks with different epsilons"
        shapes = [None if norm is None else (norm.q.shape, norm.k.shape, norm.eps, norm.is_wide) for norm in of_heads]
        if not _agree(shapes):
            yield "layers with different norms of heads"
        heads = self.layers[0].attend.heads
        each, together = (heads.dim, heads.dim), (heads.num_heads * heads.dim, heads.kv_heads * heads.dim)
        if shapes[0] and tuple(shape.numel() for shape in shapes[0][:2]) != (together if shapes[0][3] else each):
            yield "the shape of the norms of heads"
        weights = [norm.weight for norm in (*before, *after, self.head.norm) if norm]
        weights += [weight for norm in of_heads if norm for weight in (norm.q, norm.k)]
        if any(weight.dtype != torch.float32 for weight in weights):
            yield "the format of a norm"

    def _heads(self, caches: Caches) -> Iterator[str]:
        attends = [layer.attend for layer in self.layers]
        heads = attends[0].heads
        if not _agree(each.heads for each in attends):
            yield "layers with different heads"
        if heads.dim not in HEAD_DIMS:
            yield f"heads of {heads.dim} numbers"
        group = heads.num_heads // heads.kv_heads
        if heads.num_heads % heads.kv_heads or group > MAX_GROUPED or group * heads.dim > MAX_QUERIES:
            yield f"{heads.num_heads} heads of {heads.dim} numbers over {heads.kv_heads} key heads"
        if any(each.fixed_chunk is not None for each in attends):
            yield "deterministic attention"
        if len(self.kinds) > MAX_KINDS:
            yield f"{len(self.kinds)} different windows"
        shapes = [(each.cos.shape, each.sin.shape, each.interleaved) for each in self.ropes if each.cos.shape[1]]
        if len(self.ropes) > MAX_KINDS or not _agree(shapes):
            yield "different ropes"
        if any(each.dtype != torch.float32 for rope in self.ropes for each in (rope.cos, rope.sin)):
            yield "the format of a rope"
        if not _agree(each.softcap for each in attends):
            yield "layers with different softcaps"
        if caches.block_tokens % KEYS_AT_ONCE:
            yield f"cache blocks of {caches.block_tokens} tokens"


def _agree(values: Iterable[Any]) -> bool:
    """Are all values equal?"""
    return len(set(values)) <= 1


def _other_fields(part: Any) -> list[str]:
    """Return the fields that the kernel does not read and that do not have their default value."""
    if is_dataclass(part):
        defaults = {each.name: each.default for each in fields(part)}
    else:
        defaults = {name: part._field_defaults.get(name, MISSING) for name in part._fields}
    others = [name for name in defaults if name not in KNOWN_FIELDS[type(part)]]
    return [name for name in others if not _is_same(getattr(part, name), defaults[name])]


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (
        isinstance(value, int | float | str) and type(value) is type(default) and value == default
    )
