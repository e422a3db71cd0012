"""How a model's vectors of tokens become one vector of a text: what its files say, or what the user sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from quire.graph.graph import Graph
from quire.graph.weight import StoredTensor, Weight, transformed
from quire.models.config import CheckpointSource
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.models.values import Values, brief
from quire.types.kinds import PoolKind

POOLING_SETTING = "pooling"
_MODES = {
    "pooling_mode_mean_tokens": PoolKind.MEAN,
    "pooling_mode_cls_token": PoolKind.CLS,
    "pooling_mode_lasttoken": PoolKind.LAST,
    "pooling_mode_weightedmean_tokens": PoolKind.WEIGHTED,
}
_NAMES = {"mean": PoolKind.MEAN, "cls": PoolKind.CLS, "lasttoken": PoolKind.LAST, "weightedmean": PoolKind.WEIGHTED}
_GGUF_POOLING = {1: PoolKind.MEAN, 2: PoolKind.CLS, 3: PoolKind.LAST}
_GGUF_NONE, _GGUF_RANK = 0, 4
_ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid"}
KNOWN = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout", "LogitScore")


@runtime_checkable
class HasModules(Protocol):
    """A checkpoint that may be a sentence-transformers folder."""

    @property
    def modules(self) -> Sequence[TextModule]: ...


class TextModule(Protocol):
    """One module of such a folder."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...


class GgufDense(NamedTuple):
    """A dense layer of a GGUF file, which has no bias and no activation."""

    path: str
    tensors: Mapping[str, StoredTensor]
    kind: str = "Dense"
    config: Mapping[str, Any] = MappingProxyType({})


def modules_of(checkpoint: CheckpointSource) -> Sequence[TextModule]:
    """Return the modules that follow the model. One that we cannot compute is refused by its name."""
    modules = checkpoint.modules if isinstance(checkpoint, HasModules) else ()
    if checkpoint.container == "gguf":
        stored = [(name, checkpoint.tensors.get(f"{name}.weight")) for name in ("dense_2", "dense_3")]
        return [GgufDense(name, {"linear.weight": tensor}) for name, tensor in stored if tensor is not None]
    for each in modules:
        if each.kind not in KNOWN:
            raise UnsupportedModel(f"modules.json has a module of the kind {brief(each.kind)}, which is not supported.")
    return modules


def pooling_of(checkpoint: CheckpointSource, setting: str | None) -> PoolKind | None:
    """Return how texts are pooled: as set, else as the model's files say. None: they do not say."""
    if setting is not None:
        return PoolKind(setting)
    if checkpoint.container == "gguf":
        return _of_gguf(checkpoint.metadata)
    kinds = [_of_module(each.config) for each in modules_of(checkpoint) if each.kind == "Pooling"]
    if len(kinds) > 1:
        raise UnsupportedModel("modules.json has two poolings, and one is supported.")
    return kinds[0] if kinds else None


def _of_module(config: Mapping[str, Any]) -> PoolKind:
    """Read the config.json of a Pooling module: flags, or since version 6 a name."""
    if config.get("include_prompt") is False:
        raise UnsupportedModel("The pooling leaves out the prompt (include_prompt), which is not supported.")
    named = config.get("pooling_mode")
    chosen = (
        [named] if named is not None else [key for key in config if key.startswith("pooling_mode_") and config[key]]
    )
    kinds = {**_MODES, **_NAMES}
    if len(chosen) != 1 or not isinstance(chosen[0], str) or chosen[0] not in kinds:
        known = ", ".join(_NAMES)
        raise UnsupportedModel(f"The pooling is {brief(chosen)}; supported is one of {known}.")
    return kinds[chosen[0]]


def _of_gguf(metadata: Mapping[str, Any]) -> PoolKind | None:
    architecture = str(metadata.get("general.architecture"))
    given = metadata.get(f"{architecture}.pooling_type")
    if given is None or given in (_GGUF_NONE, _GGUF_RANK):
        return None
    if given not in _GGUF_POOLING:
        raise UnsupportedModel(f"The file's pooling_type is {brief(given)}; supported are 1 mean, 2 cls and 3 last.")
    return _GGUF_POOLING[given]


def unpooled(name: str) -> UnsupportedModel:
    """The error for a model whose files do not say how to pool."""
    return UnsupportedModel(
        f"{name} computes a vector for each token, and the model's folder does not say how they become one: set "
        f"{POOLING_SETTING} to mean, cls, last or weighted (--{POOLING_SETTING}, or LLM(…, {POOLING_SETTING}=…))."
    )


def draw_modules(g: Graph, modules: Sequence[TextModule], weights: dict[str, Weight]) -> None:
    """Draw the dense layers that follow the pooling. The vectors are normed by the text side."""
    for each in modules:
        if each.kind != "Dense":
            continue
        x, name = g.outputs["pooled"], f"dense_{each.path}"
        values = Values(each.config)
        for stored, bound in (("linear.weight", name), ("linear.bias", f"{name}.bias")):
            if stored in each.tensors:
                tensor = each.tensors[stored]
                weights[bound] = transformed(bound, tuple(tensor.shape), tensor)
        if name not in weights:
            raise BadCheckpoint(f"The module {each.path} lacks the tensor linear.weight.")
        g.shapes = {bound: tuple(weight.shape) for bound, weight in weights.items()}
        activation = values.text("activation_function", "Identity").rpartition(".")[2]
        if activation not in _ACTIVATIONS:
            raise values.refusal("activation_function", f"one of {', '.join(_ACTIVATIONS)}")
        kind, out = _ACTIVATIONS[activation], g.linear(x, name)
        g.outputs["pooled"] = out if kind is None else g.activation(out, kind)
