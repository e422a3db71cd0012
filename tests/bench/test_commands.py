"""`python -m quire.bench`: a command imports only what it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

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
