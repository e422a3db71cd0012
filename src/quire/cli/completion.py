"""Completion in a shell: the scripts that `quire --show-completion` prints, and the candidates that they ask for.

A script sends the line up to the cursor to the hidden command `quire complete`, and gets one candidate a line. Only the
command that the line begins with is imported for it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer

from quire.config import load
from quire.store.store import open_store

SHOW = "--show-completion"

# Bash breaks words at colons, which stand in names of models: what precedes the last one is on the line already.
BASH = r"""
_quire_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n' typed head
    COMPREPLY=($(quire complete "$line" 2>/dev/null))
    typed="${line##*[[:space:]]}"
    if [[ "$typed" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        head="${typed%"${typed##*:}"}"
        COMPREPLY=("${COMPREPLY[@]#"$head"}")
    fi
}
complete -o default -F _quire_completion quire
"""
ZSH = r"""
#compdef quire
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_quire_completion() {
    local found="$(quire complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)"
    if [[ -n "$found" ]]; then compadd -- "${(@f)found}"; else _files; fi
}
compdef _quire_completion quire
"""
FISH = r"""
complete --command quire --arguments '(quire complete (commandline -cp | string collect) 2>/dev/null)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
START_FILES = {"bash": ".bashrc", "zsh": ".zshrc"}  # fish finds the script by its folder
FOLDERS = {"bash": ".bash_completions", "zsh": ".zsh_completions", "fish": ".config/fish/completions"}


def print_candidates(line: str) -> None:
    """Print what may stand at the end of a line that begins with `quire`."""
    words = _words(line)
    if not words:
        return
    app = import_module("quire.cli.app")  # here: it imports this module
    group = app.built([*words[1:2], ""])
    shell = import_module("click.shell_completion").ShellComplete(group, {}, "quire", "")
    for item in shell.get_completions(words[1:-1], words[-1]):
        if item.type == "plain":
            typer.echo(item.value)


def _words(line: str) -> list[str]:
    """The words of a line; the last one is the one at the cursor, and may be empty."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quote: its content is a prompt, which cannot be completed
        return []
    return [*words, ""] if not line or line[-1].isspace() else words


def stored_models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of models in the store that begin like this."""
    home = ctx.params.get("home")
    stored = open_store(load({"home": home} if home else {})).list()
    names = [f"{each.name}:{each.tag}" for each in stored]
    return [name for name in names if name.startswith(incomplete)]


def run_completion(arguments: Sequence[str]) -> int:
    """`quire --show-completion [SHELL]`, `quire --install-completion [SHELL]`; the exit code."""
    action, shell = arguments[0], arguments[1] if len(arguments) > 1 else _present_shell()
    if shell not in SCRIPTS:
        typer.echo(f"error: {action} {shell}: name a shell, {' or '.join(SCRIPTS)}.".replace("  ", " "), err=True)
        return 1
    if action == SHOW:
        typer.echo(SCRIPTS[shell].strip())
    else:
        typer.echo(f"Completion is installed in {install(shell, Path.home())}. Start a new {shell} to use it.")
    return 0


def install(shell: str, home: Path) -> Path:
    """Write the script, and have the shell read it when it starts; return the script's path."""
    script = home / FOLDERS[shell] / f"quire.{shell}"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPTS[shell].lstrip(), encoding="utf-8")
    if shell in START_FILES:
        start_file, line = home / START_FILES[shell], f"source {shlex.quote(str(script))}"
        present = start_file.read_text(encoding="utf-8") if start_file.exists() else ""
        if line not in present.splitlines():
            start_file.write_text(f"{present}{'' if present.endswith(chr(10)) or not present else chr(10)}{line}\n")
    return script


def _present_shell() -> str:
    """The shell that this process was started from; empty if it cannot be found out."""
    shellingham = import_module("shellingham")  # here: no other command needs it
    try:
        return str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        return ""
