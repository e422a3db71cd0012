"""The commands of a chat: lines that begin with a slash. Each is a function in the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quire.cli.chat import Chat
from quire.cli.form import LEVELS, constraint_of, think_of
from quire.cli.sampling import NAMES, changed, with_value
from quire.types.errors import InvalidRequest

LEAVE = ("bye", "exit", "quit")
OTHER_NAMES = ("system", "verbose", "format", "noformat", "think", "nothink")
SPELLED = {True: "on", False: "off"}
HELP = '''\
/set NAME VALUE     change a parameter; without any, shows their names
/set system TEXT    change the system message
/set verbose on     figures after every answer (or off)
/set format json    answers in JSON, or after a JSON schema (the text, or a file); /set noformat ends it
/set think on       think before the answer (or off, low, medium, high: what the model takes)
/model NAME         go on with another model
/show               the model, the parameters, the system message
/clear              forget the conversation
/save FILE          write the conversation
/load FILE          go on with a conversation that was saved
/bye                leave (or Ctrl-D)
"""                 begins and ends a message of several lines; so does a backslash at the end of a line
Tab                 completes commands, parameters, models and files
Ctrl-C              stops an answer'''


def run_slash(chat: Chat, line: str) -> bool:
    """Run one command; True: the user leaves."""
    name, _, rest = line[1:].partition(" ")
    if name in LEAVE:
        return True
    if name not in COMMANDS:
        raise InvalidRequest(
            f"There is no command /{name}: /help shows them. To send it, put a space before the slash."
        )
    COMMANDS[name](chat, rest.strip())
    return False


def _help(chat: Chat, rest: str) -> None:
    print(HELP)


def _set(chat: Chat, rest: str) -> None:
    name, _, value = rest.removeprefix("parameter ").strip().partition(" ")
    value = value.strip()
    if not name:
        print(f"/set NAME VALUE, where NAME is {', '.join((*OTHER_NAMES, *NAMES))}")
    elif name == "system":
        chat.system = value.strip('"')
    elif name == "verbose":
        chat.verbose = value.lower() not in ("off", "false", "no", "0")
    elif name in ("noformat", "format"):
        chat.change_form(replace(chat.form, constraint=constraint_of(value if name == "format" else "")))
    elif name in ("nothink", "think"):
        chat.change_form(replace(chat.form, think=think_of(value or "true") if name == "think" else False))
    elif not value:
        raise InvalidRequest(f"Say what {name} shall be: /set {name} VALUE.")
    else:
        chat.opened = replace(chat.opened, sampling=with_value(chat.opened.sampling, name, value))


def _show(chat: Chat, rest: str) -> None:
    print(f"model       {chat.opened.name}")
    said = ", ".join(f"{name} {value}" for name, value in changed(chat.opened.sampling).items())
    print(f"parameters  {said or 'as the model is'}")
    print(f"system      {chat.system or '(none)'}")
    if chat.form.constraint is not None:
        print(f"format      {chat.form.constraint.text or 'json'}")
    if chat.form.think is not None:
        print(f"think       {chat.form.think if isinstance(chat.form.think, str) else SPELLED[chat.form.think]}")
    print(f"messages    {len(chat.messages)}")


def _model(chat: Chat, rest: str) -> None:
    if not rest:
        raise InvalidRequest(f"Say which model: /model NAME. Here are {', '.join(chat.opener.model_names())}.")
    chat.change_model(rest)
    print(f"{chat.opened.name} answers from now on.", file=sys.stderr)


def _clear(chat: Chat, rest: str) -> None:
    chat.messages = []
    print("The conversation is forgotten.", file=sys.stderr)


def _save(chat: Chat, rest: str) -> None:
    chat.save(_file(rest, "/save"))
    print(f"{len(chat.messages)} messages saved.", file=sys.stderr)


def _load(chat: Chat, rest: str) -> None:
    chat.load(_file(rest, "/load"))
    print(f"{len(chat.messages)} messages loaded.", file=sys.stderr)


def _file(rest: str, command: str) -> Path:
    if not rest:
        raise InvalidRequest(f"Say which file: {command} FILE.")
    return Path(rest).expanduser()


COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "help": _help,
    "?": _help,
    "set": _set,
    "model": _model,
    "show": _show,
    "clear": _clear,
    "save": _save,
    "load": _load,
}


def completions(chat: Chat, typed: str) -> tuple[list[str], int]:
    """The words that may stand at the end of a line that begins with a slash, and how much of them is typed."""
    if not typed.startswith("/") or "\n" in typed:
        return [], 0
    *before, word = typed.split(" ")
    match before:
        case []:
            known = [f"/{name}" for name in (*COMMANDS, *LEAVE)]
        case ["/set"] | ["/set", "parameter"]:
            known = [*OTHER_NAMES, *NAMES]
        case ["/set", "think"]:
            known = [*SPELLED.values(), *LEVELS]
        case ["/set", "verbose"]:
            known = list(SPELLED.values())
        case ["/set", "format"]:
            known = ["json", *_paths(word)]
        case ["/model"]:
            known = chat.opener.model_names()
        case ["/save" | "/load"]:
            known = _paths(word)
        case _:
            known = []
    return [each for each in known if each.startswith(word)], len(word)


def _paths(typed: str) -> list[str]:
    """The files that a path may become."""
    folder, name = typed[: typed.rfind("/") + 1], typed[typed.rfind("/") + 1 :]
    try:
        found = sorted(Path(folder or ".").expanduser().iterdir())
    except OSError:
        return []
    seen = (each for each in found if each.name.startswith(name) and (name or not each.name.startswith(".")))
    return [f"{folder}{each.name}{'/' if each.is_dir() else ''}" for each in seen]
