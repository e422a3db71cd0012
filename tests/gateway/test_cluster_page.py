"""docs/CLUSTER.md: its commands run in their order, on ports that are free here; its flags and files exist."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.app import build_command
from quire.gateway.upstreams.declared import build_fleet
from quire.gateway.yaml_nodes import BadFleet, parse_yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "CLUSTER.md").read_text(encoding="utf-8")
PORTS = ("8001", "8002", "8003", "8004", "9000")
SMALL = "--max-context 512 --num-blocks 200 --max-rows 8 --max-step-tokens 256"


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.pure
def test_every_flag_on_the_page_exists():
    known = set()
    for name in ("gateway", "serve"):
        command = build_command([name])
        commands = getattr(command, "commands", {name: command})
        known |= {flag for parameter in commands[name].params for flag in parameter.opts}
    told = set(re.findall(r"(?<=[` ])--[a-z][a-z-]+", re.sub(r"curl .*|docker .*", "", PAGE)))
    assert told and told - known == set()


@pytest.mark.pure
def test_the_files_on_the_page_are_read(tmp_path):
    (tmp_path / "gpu-2").write_text("secret")
    first, second = fenced("yaml")
    plain = re.sub(r"    tls: .*\n", "", first).replace("/run/secrets/gpu-2", str(tmp_path / "gpu-2"))
    assert len(build_fleet(parse_yaml(plain, "fleet.yaml", BadFleet), tmp_path).upstreams) == 2
    assert build_fleet(parse_yaml(second, "fleet.yaml", BadFleet), tmp_path).kubernetes is not None


@pytest.mark.e2e
@pytest.mark.slow
def test_the_commands_of_the_page_run_in_their_order(model_file, tmp_path):
    free = {port: str(free_port()) for port in PORTS}
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "quire").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m quire "$@"\n')
    (tools / "quire").chmod(0o755)
    (tmp_path / "base").write_text(f"FROM {model_file}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    environment = kept | {"QUIRE_HOME": str(tmp_path / "store"), "PATH": f"{tools}:{os.environ['PATH']}"}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    script = "set -e\nquire create smollm2:135m -f base\n" + "\n".join(fenced("sh"))
    for ours, theirs in free.items():
        script = script.replace(ours, theirs)
    script = script.replace("--only", f"--only {SMALL}")
    with (tmp_path / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            assert shell.wait(400) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    story = (tmp_path / "story.txt").read_text()
    assert story.count("data: [DONE]") == 1 and '"error"' not in story


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
