"""`python -m quire.bench`: a command imports only what it needs."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from quire.bench import __main__ as bench
from quire.bench.__main__ import COMMANDS

pytestmark = pytest.mark.pure

HEAVY = ("msgspec", "starlette", "httptools", "httpx", "typer", "rich", "tokenizers")


def test_every_command_has_a_module():
    assert all(find_spec(module) is not None for module in COMMANDS.values())


@pytest.mark.parametrize("module", ["quire.bench.__main__", "quire.bench.core", "quire.bench.kernels"])
def test_commands_for_a_bare_machine_import_no_server(module):
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "arguments, peers, only",
    [
        (["cpu"], ("llama.cpp", "openvino"), ()),
        (["cpu", "--peers", "openvino", "--only", "streams,start"], ("openvino",), ("streams", "start")),
        (["cpu", "--peers", "none"], (), ()),
        (["cpu-hybrid", "--only", "formats"], ("llama.cpp",), ("formats",)),
    ],
)
def test_peers_and_parts_are_picked(arguments, peers, only, monkeypatch):
    found: list[Namespace] = []
    monkeypatch.setattr(bench, "import_module", lambda name: SimpleNamespace(main=found.append))
    bench.main(arguments)
    assert (found[0].peers, found[0].only) == (peers, only)


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["cpu", "--peers", "vllm"], "--peers: there is no 'vllm'; there are: llama.cpp, openvino"),
        (["cpu", "--only", "speed"], "--only: there is no 'speed'; there are: formats, streams"),
        (["cpu-hybrid", "--peers", "openvino"], "there is no 'openvino'; there are: llama.cpp"),
        (["core", "--only", "streams"], "--only: there is no 'streams'; there are: none"),
    ],
)
def test_unknown_peers_and_parts_are_refused(arguments, error, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert error in capsys.readouterr().err
