"""Extension is a file: whatever lies in an extension folder is found here and held to that folder's contract.

A folder that does not exist yet has a row and no tests. What makes a model a model, or a dialect a dialect, is said
together with the first one: a function from module to findings, added to the row.
"""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.architecture.sources import PACKAGE, TORCH_HOMES, Source, all_sources, is_under, sources_by_package

pytestmark = pytest.mark.pure

Contract = Callable[[Sequence[Source]], Iterator[str]]

HAS_TORCH = importlib.util.find_spec("torch") is not None
EXPENSIVE = ("torch", "triton", "transformers")

# Imports each module in a process of its own, forked from an interpreter that has imported nothing of quire: a module
# must not lean on what another one imported before. numpy is not in question, and starting with it saves 0.2 s each.
IMPORT_ALONE = """
import importlib, os, sys
import numpy
for name in sys.argv[1:]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
            said = " ".join(each for each in ("torch", "triton", "transformers") if each in sys.modules)
        except BaseException as error:
            said = f"! {type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        said = lines.read()
    _, status = os.waitpid(child, 0)
    print(name, "! it ended with status %d" % status if status else " ".join(said.split()))
"""


def is_documented(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        if not ast.get_docstring(source.tree):
            yield f"{source}: no docstring"


def imports_alone(sources: Sequence[Source]) -> Iterator[str]:
    """Each module imports as the first one of an interpreter, and imports nothing expensive unless it may."""
    found = {source.dotted: source for source in sources if HAS_TORCH or not may_use_torch(source)}
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALONE, *found], capture_output=True, text=True, check=True)
    for line in ran.stdout.splitlines():
        name, _, said = line.partition(" ")
        if said.startswith("! "):
            yield f"{name}: {said[2:]}"
        elif said and not may_use_torch(found[name]):
            yield f"{name}: imports {said}"


def may_use_torch(source: Source) -> bool:
    return any(is_under(source.name, home) for home in TORCH_HOMES)


def is_a_policy(sources: Sequence[Source]) -> Iterator[str]:
    """It reads its own example, and leaves a request or lets it pass."""
    script = (
        "import importlib, sys\n"
        "from quire.gateway.classify import Classifier\n"
        "from quire.gateway.yaml_nodes import parse_yaml\n"
        "from quire.gateway.policy import Declarations, RequestFacts\n"
        "subjects = Classifier({'code': ['fix it'], 'prose': ['a poem']})\n"
        "declared = Declarations({'pro': frozenset({'a'})}, {'subjects': subjects})\n"
        "for name in sys.argv[1:]:\n"
        "    module = importlib.import_module(name)\n"
        "    assert isinstance(module.read(parse_yaml(module.EXAMPLE), declared)(RequestFacts()), bool), name\n"
    )
    yield from failures(script, sources)


def is_a_balancer(sources: Sequence[Source]) -> Iterator[str]:
    """It chooses the only replica that there is."""
    script = (
        "import importlib, sys\n"
        "from quire.gateway.balancers.contract import BalancedRequest, Replica\n"
        "for name in sys.argv[1:]:\n"
        "    balancer = importlib.import_module(name).make()\n"
        "    assert balancer.choose(BalancedRequest(1), [Replica('a')], 0.0).replica == 'a', name\n"
        "    assert balancer.choose(BalancedRequest(1), [], 0.0) is None, name\n"
    )
    yield from failures(script, [source for source in sources if not source.name.endswith(".contract")])


def failures(script: str, sources: Sequence[Source]) -> Iterator[str]:
    """Run a script with the modules' names; return the end of its error, if it fails."""
    names = [source.dotted for source in sources]
    child = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=False)
    if child.returncode:
        yield child.stderr.strip().splitlines()[-1]


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


def extensions(folder: str) -> list[Source]:
    """The files directly in the folder, and its subfolders as packages (a device is one)."""
    depth = folder.count(".") + 1
    inside = [source for source in all_sources() if source.name.startswith(folder + ".")]
    return [source for source in inside if source.name.count(".") == depth]


@pytest.mark.parametrize(
    "contract, folder",
    [pytest.param(c, f, id=f"{f}-{c.__name__}") for f, row in EXTENSION_POINTS.items() for c in row],
)
def test_extensions_keep_their_contract(contract: Contract, folder: str):
    assert extensions(folder) and list(contract(extensions(folder))) == []


@pytest.mark.parametrize("package", sources_by_package())
def test_every_public_module_says_what_it_is(package: str):
    names = {source: source.name.split(".")[-1] for source in sources_by_package()[package]}
    public = [each for each, last in names.items() if not last.startswith("_") or last == "__main__"]
    assert list(is_documented(public)) == []


@pytest.mark.parametrize("package", sources_by_package())
def test_a_package_imports_without_torch(package: str):
    sources = sources_by_package()[package]
    importable = [each for each in sources if not each.name.endswith("__main__") and not may_use_torch(each)]
    assert list(import_findings(importable)) == []


def import_findings(sources: Sequence[Source]) -> Iterator[str]:
    """Import all of them in one interpreter."""
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    names = [source.dotted for source in sources]
    child = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=False)
    if child.returncode:
        yield f"{', '.join(names)}: {child.stderr.strip().splitlines()[-1]}"
    else:
        expensive = set(EXPENSIVE) & set(child.stdout.split())
        yield from (f"{', '.join(names)}: imports {name}" for name in sorted(expensive))


def test_every_folder_of_the_tree_is_a_package():
    """A folder without __init__.py imports as a namespace, so that nothing fails until it is missing from a wheel."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(f.relative_to(PACKAGE)) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def test_a_breach_is_found():
    assert list(is_documented([Source("models.bare", "x = 1")])) == ["quire.models.bare: no docstring"]
    assert list(is_documented([Source("models.good", '"""Draws it."""')])) == []
    absent = list(imports_alone([Source("models.llama", ""), Source("devices.absent", "")]))
    assert absent == ["quire.devices.absent: ModuleNotFoundError: No module named 'quire.devices.absent'"]


def test_a_module_that_imports_torch_or_leans_on_another_is_found(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "heavy.py").write_text("import torch")
    (tmp_path / "leaner.py").write_text("import sys\nassert 'heavy' in sys.modules, 'heavy comes first'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    class Foreign(Source):
        @property
        def dotted(self) -> str:
            return self.name

    sources = [Foreign("heavy", ""), Foreign("leaner", "")]
    assert list(imports_alone(sources)) == ["heavy: imports torch", "leaner: AssertionError: heavy comes first"]
    assert list(import_findings(sources)) == ["heavy, leaner: imports torch"]
