"""`quire run` with the real engine and the bundled model."""

from __future__ import annotations

import importlib
import os
import random
import re
import subprocess
import sys

import pytest

from quire.bench.load.draft_loads import DRAFT_LOADS
from tests.cli.pseudo_terminal import on_terminal

pytestmark = pytest.mark.e2e

NOT_IMPORTED = {
    *("torch", "transformers"),
    *("huggingface_hub", "httpx", "ssl"),  # fetch models
    *("asyncio", "zmq", "msgspec", "starlette", "uvicorn", "quire.serve"),  # serve them
    *("quire.grammar.tool_schemas", "quire.text.parsers.registry"),  # required calls, tools
    *("rich", "llguidance", "quire.text.go_chat"),  # help pages, prescribed forms, templates of Ollama's kind
    *("quire.bench", "quire.advisor", "quire.console"),
}


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return kept | {"QUIRE_HOME": str(tmp_path / "home"), "TERM": "dumb"}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(environment, "-m", "quire", "run", *arguments)


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_the_model_answers_a_question(environment, model_file):
    flags = ("--temperature", "0", "--max-tokens", "60", "--verbose")
    done = run(environment, *flags, str(model_file), "Why is the sky blue?")
    assert done.returncode == 0, done.stderr
    assert "scatter" in done.stdout
    for figure in ("load time", "prompt tokens", "cached tokens", "time to first token", "tokens per second"):
        assert figure in done.stderr


def test_the_drafts_of_an_edit_are_counted(environment, model_file):
    """Drafts are chosen as if every step took the same time: by measured times they may not pay on a busy machine."""
    edit = DRAFT_LOADS["code"].prompt(random.Random(1), 49152)
    flags = ("--raw", "--temperature", "0", "--max-tokens", "80", "--verbose")
    script = (
        "import sys\nfrom quire.cli.main import main\nfrom quire.scheduler.step_costs import StepCosts\n"
        "StepCosts.seconds = lambda costs, size: 1.0\n"
        "sys.exit(main(['run', *sys.argv[1:]]))"
    )
    with_drafts = python(environment, "-c", script, *flags, str(model_file), edit)
    assert with_drafts.returncode == 0, with_drafts.stderr
    line = r"^drafted tokens: +(\d+), of which (\d+) were accepted \(suffix (\d+) of (\d+)\)$"
    found = re.search(line, with_drafts.stderr, re.MULTILINE)
    assert found, with_drafts.stderr
    num_drafted, num_accepted, *of_suffix = map(int, found.groups())
    assert num_drafted >= num_accepted > 0 and of_suffix == [num_accepted, num_drafted]
    without = run(environment, *flags, "--speculate", "off", str(model_file), edit)
    assert without.returncode == 0 and without.stdout == with_drafts.stdout != ""
    assert re.search(r"^drafted tokens: +0$", without.stderr, re.MULTILINE), without.stderr


def test_the_same_seed_gives_the_same_answer(environment, model_file):
    flags = ("--temperature", "1", "--seed", "5", "--max-tokens", "12", str(model_file), "Tell me a story.")
    first, second = run(environment, *flags), run(environment, *flags)
    assert first.returncode == 0 and first.stdout == second.stdout != ""


def test_a_truncated_model_file_is_an_error_with_the_next_step(environment, model_file, tmp_path):
    short = tmp_path / "short.gguf"
    with model_file.open("rb") as file:
        short.write_bytes(file.read(5_000_000))
    done = run(environment, str(short), "hi")
    assert done.returncode == 1 and done.stderr.startswith("error: short.gguf: ")
    assert "download it again" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "draft, error",
    [
        ("unheard-of", "error: unheard-of:latest is not here, and 127.0.0.1:1 cannot be reached"),
        ("nothing.gguf", "error: There is no file or folder nothing.gguf: check the path."),
    ],
)
def test_a_missing_draft_model_is_an_error_of_one_line(environment, model_file, draft, error):
    environment |= {"QUIRE_REGISTRY": "127.0.0.1:1", "NO_PROXY": "127.0.0.1"}  # nothing listens there
    done = run(environment, "--draft", draft, "--max-tokens", "3", str(model_file), "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(error) and done.stderr.strip().count("\n") == 0, done.stderr


def test_an_answer_in_a_chat_is_stopped_and_the_chat_continues(environment, model_file):
    command = [sys.executable, "-m", "quire", "run", "--temperature", "0", str(model_file)]
    with on_terminal(command, environment) as terminal:
        terminal.stop_long_answer()
        terminal.say("/clear")
        terminal.say("/set max_tokens 60")
        assert "scatter" in terminal.say("Why is the sky blue?")
        terminal.type("\x04")
        assert terminal.wait_for_exit() == 0


def test_an_answer_imports_only_what_it_uses(environment, model_file):
    script = (
        "import gc, sys\nfrom quire.cli.main import main\n"
        f"code = main(['run', '--max-tokens', '2', {str(model_file)!r}, 'hi'])\n"
        "print(*sys.modules, file=sys.stderr)\nsys.exit(code or not gc.isenabled())"
    )
    done = python(environment, "-c", script)
    assert done.returncode == 0
    assert set(done.stderr.splitlines()[-1].split()) & NOT_IMPORTED == set()


def test_the_engine_has_the_methods_that_the_command_line_uses():
    llm = importlib.import_module("quire.engine.llm").LLM
    assert all(hasattr(llm, name) for name in ("stream", "close"))
