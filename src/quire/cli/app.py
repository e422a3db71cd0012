"""The table of commands."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from quire import __version__
from quire.cli import cp, pull, rm, run, show
from quire.cli import list as list_models

app = typer.Typer(
    name="quire",
    help="One LLM inference engine from a laptop to a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("pull")(pull.pull)
app.command("list")(list_models.list_all)
app.command("ls", hidden=True)(list_models.list_all)
app.command("show")(show.show)
app.command("cp")(cp.cp)
app.command("rm")(rm.rm)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"quire {__version__}")
        raise typer.Exit()


@app.callback()
def _before(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before a command."""


def run_app(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    try:
        app(args=list(arguments), prog_name="quire")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0
