"""The instructions of recurrent layers. A row with few tokens in the step is computed token by token, a longer one in
chunks; in deterministic mode, and where there is no such form, all rows token by token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.devices._triton.delta_chunks import delta_chunks
from quire.devices._triton.delta_steps import DeltaInputs, DeltaRule, delta_steps
from quire.devices._triton.elementwise import map_numbers
from quire.devices._triton.gated_norm import GatedNorm, gated_norm
from quire.devices._triton.log_decay import log_decay
from quire.devices._triton.norm import Product
from quire.devices._triton.scan_chunks import scan_chunks
from quire.devices._triton.scan_steps import ScanInputs, StateScan, scan_steps
from quire.devices._triton.short_conv import ConvKernel, short_conv
from quire.devices._triton.state_work import MAX_STEPS, StateRows
from quire.graph.graph import Graph, Node
from quire.ops.cache import State

from .caches import Caches
from .values import DELTA_RULES
from .weights import Placer

if TYPE_CHECKING:
    from .instructions import Run

UNLIMITED = (1 << 31) - 1  # tokens


@dataclass(frozen=True, slots=True, eq=False)
class Convolve:
    """Short convolution, and its activation if it has one."""

    value: int
    kernel: ConvKernel
    caches: Caches
    layer: int
    out: int

    def __call__(self, run: Run) -> None:
        x, states = run.whole(self.value), self.caches.states_of(self.layer)
        run.values[self.out] = short_conv(x, self.kernel, states, rows_of(run), run.is_decode)


@dataclass(frozen=True, slots=True, eq=False)
class Decay:
    """The decay of states."""

    value: int
    rate: Tensor  # float32 [heads]
    bias: Tensor  # float32 [heads * n]
    out: int
    is_float32: bool

    def __call__(self, run: Run) -> None:
        x = run.whole(self.value)
        run.values[self.out] = log_decay(x, self.rate, self.bias, torch.float32 if self.is_float32 else x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class ApplyDeltaRule:
    """Linear attention by the gated delta rule."""

    inputs: tuple[int, ...]  # q, k, v, decay, beta
    rule: DeltaRule
    caches: Caches
    layer: int
    out: int

    def __call__(self, run: Run) -> None:
        tokens, rows = DeltaInputs(*map(run.whole, self.inputs)), rows_of(run)
        states, rule = self.caches.states_of(self.layer), self.rule
        out = _empty_like(tokens.v)
        if len(rows.scans) < len(rows.source):
            delta_steps(tokens, rule, states, rows, out, MAX_STEPS if len(rows.scans) else UNLIMITED)
        if len(rows.scans):
            delta_chunks(self._ungated(tokens), rule, states, rows, out)
        run.values[self.out] = out

    def _ungated(self, tokens: DeltaInputs) -> DeltaInputs:
        """Apply log_decay and sigmoid, in float32, if that is part of the rule."""
        rate, bias = self.rule.rate, self.rule.bias
        if rate is None or bias is None:
            return tokens
        share = torch.empty(tokens.beta.shape, device=tokens.beta.device)
        map_numbers(Product(tokens.beta), "sigmoid", share)
        return tokens._replace(decay=log_decay(tokens.decay, rate, bias), beta=share)


@dataclass(frozen=True, slots=True, eq=False)
class NormGated:
    """The norm of groups, before or after a gate."""

    value: int
    gate: int
    norm: GatedNorm
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = gated_norm(run.whole(self.value), run.whole(self.gate), self.norm)


@dataclass(frozen=True, slots=True, eq=False)
class ScanStates:
    """The scan of Mamba or Mamba-2."""

    inputs: tuple[int, ...]  # x, dt, b, c
    scan: StateScan
    caches: Caches
    layer: int
    out: int

    def __call__(self, run: Run) -> None:
        tokens, rows = ScanInputs(*map(run.whole, self.inputs)), rows_of(run)
        states, scan = self.caches.states_of(self.layer), self.scan
        has_chunks = scan.has_chunks and len(rows.scans) > 0
        out = _empty_like(tokens.x)
        if not has_chunks or len(rows.scans) < len(rows.source):
            scan_steps(tokens, scan, states, rows, out, MAX_STEPS if has_chunks else UNLIMITED)
        if has_chunks:
            scan_chunks(tokens, scan, states, rows, out)
        run.values[self.out] = out


WRITE_STATES = (Convolve, ApplyDeltaRule, ScanStates)


def rows_of(run: Run) -> StateRows:
    """The states of a step's rows."""
    assert run.states is not None, "a recurrent layer needs the states of its rows"
    return run.states


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def lower_recurrent(node: Node, graph: Graph, placer: Placer, caches: Caches) -> Convolve | ApplyDeltaRule | ScanStates:
    """Lower an op that has states."""
    assert node.cache is not None
    spec = graph.caches[node.cache]
    assert isinstance(spec, State)
    weights = {
        name: None if bound is None else placer.vector(str(bound)) for name, bound in node.weights.items()
    }  # float32, whatever their shape
    inputs, place, attrs = tuple(value.id for value in node.inputs), (caches, node.cache, node.output.id), node.attrs
    if "weight" in weights:
        weight = weights["weight"]
        assert weight is not None
        return Convolve(inputs[0], ConvKernel(weight, weights["bias"], attrs.get("kind", "")), *place)
    heads, rows, columns = spec.shape
    if node.op.name in DELTA_RULES:
        by_channel = node.input("decay").dim != heads
        sizes = heads, attrs["num_heads"], rows, columns, attrs["scale"], attrs["eps"], by_channel
        rule = DeltaRule(*sizes, weights.get("rate"), weights.get("bias"))
        return ApplyDeltaRule(inputs, rule, *place)
    rate, limits = weights["rate"], {name: attrs[name] for name in ("low", "high") if name in attrs}
    assert rate is not None
    groups = node.input("b").dim // columns
    scan = StateScan(heads, rows, columns, groups, rate, weights["bias"], weights["skip"], **limits)
    return ScanStates(inputs, scan, *place)


def lower_gated_norm(node: Node, placer: Placer) -> NormGated:
    """Lower gated_norm."""
    attrs, weight = node.attrs, placer.vector(str(node.weights["weight"]))
    group = attrs["group"] or node.output.dim
    norm = GatedNorm(weight, attrs["eps"], group, attrs["kind"], attrs["gates_first"])
    return NormGated(node.input("x").id, node.input("gate").id, norm, node.output.id)


def lower_decay(node: Node, placer: Placer, is_float32: bool) -> Decay:
    """Lower log_decay."""
    rate, bias = (placer.vector(str(node.weights[name])) for name in ("rate", "bias"))
    return Decay(node.inputs[0].id, rate, bias, node.output.id, is_float32)
