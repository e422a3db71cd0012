"""`python -m quire.bench`: a part brings in what it needs, and nothing of the others."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from quire.bench.__main__ import PARTS

pytestmark = pytest.mark.pure

HEAVY = ("msgspec", "starlette", "httptools", "httpx", "typer", "rich", "tokenizers")


def test_every_part_has_its_module():
    assert all(find_spec(module) is not None for module in PARTS.values())


@pytest.mark.parametrize("module", ["quire.bench.__main__", "quire.bench.core", "quire.bench.kernels"])
def test_what_a_bare_machine_runs_needs_no_server(module):
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
