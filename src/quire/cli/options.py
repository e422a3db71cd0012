"""Command options declared as dataclass fields: a command takes one such object, typer sees one parameter per field.

Settings declared in config.py become options of the commands that use them, so no setting is declared twice.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

from quire.cli.main import BROKEN_PIPE, INTERRUPTED
from quire.config import Config, Setting, home_folder, load, settings
from quire.devices.facts import available
from quire.observe.log import start_logging
from quire.store.store import Store, open_store
from quire.types.errors import QuireError
from quire.types.formats import AUTO

logger = logging.getLogger(__name__)

DEVICES = (AUTO, *available())
DEVICE_HELP = f"Device: {', '.join(available())}, or auto (a GPU if there is one and torch is installed, else the CPU)."


def option(default: Any, help: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option. Without `names` the flag is the field's name; a tuple field takes the flag several times."""
    make = functools.partial(typer.Option, _typer_default(default), *names, help=help, rich_help_panel=panel, **more)
    return field(default=default, metadata={"typer": make, "help": help})


def argument(default: Any, help: str, **more: Any) -> Any:
    """Declare a positional argument. A tuple field takes all remaining words."""
    make = functools.partial(typer.Argument, _typer_default(default), help=help, **more)
    return field(default=default, metadata={"typer": make, "help": help})


def one_of(*choices: Any) -> Callable[[str], list[str]]:
    """Return a completer that offers these values."""
    values = [str(each) for each in choices]
    return lambda incomplete: [each for each in values if each.startswith(incomplete)]


def _typer_default(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default  # typer supports lists, not tuples


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """The settings of config.py that the user set by flags of this command."""

    flags: Mapping[str, str]

    @property
    def config(self) -> Config:
        """All settings: flags, then the environment, then defaults."""
        return load(self.flags)

    @property
    def home(self) -> Path:
        """Folder of the model store and the chat history."""
        return home_folder(self.config)

    @property
    def store(self) -> Store:
        """The model store in that folder."""
        return open_store(self.config)


@dataclass(frozen=True, slots=True)
class HelpPage:
    """What a command's help page shows beside its options, and the class that parses its arguments."""

    examples: tuple[str, ...] = ()  # command lines that can be pasted
    parser: type[TyperCommand] | None = None  # None: typer's own


NO_EXAMPLES = HelpPage()


def command(
    kind: type, *sections: str, names: tuple[str, ...] = (), help_page: HelpPage = NO_EXAMPLES
) -> Callable[[Callable[[Any, CommandSettings], None]], Callable[..., None]]:
    """Make `body(options, settings)` a command with the options of `kind` and flags for the settings of `sections` and
    `names`.

    A `QuireError` is printed as one line, exit code 1. Ctrl-C: exit code 130.
    """
    declared = {each.name: each for each in settings() if each.section in sections or each.name in names}

    def decorate(body: Callable[[Any, CommandSettings], None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            flags = {name: values.pop(name) for name in declared}
            command_settings = CommandSettings({name: value for name, value in flags.items() if value is not None})
            is_json = False
            try:
                observe = command_settings.config.observe
                is_json = observe.log_format == "json"
                start_logging(observe)
                body(kind(**{name: _frozen(value) for name, value in values.items()}), command_settings)
            except QuireError as error:
                if is_json:
                    logger.error("%s", error.public, extra={"error": error.code})
                else:
                    typer.echo(f"error: {error.public}", err=True)
                raise typer.Exit(1) from None
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
            except BrokenPipeError:
                raise typer.Exit(BROKEN_PIPE) from None

        parameters = [*_field_parameters(kind), *(_setting_parameter(each) for each in declared.values())]
        run.__doc__ = body.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.help_page = help_page  # type: ignore[attr-defined]
        run.argument_help = {each.name: each.metadata["help"] for each in fields(kind)}  # type: ignore[attr-defined]
        return run

    return decorate


def _field_parameters(kind: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = list[str] if hints[each.name] == tuple[str, ...] else hints[each.name]
        yield _parameter(each.name, hint, each.metadata["typer"]())


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _setting_parameter(each: Setting) -> inspect.Parameter:
    choices = f" One of {', '.join(map(str, each.choices))}." if each.choices else ""
    default = "" if each.default in (None, "") else f" Default: {each.default}."
    text = f"{each.help}{choices}{default} [{each.variable}]"
    values = each.choices or (("on", "off") if each.kind is bool else ())
    more = {"autocompletion": one_of(*values)} if values else {}
    flags: dict[str, Any] = {"help": text, "metavar": each.kind.__name__.upper(), "show_default": False, **more}
    return _parameter(
        each.name, str | None, typer.Option(None, each.flag, rich_help_panel=_panel(each.section), **flags)
    )


@functools.cache
def _panel(section: str) -> str:
    """Return the title of a section's box on a help page: the docstring of its class in config.py."""
    return (get_type_hints(Config)[section].__doc__ or section).rstrip(".")


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
