"""Shell completion, run by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from quire.cli.completion import FOLDERS, SCRIPTS, install_script
from tests.cli.conftest import Quire, store_default_model
from tests.cli.pseudo_terminal import emulated_terminal

pytestmark = pytest.mark.pure

BASH = """
source {script}
COMP_LINE={line!r} COMP_POINT={point}
_quire_completion
printf "%s\\n" "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def shell(quire: Quire) -> dict[str, str]:
    """Environment with `quire` on the PATH and a stored model."""
    store_default_model(quire)
    tools = quire.folder / "tools"
    tools.mkdir()
    command = tools / "quire"
    command.write_text(f'#!/bin/sh\nexec {" ".join(quire.command())} "$@"\n')
    command.chmod(0o755)
    return quire.environment | {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(quire.folder)}


def needs(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(
    "line, candidates",
    [
        ("quire run smo", ["smollm2:135m"]),
        ("quire run smollm2:", ["135m"]),  # bash splits the word at the colon, and replaces the part after it
        ("quire rm other smollm2:1", ["135m"]),
        ("quire serve --kv-dtype q", ["q8_0"]),
        ("quire bench off", ["offline"]),
        ('quire run "an open quote', [""]),
    ],
)
def test_bash_completes_commands_options_values_and_models(quire, shell, line, candidates):
    script = quire.folder / "quire.bash"
    script.write_text(SCRIPTS["bash"])
    code = BASH.format(script=script, line=line, point=len(line))
    done = subprocess.run(["bash", "-c", code], env=shell, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.splitlines() == candidates, done.stderr


def test_fish_completes_models(quire, shell):
    needs("fish")
    code = f"source {install_script('fish', quire.folder)}; complete --do-complete 'quire run smollm2:1'"
    done = subprocess.run(["fish", "-c", code], env=shell, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split() == ["smollm2:135m"]


def test_zsh_completes_models(quire, shell):
    needs("zsh")
    install_script("zsh", quire.folder)
    with emulated_terminal(
        ["/usr/bin/zsh", "-i"], shell | {"PS1": "ready> ", "ZDOTDIR": str(quire.folder)}
    ) as terminal:
        terminal.wait_for_display("ready>")
        terminal.type("quire show smollm2:1\t")
        terminal.wait_for_display("quire show smollm2:135m")


def test_a_script_is_installed_once_and_sourced_by_the_shell(quire, shell):
    (quire.folder / ".bashrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        done = subprocess.run(
            ["quire", "--install-completion", "bash"],
            env=shell,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
    script = quire.folder / FOLDERS["bash"] / "quire.bash"
    assert str(script) in done.stdout and script.read_text() == SCRIPTS["bash"].lstrip()
    assert (quire.folder / ".bashrc").read_text() == f"alias ll='ls -l'\nsource {script}\n"


def test_an_unsupported_shell_is_an_error(quire):
    shown = quire("--show-completion", "zsh")
    assert (shown.returncode, shown.stdout) == (0, SCRIPTS["zsh"].lstrip())
    unknown = quire("--install-completion", "tcsh")
    assert unknown.returncode == 1 and "tcsh is not supported. Use --install-completion bash|zsh|fish" in unknown.stderr
    assert not Path(quire.folder / ".bashrc").exists()
