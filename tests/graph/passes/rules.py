"""Every rule of fusion, found in `quire.graph.passes`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

import quire.graph.passes
from quire.graph.graph import Graph, Node
from quire.graph.passes.rewrite import Rule

PASSES = "quire.graph.passes"
MAX_FUSIONS = 200  # of a small graph


def pass_modules() -> dict[str, ModuleType]:
    """The files of the package, by name."""
    names = [found.name for found in pkgutil.iter_modules(quire.graph.passes.__path__)]
    return {name: importlib.import_module(f"{PASSES}.{name}") for name in names}


def rules_in(modules: Iterable[ModuleType]) -> tuple[Rule, ...]:
    """The public functions of two parameters, `uses` and `node`, in order."""
    found = []
    for module in modules:
        for name, each in vars(module).items():
            is_own = inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
            if is_own and list(inspect.signature(each).parameters) == ["uses", "node"]:
                found.append(each)
    return tuple(found)


def all_rules() -> tuple[Rule, ...]:
    return rules_in(pass_modules().values())


def fused_by(rules: Sequence[Rule], graph: Graph, modules: Mapping[str, ModuleType] | None = None) -> Graph:
    """Narrow the tail and apply these rules wherever they match. `modules`: others in place of the package's."""
    modules, num_fusions = modules or pass_modules(), 0

    def supports(node: Node) -> bool:
        nonlocal num_fusions
        num_fusions += 1
        assert num_fusions <= MAX_FUSIONS, "a rule applies to its own result, without end"
        return True

    return modules["rewrite"].rewrite(modules["narrow"].narrow_tail(graph), rules, supports)


def fault_of(after: Graph, before: Graph) -> str:
    """What is wrong with the form of a rewritten graph; "" if nothing is. The interpreter does not see these."""
    made = [value.id for node in after.nodes for value in node.outputs]
    if len(made) > len(set(made)):
        return "two nodes make one value"
    if unread := _unread(after) & ({value.id for node in before.nodes for value in node.outputs} - _unread(before)):
        return f"nothing reads the values {sorted(unread)} any more, and they are still made"
    if any(node.op.name == "head" and node.output != after.outputs.get("logits") for node in after.nodes):
        return "a head makes something other than the logits"
    return ""


def _unread(graph: Graph) -> set[int]:
    """The values that no node reads and that are no output."""
    read = {value.id for node in graph.nodes for value in node.inputs}
    made = {value.id for node in graph.nodes for value in node.outputs}
    return made - read - {value.id for value in graph.outputs.values()}
