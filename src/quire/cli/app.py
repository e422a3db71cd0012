"""The table of commands. Only the module of the command that runs is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click
import typer
from typer.core import TyperArgument

from quire import __version__
from quire.config import settings
from quire.types.vllm_words import answer_to_flag

COMMANDS = {  # module and function of each command, in the order of the help page
    "run": ("quire.cli.commands.run", "run"),
    "embed": ("quire.cli.commands.embed", "embed_lines"),
    "serve": ("quire.cli.commands.serve", "serve"),
    "gateway": ("quire.cli.commands.gateway", "gateway"),
    "cluster": ("quire.cli.commands.cluster", "cluster"),
    "transcribe": ("quire.cli.commands.transcribe", "transcribe_files"),
    "key": ("quire.cli.commands.key", "key"),
    "pull": ("quire.cli.commands.pull", "pull"),
    "push": ("quire.cli.commands.push", "push"),
    "list": ("quire.cli.commands.list", "list_models"),
    "ls": ("quire.cli.commands.list", "list_models"),
    "ps": ("quire.cli.commands.ps", "ps"),
    "stop": ("quire.cli.commands.stop", "stop"),
    "show": ("quire.cli.commands.show", "show"),
    "create": ("quire.cli.commands.create", "create"),
    "cp": ("quire.cli.commands.cp", "cp"),
    "rm": ("quire.cli.commands.rm", "rm"),
    "architectures": ("quire.cli.commands.architectures", "architectures"),
    "advise": ("quire.cli.commands.advise", "advise"),
    "doctor": ("quire.cli.commands.doctor", "doctor"),
    "bench": ("quire.cli.commands.bench", "bench"),
    "complete": ("quire.cli.commands.complete", "complete"),
}
HIDDEN = {"ls", "complete"}
COMPLETION = ("--install-completion", "--show-completion")


def make_typer_app(arguments: Sequence[str]) -> typer.Typer:
    """Return an app with the command named by the first argument; with all commands if it names none."""
    app = typer.Typer(
        name="quire",
        help="One LLM inference engine from a laptop to a cluster.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_global_options)
    for name in arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS:
        module, function = COMMANDS[name]
        body = getattr(import_module(module), function)
        if isinstance(body, typer.Typer):  # a command with subcommands
            app.add_typer(body, name=name)
        else:
            page = body.help_page
            app.command(name, hidden=name in HIDDEN, cls=page.parser, epilog=_examples(page.examples))(body)
    return app


def _examples(lines: Sequence[str]) -> str | None:
    """Return the end of a help page. The blank lines keep typer from joining two examples."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else None


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"quire {__version__}")
        raise typer.Exit()


def _global_options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    # For the help page only: run_app handles both, because typer has no option with an optional value.
    install: str = typer.Option("", COMPLETION[0], metavar="[SHELL]", help="Install Tab completion: bash, zsh, fish."),
    show: str = typer.Option("", COMPLETION[1], metavar="[SHELL]", help="Print the completion script."),
) -> None:
    """Options that come before a command."""


def _known_flags() -> set[str]:
    return {each.flag for each in settings()} | {"--seed"}  # --seed is an option of `run`


def build_command(arguments: Sequence[str]) -> click.Command:
    """Return the click command that parses these arguments."""
    group = typer.main.get_command(make_typer_app(arguments))
    _restore_help(group)
    return group


def _restore_help(command: click.Command) -> None:
    """Restore the help of arguments: click 8.5 and newer overwrite typer's field of that name."""
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and not parameter.help:
            parameter.help = command.callback.argument_help[parameter.name]  # type: ignore[union-attr]
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _restore_help(each)


def run_app(arguments: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    if list(arguments[:1]) in (["serve"], ["run"]) and (answer := answer_to_flag(arguments[1:], _known_flags())):
        typer.echo(f"error: {answer}", err=True)
        return 2
    if arguments and arguments[0] in COMPLETION:
        return int(import_module("quire.cli.completion").run_completion(arguments))
    try:
        build_command(arguments)(args=list(arguments), prog_name="quire")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0
