"""Every check of every pass matters: with one of them switched off, some graph gives other logits, or cannot be run."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import numpy as np
import pytest

from quire.graph.passes import fuse
from quire.ops import fused
from quire.ops.registry import Op, relative_error
from tests.graph.odd_graphs import ODD_GRAPHS, odd_graph
from tests.graph.passes.mutants import Check, checks_of, without
from tests.graph.passes.rules import fault_of, form_of, fused_by, pass_modules, rules_in, sequences
from tests.graph.sketch import MAX_ERROR, Sketch, interpreted, logits_of

pytestmark = pytest.mark.pure

CHECKS = [check for module in pass_modules().values() for check in checks_of(module)]
FUSED = [op for op in vars(fused).values() if isinstance(op, Op) and op.reference.__module__ == fused.__name__]


@cache
def right_forms(name: str) -> list[str]:
    """The graph as the passes rewrite it, once for each sequence of rules."""
    return [form_of(fused_by(rules, odd_graph(name).graph)) for rules in sequences()]


@cache
def expected(name: str) -> np.ndarray:
    sketch = odd_graph(name)
    return logits_of(interpreted(sketch.graph, sketch))


def is_wrong(name: str, modules: dict[str, ModuleType]) -> bool:
    """Does any rule of these modules, alone or with the others, change the logits of a graph or fail?"""
    sketch = odd_graph(name)
    for rules, right in zip(sequences(modules), right_forms(name), strict=True):
        try:
            graph = fused_by(rules, sketch.graph, modules)
            if form_of(graph) == right:
                continue  # test_odd_graphs.py runs it
            with warnings.catch_warnings(action="ignore"):
                actual = logits_of(interpreted(graph, sketch))
        except Exception:  # whatever a pass without a check raises
            return True
        if actual.shape != expected(name).shape or not relative_error(actual, expected(name)) < MAX_ERROR:
            return True
        if fault_of(graph, sketch.graph):
            return True
    return modules["rewrite"] is not pass_modules()["rewrite"] and fuses_unasked(sketch, modules)


def fuses_unasked(sketch: Sketch, modules: dict[str, ModuleType]) -> bool:
    """Is a fused op put in that the device does not support?"""
    rules = rules_in(modules.values())
    graph = modules["rewrite"].rewrite(sketch.graph, rules, lambda node: False)
    return any(node.op in FUSED for node in graph.nodes)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_graph_shows_that_the_check_is_missing(check: Check):
    modules = pass_modules()
    mutants = [{**modules, check.module: mutant} for mutant in without(modules[check.module], check)]
    found = any(is_wrong(name, mutant) for name in ODD_GRAPHS for mutant in mutants)
    assert found, f"No odd graph needs the check {check}. Add one to tests/graph/odd_graphs.py, or remove the check."


def test_every_rule_has_its_place_in_the_order():
    assert set(fuse.RULES) == set(rules_in(pass_modules().values()))


def test_checks_are_found_in_every_file_of_rules():
    assert len(CHECKS) >= 10
    for name, module in pass_modules().items():
        assert not rules_in([module]) or any(check.module == name for check in CHECKS)
