"""Every rule of fusion, found in `quire.graph.passes`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

import quire.graph.passes
from quire.graph.graph import Graph, Node
from quire.graph.passes import fuse
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


def sequences(modules: Mapping[str, ModuleType] | None = None) -> list[tuple[Rule, ...]]:
    """Every rule alone; all in the order of fuse.py; and all but merge_linears, whose result no other rule matches.

    `modules`: others in place of the package's.
    """
    rules = {rule.__name__: rule for rule in rules_in((modules or pass_modules()).values())}
    order = [rules[rule.__name__] for rule in fuse.RULES]
    without_merge = [rule for rule in order if rule.__name__ != fuse.merge_linears.__name__]
    return [*((rule,) for rule in rules.values()), tuple(order), tuple(without_merge)]


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
    heads = {node.output.id for node in after.nodes if node.op.name == "head"}
    if heads & {value.id for node in after.nodes for value in node.inputs}:
        return "something reads the logits of a head"
    return ""


def form_of(graph: Graph) -> str:
    """The nodes of a graph, with their values numbered in order: equal for graphs that compute alike."""
    numbers: dict[int, int] = {}
    lines = []
    for node in graph.nodes:
        values = [numbers.setdefault(value.id, len(numbers)) for value in (*node.inputs, *node.outputs)]
        lines.append(f"{node.op.name} {values} {dict(node.weights)} {dict(node.attrs)} {node.cache}")
    return "\n".join([*lines, *(f"{kind} {numbers.get(value.id)}" for kind, value in graph.outputs.items())])


def _unread(graph: Graph) -> set[int]:
    """The values that no node reads and that are no output."""
    read = {value.id for node in graph.nodes for value in node.inputs}
    made = {value.id for node in graph.nodes for value in node.outputs}
    return made - read - {value.id for value in graph.outputs.values()}
