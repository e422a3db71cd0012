"""Who may import whom. The tables hold the whole planned layout, so a package is checked from its first file on."""

import ast
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.architecture.sources import PACKAGE, TORCH_HOMES, Source, all_sources, is_under, sources_by_package

pytestmark = pytest.mark.pure

# Lowest first: a package may import what stands before it in its own row. Rows do not see each other.
BASE = ("types", "config", "observe")  # the standard library alone; everyone may import these
BARE = (*BASE, "report")  # these too import the standard library alone
PURE = ("cache", "scheduler", "speech", "text", "grammar", "store")
COMPUTE = ("ops", "quant", "graph", "weights", "models", "devices", "distributed", "sampling", "spec", "lora", "runner")

# What joins the rows or stands outside of them, and all that it may import besides BASE and itself.
INSIDE = (*PURE, *COMPUTE, "engine", "serve", "gateway")
BENCH = ("machine", "load", "accuracy", "engines", "figures", "page")  # lowest first; the commands import them all
JOINS = {
    "engine.messages": (),
    "engine.live": ("engine.messages",),
    "engine.recovery": ("engine.messages", "engine.live"),
    "engine.client": ("engine.messages", "engine.live", "engine.recovery"),
    "engine.echo": (),
    "engine.watch": (),
    "engine.wire": ("engine.messages",),
    "engine.readers": ("engine.wire",),
    "engine.launch": (
        "engine.messages",
        "engine.client",
        "engine.wire",
        "engine.readers",
        "engine.echo",
        "engine.watch",
    ),
    "engine.hub": ("engine.messages", "engine.client", "engine.wire", "engine.readers"),
    "engine.grammars": ("cache", "scheduler", "grammar", "sampling", "runner"),
    "engine.event_pages": ("cache", "engine.messages"),
    "engine.load_report": ("cache", "scheduler"),
    "engine.core": (*PURE, *COMPUTE, "engine.messages", "engine.grammars", "engine.event_pages", "engine.load_report"),
    "transfer": (),
    "engine.block_bytes": ("cache", "devices"),
    "engine.transfer_tally": ("transfer", "engine.messages"),
    "engine.transfers": (
        *("cache", "devices", "transfer", "engine.messages", "engine.core", "engine.block_bytes"),
        "engine.transfer_tally",
    ),
    "engine.context": COMPUTE,
    "engine.drafting": (*PURE, *COMPUTE, "engine.context"),
    "engine.load": (
        *(*PURE, *COMPUTE, "engine.messages", "engine.grammars", "engine.core", "engine.model_files"),
        *("engine.context", "engine.drafting", "engine.transfers"),
    ),
    "engine.process": (*PURE, *COMPUTE, "engine.messages", "engine.core", "engine.load", "engine.wire", "engine.echo"),
    "engine.local": ("engine.messages", "engine.client", "engine.load"),
    "engine.need": (*COMPUTE, "engine.context", "engine.drafting"),
    "engine.model_files": ("text", "weights", "models"),
    "engine.chat_forms": ("text",),
    "engine.prompt_forms": ("engine.chat_forms",),
    "engine.pending_answer": ("text", "engine.messages"),
    "engine.offline": ("engine.client", "engine.messages", "engine.pending_answer"),
    "engine.transcription": ("speech", "engine.client", "engine.messages"),
    "engine.async_vector_calls": ("engine.vector_calls",),
    "engine.vector_calls": ("text", "engine.client", "engine.messages", "engine.offline", "engine.chat_forms"),
    "engine.supported": ("weights", "models", "engine.model_files"),
    "engine.llm": (*PURE, *COMPUTE, "engine"),
    "engine.async_llm": (*PURE, *COMPUTE, "engine"),
    "serve": (
        "speech",
        "text",
        "grammar",
        "engine.client",
        "engine.launch",
        "engine.messages",
        "engine.readers",
        "engine.hub",
        "engine.need",
        "engine.supported",
        "engine.model_files",
        "engine.wire",
        "gateway.library",
        "gateway.routing",
        "store",
        "weights",
    ),
    # The relay is a server too: it has the HTTP side, the keys and the dialects of `serve`, and encodes prompts.
    "gateway.http": (),
    "gateway.health": (),
    "gateway.upstreams": ("gateway.http", "gateway.health", "gateway.yaml_nodes"),
    "gateway.accounts": ("serve.access",),
    "gateway.relay": ("text", "serve.http", "serve.access", "serve.dialects", "serve.relayed", "gateway"),
    "gateway.server": ("serve", "gateway"),
    "gateway": ("store", "engine.client", "engine.launch"),
    "cluster.guard": (),  # of the standard library alone: it stays beside every server
    "cluster": ("gateway.yaml_nodes",),
    "report": (),
    **{f"bench.{name}": (*INSIDE, "report", *(f"bench.{each}" for each in BENCH[:n])) for n, name in enumerate(BENCH)},
    "bench": (*INSIDE, "report"),
    "advisor": (*INSIDE, "report"),
    "console": INSIDE,
    "cli": (*INSIDE, "report", "bench", "advisor", "console", "cluster"),
    "__main__": ("cli",),
}
MARKERS = ("", "__version__")  # quire/__init__.py
# What that file names for type checkers alone; tests/types/test_typed.py shows that it imports nothing.
PUBLIC = ("types", "engine.llm", "engine.async_llm")

