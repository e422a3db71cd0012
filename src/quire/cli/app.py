"""The table of commands. Only the one that is asked for is imported: it waits for nothing that it does not use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click
import typer
from typer.core import TyperArgument

from quire import __version__
from quire.config import settings
from quire.types.vllm_words import answer_to_flag

COMMANDS = {  # the module and the function of each, in the order of the help page
    "run": ("quire.cli.run", "run"),
    "serve": ("quire.cli.serve", "serve"),
    "key": ("quire.cli.key", "key"),
    "pull": ("quire.cli.pull", "pull"),
    "push": ("quire.cli.push", "push"),
    "list": ("quire.cli.list", "list_all"),
    "ls": ("quire.cli.list", "list_all"),
    "ps": ("quire.cli.ps", "ps"),
    "stop": ("quire.cli.stop", "stop"),
    "show": ("quire.cli.show", "show"),
    "create": ("quire.cli.create", "create"),
    "cp": ("quire.cli.cp", "cp"),
    "rm": ("quire.cli.rm", "rm"),
    "advise": ("quire.cli.advise", "advise"),
    "doctor": ("quire.cli.doctor", "doctor"),
    "bench": ("quire.cli.bench", "bench"),
    "complete": ("quire.cli.complete", "complete"),
}
HIDDEN = {"ls", "complete"}
COMPLETION = ("--install-completion", "--show-completion")


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The command that the arguments begin with; all of them if they begin with none."""
    app = typer.Typer(
        name="quire",
        help="One LLM inference engine from a laptop to a cluster.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_before)
    for name in arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS:
        module, function = COMMANDS[name]
        made = getattr(import_module(module), function)
        if isinstance(made, typer.Typer):  # a command that has commands
            app.add_typer(made, name=name)
        else:
            app.command(name, hidden=name in HIDDEN, cls=made.shown.parser, epilog=epilog(made.shown.examples))(made)
    return app


def epilog(examples: Sequence[str]) -> str | None:
    """The end of a help page. A blank line between two lines keeps them apart."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in examples)]) if examples else None


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"quire {__version__}")
        raise typer.Exit()


def _before(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    # Where one of these stands first, run_app has taken it already: typer knows no option with a value that may lack.
    install: str = typer.Option("", COMPLETION[0], metavar="[SHELL]", help="Complete with Tab in bash, zsh or fish."),
    show: str = typer.Option("", COMPLETION[1], metavar="[SHELL]", help="Print the script that does it."),
) -> None:
    """Options that stand before a command."""


def _our_flags() -> set[str]:
    return {each.flag for each in settings()} | {"--seed"}  # of `run`


def built(arguments: Sequence[str]) -> click.Command:
    """The command that the arguments begin with, or all of them, ready to parse."""
    group = typer.main.get_command(make_app(arguments))
    _restore_help(group)
    return group


def _restore_help(command: click.Command) -> None:
    """Give arguments their help back: from 8.5 on click's own field of that name overwrites what typer wrote."""
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and not parameter.help:
            parameter.help = command.callback.argument_help[parameter.name]  # type: ignore[union-attr]
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _restore_help(each)


def run_app(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    if list(arguments[:1]) in (["serve"], ["run"]) and (answer := answer_to_flag(arguments[1:], _our_flags())):
        typer.echo(f"error: {answer}", err=True)
        return 2
    if arguments and arguments[0] in COMPLETION:
        return int(import_module("quire.cli.completion").run_completion(arguments))
    try:
        built(arguments)(args=list(arguments), prog_name="quire")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0
