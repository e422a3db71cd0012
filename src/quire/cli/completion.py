"""Shell completion: the scripts of `quire --show-completion`, and the candidates that they request.

A script passes the line up to the cursor to the hidden command `quire complete`, which prints one candidate per line.
Only the module of the command on that line is imported.
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

# Bash splits words at colons, which model names contain: the part before the last colon is on the line already.
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
START_FILES = {"bash": ".bashrc", "zsh": ".zshrc"}  # fish loads all scripts of its folder
FOLDERS = {"bash": ".bash_completions", "zsh": ".zsh_completions", "fish": ".config/fish/completions"}


def print_candidates(line: str) -> None:
    """Print the completions of a line that begins with `quire`."""
    words = _words(line)
    if not words:
        return
    app = import_module("quire.cli.app")  # not at the top: a circular import
    group = app.build_command([*words[1:2], ""])
    shell = import_module("click.shell_completion").ShellComplete(group, {}, "quire", "")
    for item in shell.get_completions(words[1:-1], words[-1]):
        if item.type == "plain":
            typer.echo(item.value)


def _words(line: str) -> list[str]:
    """Split a line into words. The last one is at the cursor, and may be empty."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quote: a prompt, which has no completions
        return []
    return [*words, ""] if not line or line[-1].isspace() else words


def stored_models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of stored models that begin with `incomplete`."""
    home = ctx.params.get("home")
    stored = open_store(load({"home": home} if home else {})).list()
    names = [f"{each.name}:{each.tag}" for each in stored]
    return [name for name in names if name.startswith(incomplete)]


def run_completion(arguments: Sequence[str]) -> int:
    """Run `quire --show-completion [SHELL]` or `quire --install-completion [SHELL]`; return the exit code."""
    action, shell = arguments[0], arguments[1] if len(arguments) > 1 else _current_shell()
    if shell not in SCRIPTS:
        problem = f"{shell} is not supported" if shell else "cannot detect the shell"
        typer.echo(f"error: {problem}. Use {action} {'|'.join(SCRIPTS)}.", err=True)
        return 1
    if action == SHOW:
        typer.echo(SCRIPTS[shell].strip())
    else:
        typer.echo(f"Installed completion in {install_script(shell, Path.home())}. Start a new {shell} to use it.")
    return 0


def install_script(shell: str, home: Path) -> Path:
    """Write the script and source it from the shell's start file; return the script's path."""
    script = home / FOLDERS[shell] / f"quire.{shell}"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPTS[shell].lstrip(), encoding="utf-8")
    if shell in START_FILES:
        start_file, line = home / START_FILES[shell], f"source {shlex.quote(str(script))}"
        present = start_file.read_text(encoding="utf-8") if start_file.exists() else ""
        if line not in present.splitlines():
            start_file.write_text(f"{present}{'' if present.endswith(chr(10)) or not present else chr(10)}{line}\n")
    return script


def _current_shell() -> str:
    """Return the name of the shell that started this process; empty if it cannot be detected."""
    shellingham = import_module("shellingham")  # imported here: nothing else needs it
    try:
        return str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        return ""
