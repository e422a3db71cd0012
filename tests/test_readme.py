"""Every block of the README runs as it stands there, in a home of its own: shell, Python, and what they print.

Only what differs between machines is put in place of the README's words (`STANDS_IN`): ports, and loads that would take
minutes. Hub, registries and the other engine are servers on this machine. `make` is asked what it would do.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from quire.bench.engines.fixed_delay_server import fixed_delay_server
from tests.advisor import traces
from tests.store.docker_registry import running_registry
from tests.store.hub import publish
from tests.store.server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LANGUAGES = ("sh", "python", "text", "console")
SMALL = ("--max-context", "1024", "--max-rows", "8", "--max-step-tokens", "256")
SECONDS = 300
SAME_CHARS = 24  # of a line that a model wrote: kernels of other processors may choose another word later on
VARIES = re.compile(
    r'(?<=seconds=)[\d.e-]+|(?<="id":"chatcmpl-)\w+|(?<="created":)\d+|(?<="system_fingerprint":"fp_)\w+'
)


class Block(NamedTuple):
    """A fenced block, and the line that it begins in."""

    line: int
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(page[: each.start()].count("\n") + 1, each[1], each[2]) for each in found]


BLOCKS = blocks(README)


@dataclass
class Machine:
    """A user's: a home with the default model in it, a folder to work in, and a server once one was started."""

    folder: Path
    environment: dict[str, str]
    stands_in: dict[str, str]
    printed: str = ""  # by the last block of Python
    open_things: ExitStack = field(default_factory=ExitStack)

    def put_in(self, text: str) -> str:
        """The text with what stands in for the README's own words."""
        for ours, theirs in self.stands_in.items():
            text = text.replace(ours, theirs)
        return text

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=SECONDS,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done

    @contextmanager
    def served(self, command: str) -> Iterator[None]:
        """A server that the README starts, until the last block."""
        words = [*shlex.split(self.put_in(command), comments=True), *SMALL]
        child = subprocess.Popen(words, env=self.environment, cwd=self.folder, stderr=subprocess.PIPE, text=True)
        assert child.stderr is not None
        said = iter(child.stderr)
        assert any(line.startswith("Serving") for line in said), f"{command} does not serve"
        drain = threading.Thread(target=lambda: list(said))
        drain.start()
        yield
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
        drain.join()
        child.stderr.close()