TORCH = ("torch", "triton")
RAY_HOME = "cluster.ray_api"
DEVICES = {"cpu", "cuda", "rocm", "_triton"} | {file.parent.name for file in PACKAGE.glob("devices/*/__init__.py")}
SHARED_BY_DEVICES = "devices._triton"

# An import inside a function hides a dependency. Allowed are packages that may be absent or that a start should not
# wait for, and these modules.
OPTIONAL = (*TORCH, "opentelemetry", "prometheus_client", "xgrammar", "uvloop")
LATE = {"devices": "opens a device by its name"}

ENVIRONMENT = {("os", name) for name in ("environ", "environb", "getenv", "putenv", "unsetenv")}
ARGV = {("sys", "argv"), ("sys", "orig_argv")}
READS_ENVIRONMENT = ("config", "devices._triton.chain")  # the latter sets a switch of Triton's compiler
READS_ARGV = ("config", "cli", "__main__", "cluster.guard")

PURE_CORE = ("cache", "scheduler")
IMPURE_CALLS = {"open", "print", "input"}
IMPURE_MODULES = {
    *("time", "datetime", "random", "secrets", "uuid"),  # another answer at another call
    *("os", "io", "pathlib", "shutil", "tempfile", "socket", "select", "selectors", "ssl"),  # files and networks
    *("threading", "multiprocessing", "concurrent", "asyncio", "subprocess", "signal"),  # other things that run
}


class Import(NamedTuple):
    line: int
    target: str  # `from a import b` is "a.b": b may be a module, or a name in one
    in_function: bool


