"""Hot named tuples are built by position only beside their class: elsewhere a reordered field would go unnoticed."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.sources import Source, all_sources

pytestmark = pytest.mark.pure


def is_raw_constructor(node: ast.expr) -> bool:
    """Is this `tuple.__new__`?"""
    return isinstance(node, ast.Attribute) and node.attr == "__new__" and ast.unparse(node.value) == "tuple"


def positional_constructions(source: Source) -> Iterator[str]:
    """Uses of `tuple.__new__`, by whatever name, and of `_make` for a class of another module."""
    classes = {node.name for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)} | {"cls"}
    aliases = {
        target.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and is_raw_constructor(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    constructors = {
        id(node.func)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]) in classes
    }
    assigned = {id(node.value) for node in ast.walk(source.tree) if isinstance(node, ast.Assign)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{source} imports {name.name}" for name in node.names if name.name == "new_tuple")
        is_alias = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in aliases
        is_raw = isinstance(node, ast.expr) and is_raw_constructor(node) and id(node) not in assigned
        if (is_alias or is_raw) and id(node) not in constructors:
            yield f"{source}:{node.lineno} builds a tuple of another module by position"
        if isinstance(node, ast.Attribute) and node.attr == "_make" and ast.unparse(node.value) not in classes:
            yield f"{source}:{node.lineno} builds {ast.unparse(node.value)} by position"


def test_no_module_builds_the_named_tuples_of_another_by_position():
    assert [said for source in all_sources() for said in positional_constructions(source)] == []


@pytest.mark.parametrize(
    "text",
    [
        "from quire.types.step import Part\ntuple.__new__(Part, (1, 2))",
        "from quire.types.step import Part\nnew = tuple.__new__\nnew(Part, (1, 2))",
        "from quire.types.step import Part\nnew = tuple.__new__\nmake = partial(new, Part)",
        "from quire.types.step import Part\npartial(tuple.__new__, Part)",
        "from quire.types.step import Part, new_tuple\nnew_tuple(Part, (1, 2))",
        "from quire.types.step import Part\nPart._make((1, 2))",
    ],
)
def test_a_construction_by_position_is_found(text: str):
    assert list(positional_constructions(Source("a", text)))


@pytest.mark.parametrize(
    "text",
    [
        "class Part: ...\nnew = tuple.__new__\ndef make(): return new(Part, (1, 2))",
        "class Part:\n    @classmethod\n    def of(cls): return cls._make([1, 2])",
        "from quire.types.step import Part\nPart(1, 2)",
    ],
)
def test_a_class_may_be_built_by_position_beside_it(text: str):
    assert list(positional_constructions(Source("a", text))) == []
