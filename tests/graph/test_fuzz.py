"""Random graphs: rewritten by the rules in any order, and on the CPU, they give the same logits."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.devices import base
from quire.devices.cpu.bindings import native
from tests.graph.passes.rules import fault_of, fused_by, pass_modules, rules_in, sequences
from tests.graph.random_graphs import random_graphs
from tests.graph.sketch import Sketch, error_of, interpreted, lowered

pytestmark = pytest.mark.device

RULES = rules_in(pass_modules().values())
MAX_ERROR = 1e-3  # a chain of products and norms enlarges rounding errors
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MANY = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


def check_rules(sketch: Sketch, order: list) -> None:
    for rules in (*(rules for rules in sequences() if len(rules) > 1), order):
        graph = fused_by(rules, sketch.graph)
        names = [rule.__name__ for rule in rules]
        assert error_of(interpreted(graph, sketch), sketch) < MAX_ERROR, names
        assert not fault_of(graph, sketch.graph), names


def check_cpu(sketch: Sketch) -> None:
    for fuse in (False, True):
        assert error_of(lowered(base.open("cpu"), sketch, fuse=fuse), sketch) < MAX_ERROR, fuse


@QUICK
@given(random_graphs(), st.permutations(RULES))
def test_rules_in_any_order_keep_the_logits(sketch: Sketch, order: list):
    check_rules(sketch, order)


@QUICK
@given(random_graphs())
@pytest.mark.skipif(native() is None, reason="the extension was not built")
def test_the_cpu_gives_the_same_logits(sketch: Sketch):
    check_cpu(sketch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(random_graphs(max_ops=30), st.permutations(RULES))
@pytest.mark.skipif(native() is None, reason="the extension was not built")
def test_many_random_graphs(sketch: Sketch, order: list):
    check_rules(sketch, order)
    check_cpu(sketch)