@pytest.fixture(scope="module")
def machine(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("readme")
    home, tools, work = folder / "home", folder / "tools", folder / "work"
    for each in (home, tools, work):
        each.mkdir()
    (tools / "quire").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m quire "$@"\n')
    (tools / "quire").chmod(0o755)
    (work / ".venv").symlink_to(sys.prefix)
    (work / "base").write_text(f"FROM {model_file}\n")
    traces.write_trace(work / "trace.jsonl", traces.shared(40, gap=0.1))
    with ExitStack() as things, socket.create_server(("127.0.0.1", 0)) as found:
        port = str(found.getsockname()[1])
        found.close()
        hub, other = things.enter_context(serving()), things.enter_context(fixed_delay_server())
        publish(hub, "bartowski/SmolLM2-135M-Instruct-GGUF", {"SmolLM2-135M-Instruct-Q4_K_M.gguf": b"GGUF" * 50})
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("QUIRE_") and "proxy" not in name.lower()
        }
        own = {"HOME": str(home), "QUIRE_HOME": str(home / "store"), "QUIRE_PORT": port, "HF_ENDPOINT": hub.url}
        own |= {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TERM": "dumb"}
        few = "--concurrency 1 --requests 2 --warmup 0 --input-len 8 --output-len 4"
        stands_in = {"localhost:8000": f"localhost:{port}", "http://localhost:8080": other}
        stands_in |= {"--concurrency 1,8,32": few, "quire run ": "quire run --max-tokens 20 "}
        made = Machine(work, kept | own, stands_in, open_things=things)
        made.run("quire", "create", "smollm2:135m", "-f", "base")
        yield made


@pytest.fixture(scope="module")
def registry(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In place of Ollama's, which has a model of that name, and of the one at localhost:5000."""
    running = machine.open_things.enter_context(running_registry(tmp_path_factory.mktemp("registry")))
    machine.environment["QUIRE_REGISTRY"] = running.host
    machine.stands_in["localhost:5000"] = running.host
    machine.run("quire", "cp", "smollm2:135m", f"{running.host}/library/llama3.2")
    machine.run("quire", "push", f"{running.host}/library/llama3.2")


def test_every_block_says_what_it_is():
    assert [block for block in BLOCKS if block.language not in LANGUAGES] == []
    assert {block.language for block in BLOCKS} == set(LANGUAGES)
    assert README.count("\n    quire ") == 0, "commands stand in fenced blocks, which are run"


@pytest.mark.parametrize("block", BLOCKS, ids=[f"line-{block.line}-{block.language}" for block in BLOCKS])
def test_a_block_runs_as_it_stands_there(block: Block, machine: Machine, request: pytest.FixtureRequest):
    """In their order: later ones use what earlier ones made."""
    if "localhost:5000" in block.text:
        request.getfixturevalue("registry")
    match block.language:
        case "sh":
            run_shell(block.text, machine)
        case "python":
            machine.printed = machine.run(sys.executable, "-c", machine.put_in(block.text)).stdout
        case "text":
            compare_lines(machine.printed.splitlines(), block.text.splitlines())
        case "console":
            run_console(block.text, machine)


def run_shell(text: str, machine: Machine) -> None:
    """One shell for the block, which stops at the first command that fails."""
    script = []
    for line in text.splitlines():
        if line.startswith("make "):
            asked = shlex.split(line, comments=True)
            planned = subprocess.run(
                [*asked, "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            assert planned.returncode == 0, planned.stderr
        elif line.startswith("quire serve"):
            machine.open_things.enter_context(machine.served(line))
        else:
            script.append(machine.put_in(line))
    if script:
        machine.run("bash", "-e", "-c", "\n".join(script))


def run_console(text: str, machine: Machine) -> None:
    """A command after "$ ", and the JSON that it prints: the same fields, and the same values where they are told."""
    command, _, printed = text.removeprefix("$ ").rpartition("\n  }'\n")
    done = machine.run("bash", "-e", "-c", machine.put_in(f"{command}\n  }}'"))
    found, told = json.loads(done.stdout), json.loads(printed)
    assert shape(found) == shape(told)
    assert found["usage"]["prompt_tokens"] == told["usage"]["prompt_tokens"]
    answers = [json.loads(each["choices"][0]["message"]["content"]) for each in (found, told)]
    assert answers[0].keys() == answers[1].keys()


def shape(value: object) -> object:
    """Its fields and their types."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else type(value).__name__


def compare_lines(found: list[str], told: list[str]) -> None:
    assert len(found) == len(told), found
    for mine, theirs in zip(found, told, strict=True):
        if theirs.startswith("Usage("):
            assert VARIES.sub("", mine) == VARIES.sub("", theirs)
        else:  # how many tokens come at once depends on the machine
            assert mine.replace("|", "")[:SAME_CHARS] == theirs.replace("|", "")[:SAME_CHARS]


@pytest.fixture
def made_environment(tmp_path: Path) -> dict[str, str]:
    """What `make` has set up: an environment with the command in it, newer than all that it is made of."""
    script = tmp_path / "venv" / "bin" / "quire"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho this is quire\n")
    script.chmod(0o755)
    (tmp_path / "venv" / ".quire-installed").touch()
    return {"VENV": str(tmp_path / "venv"), "PREFIX": str(tmp_path / "prefix")}


def make(target: str, settings: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    command = ["make", target, *(f"{name}={value}" for name, value in settings.items())]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | more, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_install_makes_quire_a_command_and_uninstall_takes_it_back(made_environment: dict[str, str]):
    link = Path(made_environment["PREFIX"]) / "bin" / "quire"
    for _ in range(2):
        done = make("install", made_environment)
        assert done.returncode == 0, done.stderr
        assert f"{link.parent} is not in your PATH" in done.stderr
    path = f"{link.parent}:{os.environ['PATH']}"
    said = subprocess.run(["quire"], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True)
    assert said.stdout == "this is quire\n"
    assert make("install", made_environment, PATH=path).stderr == ""
    assert make("uninstall", made_environment).returncode == 0 and not link.exists()


def test_install_leaves_another_program_of_that_name_alone(made_environment: dict[str, str]):
    other = Path(made_environment["PREFIX"]) / "bin" / "quire"
    other.parent.mkdir(parents=True)
    other.write_text("another")
    done = make("install", made_environment)
    assert done.returncode != 0 and "is there already and is another program" in done.stderr
    assert "nothing was removed" in make("uninstall", made_environment).stderr and other.read_text() == "another"
