"""Extension is a file: whatever lies in an extension folder is found here and held to that folder's contract.

A folder that does not exist yet has a row and no tests. What makes a model a model, or a dialect a dialect, is said
together with the first one: a function from module to findings, added to the row.
"""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.architecture.sources import PACKAGE, TORCH_HOMES, Source, all_sources, is_under

pytestmark = pytest.mark.pure

Contract = Callable[[Source], Iterator[str]]

HAS_TORCH = importlib.util.find_spec("torch") is not None


def is_documented(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield f"{source}: no docstring"


def imports_alone(source: Source) -> Iterator[str]:
    """A new interpreter imports this module first: it must not lean on what another one imported before."""
    needs_torch = any(is_under(source.name, home) for home in TORCH_HOMES)
    if not needs_torch or HAS_TORCH:
        yield from import_findings([source], torch_is_welcome=needs_torch)


def is_a_policy(source: Source) -> Iterator[str]:
    """It reads its own example, and leaves a request or lets it pass."""
    script = (
        "import importlib, sys\n"
        "from quire.gateway.classify import Classifier\n"
        "from quire.gateway.yaml_nodes import parse_yaml\n"
        "from quire.gateway.policy import Declarations, RequestFacts\n"
        "subjects = Classifier({'code': ['fix it'], 'prose': ['a poem']})\n"
        "declared = Declarations({'pro': frozenset({'a'})}, {'subjects': subjects})\n"
        "module = importlib.import_module(sys.argv[1])\n"
        "assert isinstance(module.read(parse_yaml(module.EXAMPLE), declared)(RequestFacts()), bool)\n"
    )
    child = subprocess.run([sys.executable, "-c", script, source.dotted], capture_output=True, text=True, check=False)
    if child.returncode:
        yield f"{source}: {child.stderr.strip().splitlines()[-1]}"


def is_a_balancer(source: Source) -> Iterator[str]:
    """It chooses the only replica that there is."""
    if source.name.endswith(".contract"):
        return
    script = (
        "import importlib, sys\n"
        "from quire.gateway.balancers.contract import BalancedRequest, Replica\n"
        "balancer = importlib.import_module(sys.argv[1]).make()\n"
        "assert balancer.choose(BalancedRequest(1), [Replica('a')], 0.0).replica == 'a'\n"
        "assert balancer.choose(BalancedRequest(1), [], 0.0) is None\n"
    )
    child = subprocess.run([sys.executable, "-c", script, source.dotted], capture_output=True, text=True, check=False)
    if child.returncode:
        yield f"{source}: {child.stderr.strip().splitlines()[-1]}"


EXTENSION_POINTS: dict[str, tuple[Contract, ...]] = {
    "models": (is_documented, imports_alone),
    "quant": (is_documented, imports_alone),
    "devices": (is_documented, imports_alone),
    "serve.dialects": (is_documented, imports_alone),
    "store.sources": (is_documented, imports_alone),
    "spec": (is_documented, imports_alone),
    "text.parsers": (is_documented, imports_alone),
    "bench.load.workloads": (is_documented, imports_alone),
    "gateway.policies": (is_documented, imports_alone, is_a_policy),
    "gateway.balancers": (is_documented, imports_alone, is_a_balancer),
}


def import_findings(sources: list[Source], torch_is_welcome: bool = False) -> Iterator[str]:
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    names = [source.dotted for source in sources]
    child = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=False)
    if child.returncode:
        yield f"{', '.join(names)}: {child.stderr.strip().splitlines()[-1]}"
    elif not torch_is_welcome:
        dear = {"torch", "triton", "transformers"} & set(child.stdout.split())
        yield from (f"{', '.join(names)}: imports {name}" for name in sorted(dear))


def extensions(folder: str) -> list[Source]:
    """The files directly in the folder, and its subfolders as packages (a device is one)."""
    depth = folder.count(".") + 1
    inside = [source for source in all_sources() if source.name.startswith(folder + ".")]
    return [source for source in inside if source.name.count(".") == depth]


def every_extension() -> list[tuple[Contract, Source]]:
    rows = EXTENSION_POINTS.items()
    return [(contract, source) for folder, row in rows for source in extensions(folder) for contract in row]


def every_package() -> dict[str, list[Source]]:
    """Importable modules by the top-level package or module that they are in."""
    packages: dict[str, list[Source]] = {}
    for source in all_sources():
        if not source.name.endswith("__main__") and not any(is_under(source.name, home) for home in TORCH_HOMES):
            packages.setdefault(source.name.split(".")[0], []).append(source)
    return packages


@pytest.mark.parametrize("contract, source", [pytest.param(c, s, id=f"{s}-{c.__name__}") for c, s in every_extension()])
def test_an_extension_keeps_its_contract(contract: Contract, source: Source):
    assert list(contract(source)) == []


@pytest.mark.parametrize("source", all_sources(), ids=str)
def test_every_public_module_says_what_it_is(source: Source):
    last = source.name.split(".")[-1]
    if not last.startswith("_") or last == "__main__":
        assert list(is_documented(source)) == []


@pytest.mark.parametrize("sources", [pytest.param(s, id=name or "quire") for name, s in every_package().items()])
def test_a_package_imports_without_torch(sources: list[Source]):
    assert list(import_findings(sources)) == []


def test_every_folder_of_the_tree_is_a_package():
    """A folder without __init__.py imports as a namespace, so that nothing fails until it is missing from a wheel."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(f.relative_to(PACKAGE)) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def test_a_breach_is_found():
    assert list(is_documented(Source("models.bare", "x = 1"))) == ["quire.models.bare: no docstring"]
    assert list(is_documented(Source("models.good", '"""Draws it."""'))) == []
    absent = list(imports_alone(Source("devices.absent", "")))
    assert len(absent) == 1 and "No module named 'quire.devices.absent'" in absent[0]


def test_a_package_that_imports_torch_is_found(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "leaner.py").write_text("import torch")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    class Foreign(Source):
        dotted = "leaner"

    assert list(import_findings([Foreign("", "")])) == ["leaner: imports torch"]