def imports(source: Source) -> Iterator[Import]:
    functions = [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {id(node) for function in functions for node in ast.walk(function)}
    package = source.dotted.split(".")[: None if source.is_package else -1]
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(module, names, level):
                start = package[: len(package) - level + 1] if level else []
                targets = [".".join([*start, *([module] if module else []), alias.name]) for alias in names]
            case ast.Call(
                ast.Name("import_module") | ast.Attribute(attr="import_module"), [ast.Constant(str(name)), *_]
            ):
                yield Import(node.lineno, name, in_function=False)  # how discovery and devices.open are spelled
                continue
            case _:
                continue
        yield from (Import(node.lineno, target, id(node) in inner) for target in targets)


def allowed(name: str) -> tuple[str, ...]:
    """The packages of quire that a module may import. A module that no table knows may import nothing."""
    if name == "":
        return PUBLIC
    for row in (BASE, PURE, COMPUTE):
        for position, package in enumerate(row):
            if is_under(name, package):
                return row[: position + 1] if row is BASE else (*BASE, *row[: position + 1])
    owner = next((unit for unit in JOINS if is_under(name, unit)), None)
    return (*BASE, owner, *JOINS[owner]) if owner else ()


def findings(source: Source) -> list[str]:
    said = [f"line {line}: {what}" for line, what in (*import_findings(source), *use_findings(source))]
    return [f"{source.dotted}, {what}" for what in said]


def import_findings(source: Source) -> Iterator[tuple[int, str]]:
    name = source.name
    for line, target, in_function in imports(source):
        top, _, inside = target.partition(".")
        optional = in_function and top in OPTIONAL
        if top == "quire":
            if inside not in MARKERS and not any(is_under(inside, package) for package in allowed(name)):
                yield line, f"may not import {target}"
            device = ".".join(inside.split(".")[:2])
            by_name = device.startswith("devices.") and device.removeprefix("devices.") in DEVICES
            shared = device == SHARED_BY_DEVICES and is_under(name, "devices")
            if by_name and not shared and not is_under(name, device):
                yield line, f"a device is opened by name, never imported: {target}"
        elif top not in sys.stdlib_module_names and any(is_under(name, package) for package in BARE) and not optional:
            yield line, f"only the standard library here, not {target}"
        if top in TORCH and not any(is_under(name, home) for home in TORCH_HOMES):
            yield line, f"{top} lives in {', '.join(TORCH_HOMES)}"
        if top == "ray" and name != RAY_HOME:
            yield line, f"ray lives in {RAY_HOME}"
        if top in IMPURE_MODULES and any(is_under(name, package) for package in PURE_CORE):
            yield line, f"the pure core has no clock and no I/O, so no {target}"
        if in_function and not optional and name not in LATE:
            yield line, f"import of {target} inside a function"


def use_findings(source: Source) -> Iterator[tuple[int, str]]:
    """Process state that is reached by use rather than by import."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(ast.Name(module), attr):
                used = {(module, attr)}
            case ast.ImportFrom(module, names, 0):
                used = {(module, alias.name) for alias in names}
            case ast.Call(ast.Name(function)) if function in IMPURE_CALLS:
                if any(is_under(source.name, package) for package in PURE_CORE):
                    yield node.lineno, f"the pure core has no I/O, so no {function}()"
                continue
            case _:
                continue
        if used & ENVIRONMENT and not any(is_under(source.name, unit) for unit in READS_ENVIRONMENT):
            yield node.lineno, "only config.py reads the environment"
        if used & ARGV and not any(is_under(source.name, unit) for unit in READS_ARGV):
            yield node.lineno, "only config.py and cli/ read the arguments"


@pytest.mark.parametrize("package", sources_by_package())
def test_imports_follow_the_layout(package: str):
    assert [each for source in sources_by_package()[package] for each in findings(source)] == []


def test_the_layout_knows_every_package():
    names = {source.name for source in all_sources() if source.name not in ("", "engine")}
    assert [name for name in sorted(names) if not allowed(name)] == []


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("cache.blocks", "import torch", "torch lives in"),
        ("runner.runner", "from triton import jit", "triton lives in"),
        ("cache.blocks", "import time", "no clock"),
        ("scheduler.queues", "from os import path", "no clock"),
        ("cache.blocks", "def f():\n    open('x')", "no open()"),
        ("types.step", "import numpy", "only the standard library"),
        ("report.plot", "import numpy", "only the standard library"),
        ("advisor.words", "from quire.bench import load", "may not import quire.bench"),
        ("bench.load.session", "from quire.bench.figures import table", "may not import quire.bench.figures"),
        ("bench.page.terminal", "from quire.bench import compare", "may not import quire.bench.compare"),
        ("observe.trace", "import opentelemetry", "only the standard library"),
        ("types.step", "from quire.config import Config", "may not import quire.config"),
        ("config", "from quire import observe", "may not import quire.observe"),
        ("cache.blocks", "from quire.scheduler import queues", "may not import quire.scheduler"),
        ("cache.blocks", "from ..scheduler.queues import Queue", "may not import quire.scheduler"),
        ("scheduler.queues", "from quire.runner import batch", "may not import quire.runner"),
        ("runner.batch", "import quire.scheduler", "may not import quire.scheduler"),
        ("engine.client", "from quire.cache import blocks", "may not import quire.cache"),
        ("engine.fresh", "from quire.cache import blocks", "may not import quire.cache"),
        ("serve.app", "from quire.engine import core", "may not import quire.engine.core"),
        ("gateway.router", "import quire.text", "may not import quire.text"),
        ("serve.app", "from quire.cli import main", "may not import quire.cli"),
        ("novel.thing", "import quire.types", "may not import quire.types"),
        ("runner.runner", "from quire.devices import cpu", "never imported"),
        ("devices", "from .cpu import bindings", "never imported"),
        ("devices.cuda.lower", "import quire.devices.cpu.lower", "never imported"),
        ("runner.runner", "import_module('quire.devices.cpu')", "never imported"),
        ("store.pull", "def f():\n    import httpx", "inside a function"),
        ("serve.app", "import os\nx = os.environ['X']", "reads the environment"),
        ("store.pull", "from os import getenv", "reads the environment"),
        ("serve.app", "import sys\nsys.argv", "read the arguments"),
        ("cluster.host", "import_module('ray')", "ray lives in"),
        ("gateway.router", "from quire.cluster import plan", "may not import quire.cluster"),
    ],
)
def test_a_breach_is_found(name, text, said):
    source = Source(name, text, is_package=name == "devices")
    assert any(said in finding for finding in findings(source)), findings(source)


@pytest.mark.parametrize(
    "name, text",
    [
        ("", "__version__ = '1'"),
        ("config", "import os\nfrom quire.types import step\nos.environ"),
        ("observe.metrics", "from quire.config import Config\nimport time"),
        ("scheduler.scheduler", "import heapq\nimport numpy\nfrom quire.cache.kv_cache import KVCache"),
        ("engine.core", "from quire.scheduler import scheduler\nfrom quire.runner import runner\nimport quire.devices"),
        ("serve.app", "from quire.engine.client import generate\nfrom quire import __version__, text"),
        ("devices.cuda.lower", "import torch\nfrom quire.devices import _triton, base"),
        ("devices.cpu.lower", "from .bindings import native"),
        ("observe.trace", "def start():\n    import opentelemetry"),
        ("__main__", "import sys\nfrom quire.cli.main import main\nmain(sys.argv)"),
    ],
)
def test_what_is_allowed_is_not_found(name, text):
    assert findings(Source(name, text)) == []
