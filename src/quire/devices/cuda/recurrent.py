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
from quire.devices._triton.log_decay import log_decay
from quire.devices._triton.scan_chunks import scan_chunks
from quire.devices._triton.scan_steps import ScanInputs, StateScan, scan_steps
from quire.devices._triton.short_conv import short_conv
from quire.devices._triton.state_work import MAX_STEPS, StateRows
from quire.graph.graph import Graph, Node
from quire.ops.cache import State

from .caches import Caches
from .weights import Placer

if TYPE_CHECKING:
    from .instructions import Run

UNLIMITED = (1 << 31) - 1  # tokens


@dataclass(frozen=True, slots=True, eq=False)
class Convolve:
    """Short convolution."""

    value: int
    weight: Tensor  # float32 [dim, taps]
    bias: Tensor | None  # float32 [dim]
    caches: Caches
    layer: int
    out: int

    def __call__(self, run: Run) -> None:
        x, states = run.whole(self.value), self.caches.states_of(self.layer)
        run.values[self.out] = short_conv(x, self.weight, self.bias, states, rows_of(run), run.is_decode)


@dataclass(frozen=True, slots=True, eq=False)
class Decay:
    """The decay of states, in float32."""

    value: int
    rate: Tensor  # float32 [heads]
    bias: Tensor  # float32 [heads * n]
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = log_decay(run.whole(self.value), self.rate, self.bias)


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
            delta_chunks(tokens, rule, states, rows, out)
        run.values[self.out] = out


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
    """Lower short_conv, delta_rule or state_scan."""
    assert node.cache is not None
    spec = graph.caches[node.cache]
    assert isinstance(spec, State)
    weights = {
        name: None if bound is None else placer.vector(str(bound)) for name, bound in node.weights.items()
    }  # float32, whatever their shape
    inputs, place, attrs = tuple(value.id for value in node.inputs), (caches, node.cache, node.output.id), node.attrs
    if node.op.name == "short_conv":
        weight = weights["weight"]
        assert weight is not None
        return Convolve(inputs[0], weight, weights["bias"], *place)
    heads, rows, columns = spec.shape
    if node.op.name == "delta_rule":
        by_channel = node.input("decay").dim != heads
        rule = DeltaRule(heads, attrs["num_heads"], rows, columns, attrs["scale"], attrs["eps"], by_channel)
        return ApplyDeltaRule(inputs, rule, *place)
    rate, limits = weights["rate"], {name: attrs[name] for name in ("low", "high") if name in attrs}
    assert rate is not None
    groups = node.input("b").dim // columns
    scan = StateScan(heads, rows, columns, groups, rate, weights["bias"], weights["skip"], **limits)
    return ScanStates(inputs, scan, *place)


def lower_decay(node: Node, placer: Placer) -> Decay:
    """Lower log_decay."""
    rate, bias = (placer.vector(str(node.weights[name])) for name in ("rate", "bias"))
    return Decay(node.inputs[0].id, rate, bias, node.output.id)
