"""Crossing a size means that a concept is missing its name; some names mean that nobody looked for it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.architecture.sources import PACKAGE, ROOT

pytestmark = pytest.mark.pure

MAX_FILE_LINES = 400
MAX_ARCHITECTURE_LINES = 80  # of a file that declares a model architecture
MAX_TEST_FILE_LINES = 600
MAX_KERNEL_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6

# Kernels have a file size alone: one loop nest is long, and takes a pointer for each of its operands.
KERNEL_FOLDERS = {"csrc", "kernels", "_triton"}
NATIVE = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inc"}

EMPTY_MODULE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
EMPTY_CLASS_ENDINGS = ("Manager", "Impl")


@cache
def files_by_folder() -> dict[str, list[Path]]:
    """All files by the folder of the package, or of the tests, that they are in."""
    found = [*PACKAGE.rglob("*"), *(ROOT / "tests").rglob("*.py")]
    folders: dict[str, list[Path]] = {}
    for path in sorted(path for path in found if path.suffix == ".py" or path.suffix in NATIVE):
        home = PACKAGE if path.is_relative_to(PACKAGE) else ROOT / "tests"
        folders.setdefault(f"{home.name}/{path.relative_to(home).parts[0]}", []).append(path)
    return folders


def is_kernel(path: PurePosixPath) -> bool:
    return path.is_relative_to("src/quire/devices") and bool(KERNEL_FOLDERS & set(path.parts))


def max_lines(path: PurePosixPath) -> int:
    if is_kernel(path):
        return MAX_KERNEL_FILE_LINES
    return MAX_TEST_FILE_LINES if path.parts[0] == "tests" else MAX_FILE_LINES


def findings(path: PurePosixPath, text: str) -> Iterator[str]:
    """What is wrong with the file at this path, which is relative to the root of the repository."""
    num_lines, limit = len(text.splitlines()), max_lines(path)
    if path.is_relative_to("src/quire/models") and "\n@architecture(" in text:
        limit = MAX_ARCHITECTURE_LINES
    if num_lines > limit:
        yield f"{path}: {num_lines} lines, at most {limit}"
    if EMPTY_MODULE_NAMES & {path.stem, *path.parts[:-1]}:
        yield f"{path}: a name that says nothing"
    if path.suffix != ".py":
        return
    is_measured = path.parts[0] != "tests" and not is_kernel(path)
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef() if node.name.endswith(EMPTY_CLASS_ENDINGS):
                yield f"{path}:{node.lineno}: class {node.name}: a name that says nothing"
            case ast.FunctionDef() | ast.AsyncFunctionDef() if is_measured:
                yield from (f"{path}:{node.lineno}: {what}" for what in function_findings(node))


def function_findings(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if num_lines > MAX_FUNCTION_LINES:
        yield f"{node.name} has {num_lines} lines, at most {MAX_FUNCTION_LINES}"
    spread = [arg for arg in (node.args.vararg, node.args.kwarg) if arg]
    named = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *spread)]
    parameters = named[1:] if named[:1] in (["self"], ["cls"]) else named
    if len(parameters) > MAX_PARAMETERS and not _is_op(node):
        yield f"{node.name} has {len(parameters)} parameters, at most {MAX_PARAMETERS}"


def _is_op(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Is it an op's reference or shape rule? Its parameters are the op's operands and attributes."""
    names = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
    return any(name == "op" or name.endswith(".shape") for name in names)


@pytest.mark.parametrize("folder", files_by_folder())
def test_sizes_and_names(folder: str):
    found = []
    for path in files_by_folder()[folder]:
        found += findings(PurePosixPath(path.relative_to(ROOT).as_posix()), path.read_text(encoding="utf-8"))
    assert found == []


LONG_FUNCTION = "def f():\n" + "    pass\n" * 60
SEVEN = "a, b, /, c, *d, e, f, **g"


@pytest.mark.parametrize(
    "path, text, said",
    [
        ("src/quire/cache/blocks.py", "\n" * 401, "401 lines, at most 400"),
        ("tests/cache/test_blocks.py", "\n" * 601, "601 lines, at most 600"),
        ("src/quire/devices/cpu/csrc/norm.cpp", "\n" * 601, "601 lines, at most 600"),
        ("src/quire/models/llama.py", "\n" * 80 + "@architecture('Llama')\ndef f(): ...", "82 lines, at most 80"),
        ("src/quire/cache/blocks.py", LONG_FUNCTION, "f has 61 lines, at most 60"),
        ("src/quire/cache/blocks.py", f"async def f({SEVEN}): ...", "f has 7 parameters, at most 6"),
        ("src/quire/cache/blocks.py", f"class A:\n    def f(self, {SEVEN}): ...", "f has 7 parameters"),
        ("src/quire/cache/utils.py", "", "a name that says nothing"),
        ("src/quire/common/blocks.py", "", "a name that says nothing"),
        ("src/quire/cache/blocks.py", "class BlockManager: ...", "class BlockManager"),
        ("tests/cache/fakes.py", "class PoolImpl: ...", "class PoolImpl"),
    ],
)
def test_a_breach_is_found(path: str, text: str, said: str):
    found = list(findings(PurePosixPath(path), text))
    assert any(said in finding for finding in found), found


@pytest.mark.parametrize(
    "path, text",
    [
        ("src/quire/cache/blocks.py", "\n" * 400),
        ("src/quire/cache/blocks.py", "def f():\n" + "    pass\n" * 59),
        ("src/quire/cache/blocks.py", "class A:\n    def f(self, a, b, c, d, e, f): ..."),
        ("src/quire/devices/cpu/csrc/norm.cpp", "\n" * 600),
        ("src/quire/devices/cuda/kernels/norm.py", LONG_FUNCTION + f"def g({SEVEN}): ..."),
        ("src/quire/devices/_triton/norm.py", "\n" * 600),
        ("src/quire/devices/cpu/csrc/x86/norm.cpp", "\n" * 600),
    ],
)
def test_what_fits_is_not_found(path: str, text: str):
    assert list(findings(PurePosixPath(path), text)) == []
