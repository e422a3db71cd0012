"""Passes with one check switched off: copies of the modules of `quire.graph.passes` made from their source.

A check is what keeps a rewrite from being applied:
    an operand of the condition of an `if` that only leaves (return, continue, break), or skips a step with `pass`
    an operand of a returned condition, in a function that returns a bool
    an operand of the condition of `… if … else None`
    the condition of a comprehension, which may let too much through or too little: both are tried
Tests for None are left alone: without them the next line raises, or another check says the same. So are lines with the
comment `cost`: without such a check the numbers are the same, computed at a higher cost.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

LEAVING = (ast.Return, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Check:
    """One condition of a module, by its place in the walk over the module's tree."""

    module: str
    index: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: {self.text}"


def checks_of(module: ModuleType) -> list[Check]:
    """All checks of a module, in order."""
    source, name = inspect.getsource(module), module.__name__.rpartition(".")[2]
    lines = source.splitlines()
    found = [Check(name, i, each.lineno, ast.unparse(each)) for i, (each, *_) in enumerate(_places(ast.parse(source)))]
    return [check for check in found if not lines[check.line - 1].endswith("# cost")]


def without(module: ModuleType, check: Check) -> list[ModuleType]:
    """Copies of the module without the check."""
    _, holder, _, passes = list(_places(ast.parse(inspect.getsource(module))))[check.index]
    values = (True, False) if isinstance(holder, ast.comprehension) else (passes,)
    return [_with_constant(module, check, value) for value in values]


def _with_constant(module: ModuleType, check: Check, value: bool) -> ModuleType:
    tree = ast.parse(inspect.getsource(module))
    condition, holder, field, _ = list(_places(tree))[check.index]
    constant = ast.copy_location(ast.Constant(value), condition)
    current = getattr(holder, field)
    if isinstance(current, list):
        current[next(i for i, each in enumerate(current) if each is condition)] = constant
    else:
        setattr(holder, field, constant)
    mutant = ModuleType(module.__name__)
    mutant.__file__ = module.__file__
    exec(compile(tree, f"{module.__file__} without line {check.line}", "exec"), vars(mutant))
    return mutant


Place = tuple[ast.expr, ast.AST, str, bool]  # the condition, what holds it, in which field, its value when it passes


def _places(tree: ast.Module) -> Iterator[Place]:
    for node in ast.walk(tree):
        match node:
            case ast.If() if all(isinstance(each, LEAVING) for each in node.body) and not node.orelse:
                yield from _operands(node, "test", ast.Or, passes=False)
            case ast.IfExp(orelse=ast.Constant(value=None)):
                yield from _operands(node, "test", ast.And, passes=True)
            case ast.comprehension():
                for condition in list(node.ifs):
                    yield from _in_list(condition, node, "ifs", ast.And, passes=True)
            case ast.FunctionDef(returns=ast.Name(id="bool")):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        yield from _operands(inner, "value", ast.And, passes=True)


def _operands(holder: ast.AST, field: str, kind: type[ast.boolop], *, passes: bool) -> Iterator[Place]:
    condition = getattr(holder, field)
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, kind):
        for each in list(condition.values):
            yield from _in_list(each, condition, "values", kind, passes=passes)
    elif not _is_none_test(condition):
        yield condition, holder, field, passes


def _in_list(each: ast.expr, holder: ast.AST, field: str, kind: type[ast.boolop], *, passes: bool) -> Iterator[Place]:
    if isinstance(each, ast.BoolOp) and isinstance(each.op, kind):
        for inner in list(each.values):
            yield from _in_list(inner, each, "values", kind, passes=passes)
    elif not _is_none_test(each):
        yield each, holder, field, passes


def _is_none_test(condition: ast.expr) -> bool:
    """`x is None`, `x is not None`, or the name of an object that may be None."""
    match condition:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Name():
            return True
        case ast.BoolOp(values=values):
            return all(map(_is_none_test, values))
    return False
