"""The commands of a chat: lines that begin with a slash. Each is a function in the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from quire.cli.chat import Chat
from quire.cli.sampling import NAMES, changed, with_value
from quire.types.errors import InvalidRequest

HELP = '''\
/set NAME VALUE     change a parameter; without any, shows their names
/set system TEXT    change the system message
/set verbose on     figures after every answer (or off)
/show               the model, the parameters, the system message
/clear              forget the conversation
/save FILE          write the conversation
/load FILE          go on with a conversation that was saved
/bye                leave (or Ctrl-D)
"""                 begins and ends a message of several lines; so does a backslash at the end of a line
Ctrl-C              stops an answer'''


def run_slash(chat: Chat, line: str) -> bool:
    """Run one command; True: the user leaves."""
    name, _, rest = line[1:].partition(" ")
    if name in ("bye", "exit", "quit"):
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
        print(f"/set NAME VALUE, where NAME is system, verbose, {', '.join(NAMES)}")
    elif name == "system":
        chat.system = value.strip('"')
    elif name == "verbose":
        chat.verbose = value.lower() not in ("off", "false", "no", "0")
    elif not value:
        raise InvalidRequest(f"Say what {name} shall be: /set {name} VALUE.")
    else:
        chat.sampling = with_value(chat.sampling, name, value)


def _show(chat: Chat, rest: str) -> None:
    print(f"model       {chat.model}")
    said = ", ".join(f"{name} {value}" for name, value in changed(chat.sampling).items())
    print(f"parameters  {said or 'as the model is'}")
    print(f"system      {chat.system or '(none)'}")
    print(f"messages    {len(chat.messages)}")


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
    "show": _show,
    "clear": _clear,
    "save": _save,
    "load": _load,
}
