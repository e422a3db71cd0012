"""docs/REQUEST.md leads a reader through the code, so each place that it names must be there.

A place is inline code: `cache/radix.py`, `cache/radix.py:Name`, `cache/radix.py:Class.method`, or a folder, `cache/`.
Paths are relative to src/quire; those that begin with src/, tests/ or docs/ are relative to the root.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.sources import PACKAGE, ROOT

pytestmark = pytest.mark.pure

WALK = ROOT / "docs" / "REQUEST.md"
INLINE_CODE = re.compile(r"`([^`\n]+)`")
PLACE = re.compile(r"(?P<path>[\w.-]+(?:/[\w.-]+)*(?:\.(?:py|md|cpp|h|toml)|/))(?::(?P<name>\w+(?:\.\w+)*))?(?:\(\))?")
FROM_ROOT = ("src/", "tests/", "docs/")


def places(text: str) -> Iterator[tuple[str, str | None]]:
    for code in INLINE_CODE.findall(text):
        if found := PLACE.fullmatch(code):
            yield found["path"], found["name"]


def defines(body: list[ast.stmt], name: str) -> bool:
    """Whether these statements define the dotted name: a function, a class, or a variable or field."""
    first, _, rest = name.partition(".")
    for node in body:
        match node:
            case ast.ClassDef() if node.name == first:
                return not rest or defines(node.body, rest)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == first:
                return not rest
            case ast.Assign(targets) if any(isinstance(t, ast.Name) and t.id == first for t in targets):
                return not rest
            case ast.AnnAssign(ast.Name(first_id)) if first_id == first:
                return not rest
            case ast.If() | ast.Try():
                if defines([*node.body, *node.orelse], name):
                    return True
    return False


def findings(text: str) -> Iterator[str]:
    for path, name in places(text):
        file = (ROOT if path.startswith(FROM_ROOT) else PACKAGE) / path
        if not (file.is_dir() if path.endswith("/") else file.is_file()):
            yield f"{path} does not exist"
        elif name and not (file.suffix == ".py" and defines(ast.parse(file.read_text(encoding="utf-8")).body, name)):
            yield f"{path} does not define {name}"


def test_the_walk_names_only_what_exists():
    text = WALK.read_text(encoding="utf-8")
    assert list(findings(text)) == []
    assert any(name for _, name in places(text)), "the walk names no function at all"


@pytest.mark.parametrize(
    "text, said",
    [
        ("see `cache/imagined.py`", "cache/imagined.py does not exist"),
        ("see `imagined/`", "imagined/ does not exist"),
        ("see `tests/imagined/test_it.py`", "tests/imagined/test_it.py does not exist"),
        ("see `devices/cpu/bindings.py:imagined`", "devices/cpu/bindings.py does not define imagined"),
        ("see `devices/cpu/bindings.py:native.deeper`", "devices/cpu/bindings.py does not define native.deeper"),
        ("see `devices/cpu/csrc/module.cpp:features`", "devices/cpu/csrc/module.cpp does not define features"),
    ],
)
def test_a_breach_is_found(text: str, said: str):
    assert list(findings(text)) == [said]


def test_what_exists_is_not_found():
    in_package = "`devices/cpu/bindings.py:native`, `devices/cpu/bindings.py:logger`, `__init__.py`, `devices/`"
    from_root = "`tests/architecture/sources.py:Source.tree`, `tests/architecture/`"
    no_place = "`StepPlan`, `plan(now)`, `make test`"
    assert list(findings(f"{in_package} {from_root} {no_place}")) == []


def test_names_are_found_where_they_are_defined():
    source = "class A:\n    size: int = 1\n    class B:\n        def run(self): ...\nif True:\n    LATE = 1\n"
    body = ast.parse(source).body
    assert all(defines(body, name) for name in ("A", "A.size", "A.B.run", "LATE"))
    assert not any(defines(body, name) for name in ("B", "run", "A.run", "A.B.size", "size"))
