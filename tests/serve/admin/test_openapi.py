"""schemathesis asks whatever /openapi.json allows and what it forbids, of a server with a real model.

Nothing is a 5xx, nothing hangs, nothing forbidden is taken, and what is declared of answers holds. That all is taken
which the schema allows cannot be asked for: a schema says nothing of fields that exclude each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.processes.test_process import Server, serving

pytestmark = pytest.mark.e2e

SMALL = ("--port", "0", "--num-blocks", "200", "--max-context", "96", "--max-rows", "16")
REQUEST_SECONDS = 120  # far more than any of it takes, on a machine that does other things too
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")


def schemathesis(server: Server, folder: Path, *options: object) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    command += ["--exclude-checks", "positive_data_acceptance", "--request-timeout", REQUEST_SECONDS]
    command += ["--exclude-path-regex", "^/api/(create|pull|push)$"]  # they ask registries, which may not be there
    command += ["--workers", 4, "--continue-on-failure", "--no-color", "--seed", 1, *options]
    command += ["--suppress-health-check", "all"]  # they judge how fast examples are made
    ran = subprocess.run(
        list(map(str, command)),
        env=os.environ | {"SCHEMATHESIS_HOOKS": HOOKS.stem, "PYTHONPATH": str(HOOKS.parent)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2000:]
    assert server.get("/ready").status_code == 200
    said = server.get("/metrics").text
    assert 'state="held"} 0.0\n' in said, "nothing is left behind"
    (made,) = (line for line in said.splitlines() if line.startswith("quire_output_tokens_total{"))
    assert float(made.split()[-1]) > 0, f"the model was really asked: {made}"


def test_some_generated_requests_are_answered_as_declared(model_file: Path, tmp_path: Path) -> None:
    with serving(f"toy={model_file}", *SMALL) as server:
        schemathesis(server, tmp_path, "--phases", "examples,fuzzing", "--max-examples", 4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_generated_requests_are_answered_as_declared(model_file: Path, tmp_path: Path) -> None:
    with serving(f"toy={model_file}", *SMALL) as server:
        schemathesis(server, tmp_path, "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", 40)
