"""docs/CLUSTER.md: its commands run in their order, on ports that are free here; its flags and files exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from quire.cli.app import build_command
from quire.cluster.guard import is_locked
from quire.cluster.spec import parse_cluster
from quire.gateway.upstreams.declared import build_fleet
from quire.gateway.yaml_nodes import BadFleet, parse_yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "CLUSTER.md").read_text(encoding="utf-8")
PORTS = ("8001", "8002", "8003", "8004", "8005", "8006", "9000", "9001")
SMALL = "--max-context 512 --num-blocks 200 --max-rows 8 --max-step-tokens 256"


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.pure
def test_every_flag_on_the_page_exists():
    known = set()
    for name in ("gateway", "serve", "advise"):
        command = build_command([name])
        commands = getattr(command, "commands", {name: command})
        known |= {flag for parameter in commands[name].params for flag in parameter.opts}
    for each in build_command(["cluster"]).commands["cluster"].commands.values():
        known |= {flag for parameter in each.params for flag in parameter.opts}
    told = set(re.findall(r"(?<=[` ])--[a-z][a-z-]+", re.sub(r"curl .*|docker .*|`ray .*|`python -m [^`]*`", "", PAGE)))
    assert told and told - known == set()


@pytest.mark.pure
def test_the_files_on_the_page_are_read(tmp_path):
    (tmp_path / "gpu-2").write_text("secret")
    first, second, cluster, roles = fenced("yaml")
    assert set(parse_cluster(cluster, "cluster.yaml", tmp_path).models) == {"chat", "helper"}
    assert set(parse_cluster(roles, "roles.yaml", tmp_path).groups) == {"chat/prefill", "chat/decode"}
    plain = re.sub(r"    tls: .*\n", "", first).replace("/run/secrets/gpu-2", str(tmp_path / "gpu-2"))
    assert len(build_fleet(parse_yaml(plain, "fleet.yaml", BadFleet), tmp_path).upstreams) == 2
    assert build_fleet(parse_yaml(second, "fleet.yaml", BadFleet), tmp_path).kubernetes is not None


def run_page(commands: list[str], model_file: Path, tmp_path: Path, ports: Mapping[str, str] | None = None) -> None:
    """Run these commands of the page in one shell, with the model and ports of this test."""
    free = {port: str(free_port()) for port in PORTS} if ports is None else ports
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "quire").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m quire "$@"\n')
    (tools / "quire").chmod(0o755)
    (tmp_path / "base").write_text(f"FROM {model_file}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    environment = kept | {"QUIRE_HOME": str(tmp_path / "store"), "PATH": f"{tools}:{os.environ['PATH']}"}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    script = "set -e\nquire create smollm2:135m -f base\n" + "\n".join(commands)
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
            with suppress(ProcessLookupError):  # the last command may have ended all of them
                os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.e2e
@pytest.mark.slow
def test_the_commands_of_the_page_run_in_their_order(model_file, tmp_path):
    run_page([each for each in fenced("sh") if "quire cluster" not in each], model_file, tmp_path)
    story = (tmp_path / "story.txt").read_text()
    assert story.count("data: [DONE]") == 1 and '"error"' not in story


@pytest.mark.e2e
@pytest.mark.slow
def test_the_commands_on_ray_run_in_their_order(model_file, tmp_path):
    pytest.importorskip("ray")
    ports = {"9100": str(free_port()), "9101": str(free_port())}
    for name, text, (ours, theirs) in zip(("cluster", "roles"), fenced("yaml")[2:], ports.items(), strict=True):
        (tmp_path / f"{name}.yaml").write_text(text.replace(ours, theirs))
    try:
        run_page([each for each in fenced("sh") if "quire cluster" in each], model_file, tmp_path, ports)
    finally:
        end_servers(tmp_path / "store")
    said = (tmp_path / "log").read_text()
    assert "helper has 2 replicas" in said and said.count('"choices":') == 2
    assert "chat/prefill has 2 replicas" in said and said.count("The cluster is down.") == 2


def end_servers(home: Path) -> None:
    """End what a failed run has left: servers by their guards' files, and the Ray that `up` has started."""
    for path in home.glob("clusters/*/run/*/*.alive"):
        if is_locked(path):
            for pid in (json.loads(path.read_text())[name] for name in ("guard", "server")):
                os.kill(pid, signal.SIGKILL)
    for path in home.glob("clusters/*/session.json"):
        os.killpg(json.loads(path.read_text())["process"], signal.SIGKILL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
