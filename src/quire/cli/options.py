"""Options declared as fields of a dataclass. A command takes one such object; typer sees one parameter for each field.

Engine settings are declared in config.py already: `settings_of` turns those into options too, so none is spelled twice.
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

from quire.config import Config, Setting, home_folder, load, settings
from quire.devices.facts import available
from quire.observe.log import start_logging
from quire.store.store import Store, open_store
from quire.types.errors import QuireError
from quire.types.formats import AUTO

logger = logging.getLogger(__name__)

DEVICES = (AUTO, *available())
DEVICE_HELP = f"Where to compute: {', '.join(available())}, or auto: a GPU if there is one and torch, else the CPU."
INTERRUPTED, READER_LEFT = 130, 141  # as a shell counts: 128 and the number of the signal


def option(default: Any, help: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """A field that is an option; without `names` its flag is its name. A tuple may be given again and again."""
    made = functools.partial(typer.Option, _shown(default), *names, help=help, rich_help_panel=panel, **more)
    return field(default=default, metadata={"typer": made, "help": help})


def argument(default: Any, help: str, **more: Any) -> Any:
    """A field that is an argument. A tuple takes all words that are left."""
    made = functools.partial(typer.Argument, _shown(default), help=help, **more)
    return field(default=default, metadata={"typer": made, "help": help})


def one_of(*choices: Any) -> Callable[[str], list[str]]:
    """Completes a value with one of these."""
    spelled = [str(each) for each in choices]
    return lambda incomplete: [each for each in spelled if each.startswith(incomplete)]


def _shown(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default  # typer knows lists alone


@dataclass(frozen=True, slots=True)
class Given:
    """What the user set among the engine's settings."""

    flags: Mapping[str, str]

    @property
    def config(self) -> Config:
        """All settings: flags, then the environment, then defaults."""
        return load(self.flags)

    @property
    def home(self) -> Path:
        """The folder of models and history."""
        return home_folder(self.config)

    @property
    def store(self) -> Store:
        """The models in it."""
        return open_store(self.config)

    @property
    def of_engine(self) -> dict[str, str]:
        """Those that the engine takes: all of them."""
        return dict(self.flags)


@dataclass(frozen=True, slots=True)
class Shown:
    """How a command is shown and read."""

    examples: tuple[str, ...] = ()  # lines that can be pasted
    parser: type[TyperCommand] | None = None  # reads its words; None: typer's own


PLAIN = Shown()


def command(
    kind: type, *sections: str, names: tuple[str, ...] = (), shown: Shown = PLAIN
) -> Callable[[Callable[[Any, Given], None]], Callable[..., None]]:
    """Make `body(options, given)` a command with the options of `kind`, the settings of these sections, and those of
    these names.

    An error that is meant for users becomes one line and the exit code 1; Ctrl-C becomes the exit code 130.
    """
    declared = {each.name: each for each in settings() if each.section in sections or each.name in names}

    def decorate(body: Callable[[Any, Given], None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            flags = {name: values.pop(name) for name in declared}
            given = Given({name: value for name, value in flags.items() if value is not None})
            is_json = False
            try:
                observe = given.config.observe
                is_json = observe.log_format == "json"
                start_logging(observe)
                body(kind(**{name: _frozen(value) for name, value in values.items()}), given)
            except QuireError as error:
                if is_json:
                    logger.error("%s", error.public, extra={"error": error.code})
                else:
                    typer.echo(f"error: {error.public}", err=True)
                raise typer.Exit(1) from None
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
            except BrokenPipeError:
                raise typer.Exit(READER_LEFT) from None

        parameters = [*_declared_fields(kind), *(_of_setting(each) for each in declared.values())]
        run.__doc__ = body.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.shown = shown  # type: ignore[attr-defined]
        run.argument_help = {each.name: each.metadata["help"] for each in fields(kind)}  # type: ignore[attr-defined]
        return run

    return decorate


def _declared_fields(kind: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = list[str] if hints[each.name] == tuple[str, ...] else hints[each.name]
        yield _parameter(each.name, hint, each.metadata["typer"]())


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _of_setting(each: Setting) -> inspect.Parameter:
    choices = f" One of {', '.join(map(str, each.choices))}." if each.choices else ""
    default = "" if each.default in (None, "") else f" Default {each.default}."
    text = f"{each.help}{choices}{default} [{each.variable}]"
    values = each.choices or (("true", "false") if each.kind is bool else ())
    more = {"autocompletion": one_of(*values)} if values else {}
    flags: dict[str, Any] = {"help": text, "metavar": each.kind.__name__.upper(), "show_default": False, **more}
    return _parameter(
        each.name, str | None, typer.Option(None, each.flag, rich_help_panel=_panel(each.section), **flags)
    )


@functools.cache
def _panel(section: str) -> str:
    """The box of a help page for the settings of a section, as config.py describes it."""
    return (get_type_hints(Config)[section].__doc__ or section).rstrip(".")


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
