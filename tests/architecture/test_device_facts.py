"""Code outside a device's folder asks for its facts, never for its name or for the methods that it has."""

import ast

import pytest

from tests.architecture.sources import PACKAGE, Source, is_under, sources_by_package

pytestmark = pytest.mark.pure

NAMES = {file.parent.name for file in PACKAGE.glob("devices/*/__init__.py")} - {"_triton"}
HOMES = tuple(f"devices.{name}" for name in (*NAMES, "_triton"))
OPENS = "devices.base"  # `open` checks that a folder's DEVICE is one
PROBES = {"isinstance", "hasattr", "getattr"}


def findings(source: Source) -> list[str]:
    if any(is_under(source.name, home) for home in HOMES):
        return []
    named = constants(source.tree)
    said = []
    for node in ast.walk(source.tree):
        match node:
            case ast.Compare(left, _, others) if any(names_a_device(each, named) for each in (left, *others)):
                said.append((node.lineno, "compares a device's name: ask its facts"))
            case ast.MatchValue(value) if names_a_device(value, named):
                said.append((node.lineno, "compares a device's name: ask its facts"))
            case ast.Dict(keys) if len({key.value for key in keys if isinstance(key, ast.Constant)} & NAMES) > 1:
                said.append((node.lineno, "a table of devices: each declares its facts in its own folder"))
            case ast.Call(ast.Name(probe), [probed, what, *_]) if probe in PROBES and source.name != OPENS:
                if is_device(probed) and not (isinstance(what, ast.Name) and what.id == "str"):
                    said.append((node.lineno, f"{probe} of a device: ask its facts"))
    return [f"{source.dotted}, line {line}: {what}" for line, what in said]


def constants(tree: ast.Module) -> set[str]:
    """Names that a module gives to a device's name."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and names_a_device(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def names_a_device(node: ast.AST, named: set[str]) -> bool:
    match node:
        case ast.Constant(str(value)):
            return value in NAMES
        case ast.Name(name):
            return name in named
        case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
            return any(names_a_device(part, named) for part in parts)
    return False


def is_device(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lower() in ("device", "opened") or name.endswith("_device")


@pytest.mark.parametrize("package", sources_by_package())
def test_no_module_compares_a_devices_name_or_probes_its_methods(package: str):
    assert [each for source in sources_by_package()[package] for each in findings(source)] == []


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("engine.load", "if device.name == 'cuda': pass", "compares a device's name"),
        ("engine.load", "if 'cpu' != choose(name): pass", "compares a device's name"),
        ("cli.show", "if name in ('cpu', 'cuda'): pass", "compares a device's name"),
        ("serve.models", "HOST = 'cpu'\nif ready.device == HOST: pass", "compares a device's name"),
        ("advisor.plan", "match name:\n    case 'cuda': pass", "compares a device's name"),
        ("advisor.plan", "ROWS = {'cpu': 64, 'cuda': 1024}", "a table of devices"),
        ("engine.load", "isinstance(device, HasMemory)", "isinstance of a device"),
        ("runner.memory", "if hasattr(self.device, 'memory'): pass", "hasattr of a device"),
        ("devices.facts", "if name == 'cuda': pass", "compares a device's name"),
    ],
)
def test_a_breach_is_found(name, text, said):
    assert any(said in finding for finding in findings(Source(name, text))), findings(Source(name, text))


@pytest.mark.parametrize(
    "name, text",
    [
        ("devices.cuda.device", "if place == 'cuda': pass"),
        ("devices.base", "if not isinstance(device, Device): pass"),
        ("engine.load", "opened = open(device) if isinstance(device, str) else device"),
        ("engine.load", "if device.facts().has_own_memory: pass\ndefault = 'cpu'"),
        ("cli.bench", "PARTS = {'cpu': 'quire.bench.cpu_table', 'gpu': 'quire.bench.gpu'}"),
    ],
)
def test_what_is_allowed_is_not_found(name, text):
    assert findings(Source(name, text)) == []
