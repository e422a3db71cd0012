"""Slash commands of a chat. Each is a function in the table `COMMANDS`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quire.cli.conversation.chat import ChatSession
from quire.cli.model.answer_options import LEVELS, parse_format, parse_think
from quire.cli.model.sampling_parameters import NAMES, changed_parameters, with_value
from quire.types.errors import InvalidRequest

LEAVE = ("bye", "exit", "quit")
OTHER_NAMES = ("system", "verbose", "format", "noformat", "think", "nothink")
ON_OFF = {True: "on", False: "off"}
HELP = '''\
/set NAME VALUE     set a parameter; /set alone lists them
/set system TEXT    set the system message
/set verbose on     print token counts and times after each answer (or off)
/set format json    answer in JSON, or by a JSON schema (its text or a file); /set noformat turns it off
/set think on       think before the answer (or off, low, medium, high, if the model supports it)
/model NAME         continue with another model
/show               show the model, the parameters and the system message
/clear              clear the conversation
/save FILE          save the conversation
/load FILE          continue a saved conversation
/bye                exit (or Ctrl-D)
"""                 starts and ends a message of several lines; a backslash at the end continues a line
Tab                 complete commands, parameters, models and files
Ctrl-C              stop the answer'''


def run_slash(chat: ChatSession, line: str) -> bool:
    """Run one command. True: exit the chat."""
    name, _, rest = line[1:].partition(" ")
    if name in LEAVE:
        return True
    if name not in COMMANDS:
        raise InvalidRequest(
            f"There is no command /{name}. /help lists the commands. To send it as a message, put a space before it."
        )
    COMMANDS[name](chat, rest.strip())
    return False


def _help(chat: ChatSession, rest: str) -> None:
    print(HELP)


def _set(chat: ChatSession, rest: str) -> None:
    name, _, value = rest.removeprefix("parameter ").strip().partition(" ")
    value = value.strip()
    if not name:
        print(f"/set NAME VALUE, where NAME is one of {', '.join((*OTHER_NAMES, *NAMES))}")
    elif name == "system":
        chat.system = value.strip('"')
    elif name == "verbose":
        chat.verbose = value.lower() not in ("off", "false", "no", "0")
    elif name in ("noformat", "format"):
        chat.change_options(replace(chat.options, constraint=parse_format(value if name == "format" else "")))
    elif name in ("nothink", "think"):
        chat.change_options(replace(chat.options, think=parse_think(value or "true") if name == "think" else False))
    elif not value:
        raise InvalidRequest(f"/set {name} needs a value: /set {name} VALUE.")
    else:
        chat.loaded = replace(chat.loaded, sampling=with_value(chat.loaded.sampling, name, value))


def _show(chat: ChatSession, rest: str) -> None:
    print(f"model       {chat.loaded.name}")
    parameters = ", ".join(f"{name} {value}" for name, value in changed_parameters(chat.loaded.sampling).items())
    print(f"parameters  {parameters or '(defaults)'}")
    print(f"system      {chat.system or '(none)'}")
    if chat.options.constraint is not None:
        print(f"format      {chat.options.constraint.text or 'json'}")
    if chat.options.think is not None:
        print(
            f"think       {chat.options.think if isinstance(chat.options.think, str) else ON_OFF[chat.options.think]}"
        )
    print(f"messages    {len(chat.messages)}")


def _model(chat: ChatSession, rest: str) -> None:
    if not rest:
        raise InvalidRequest(
            f"/model needs a name: /model NAME. Stored models: {', '.join(chat.loader.stored_names())}."
        )
    chat.change_model(rest)
    print(f"Switched to {chat.loaded.name}.", file=sys.stderr)


def _clear(chat: ChatSession, rest: str) -> None:
    chat.messages = []
    print("Conversation cleared.", file=sys.stderr)


def _save(chat: ChatSession, rest: str) -> None:
    chat.save(_file(rest, "/save"))
    print(f"{len(chat.messages)} messages saved.", file=sys.stderr)


def _load(chat: ChatSession, rest: str) -> None:
    chat.restore(_file(rest, "/load"))
    print(f"{len(chat.messages)} messages loaded.", file=sys.stderr)


def _file(rest: str, command: str) -> Path:
    if not rest:
        raise InvalidRequest(f"{command} needs a file: {command} FILE.")
    return Path(rest).expanduser()


COMMANDS: dict[str, Callable[[ChatSession, str], None]] = {
    "help": _help,
    "?": _help,
    "set": _set,
    "model": _model,
    "show": _show,
    "clear": _clear,
    "save": _save,
    "load": _load,
}


def completions(chat: ChatSession, typed: str) -> tuple[list[str], int]:
    """Return the candidates for the last word of a slash command, and how many characters of it are typed."""
    if not typed.startswith("/") or "\n" in typed:
        return [], 0
    *before, word = typed.split(" ")
    match before:
        case []:
            candidates = [f"/{name}" for name in (*COMMANDS, *LEAVE)]
        case ["/set"] | ["/set", "parameter"]:
            candidates = [*OTHER_NAMES, *NAMES]
        case ["/set", "think"]:
            candidates = [*ON_OFF.values(), *LEVELS]
        case ["/set", "verbose"]:
            candidates = list(ON_OFF.values())
        case ["/set", "format"]:
            candidates = ["json", *_paths(word)]
        case ["/model"]:
            candidates = chat.loader.stored_names()
        case ["/save" | "/load"]:
            candidates = _paths(word)
        case _:
            candidates = []
    return [each for each in candidates if each.startswith(word)], len(word)


def _paths(typed: str) -> list[str]:
    """Return the files and folders that begin with this path."""
    folder, name = typed[: typed.rfind("/") + 1], typed[typed.rfind("/") + 1 :]
    try:
        files = sorted(Path(folder or ".").expanduser().iterdir())
    except OSError:
        return []
    matching = (each for each in files if each.name.startswith(name) and (name or not each.name.startswith(".")))
    return [f"{folder}{each.name}{'/' if each.is_dir() else ''}" for each in matching]
