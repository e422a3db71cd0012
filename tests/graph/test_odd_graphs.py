"""Odd graphs give the same logits in the interpreter, on the CPU and through every rule of fusion."""

from __future__ import annotations

import pytest

from quire.devices import base
from quire.devices.cpu.bindings import native
from tests.graph.odd_graphs import HEADLESS, ODD_GRAPHS, odd_graph
from tests.graph.passes.rules import fault_of, fused_by, sequences
from tests.graph.sketch import MAX_ERROR, error_of, interpreted, lowered

pytestmark = pytest.mark.device

WITH_LOGITS = [name for name in ODD_GRAPHS if name not in HEADLESS]


@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_every_rule_keeps_the_logits(name: str):
    """In the interpreter: each rule alone and all together, as for a device that supports every fused op."""
    sketch = odd_graph(name)
    for rules in sequences():
        graph = fused_by(rules, sketch.graph)
        names = [rule.__name__ for rule in rules]
        assert error_of(interpreted(graph, sketch), sketch) < MAX_ERROR, names
        assert not fault_of(graph, sketch.graph), names


@pytest.mark.parametrize("name", WITH_LOGITS)
@pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
@pytest.mark.skipif(native() is None, reason="the extension was not built")
def test_the_cpu_gives_the_same_logits(name: str, fuse: bool, caplog: pytest.LogCaptureFixture):
    sketch = odd_graph(name)
    assert error_of(lowered(base.open("cpu"), sketch, fuse=fuse), sketch) < MAX_ERROR
    assert not caplog.records, "an op ran on its reference"
