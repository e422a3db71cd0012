"""Modelfiles, in Ollama's own format: what a model is made from, and how it is to be spoken to.

    FROM smollm2:135m                   a name, the path of a GGUF file or of a checkpoint folder
    PARAMETER temperature 0.2           types/parameters.py has their names; `stop` may come again
    SYSTEM You are a patient teacher.
    TEMPLATE \"""{{ .Prompt }}\"""        Go's dialect; text/go_template reads it
    MESSAGE user Hello                  conversations begin with these; system, user or assistant
    LICENSE MIT
    ADAPTER ./lora.gguf
    REQUIRES 0.5.0                      the Ollama that it was written for; nothing follows from it here

A command ends with its line, unless its value opens quotes: then with the first line that closes them. There are no
escapes. \"""three\""" quotes may hold lines with single ones at their ends. A line that begins with # is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quire.types.errors import InvalidRequest
from quire.types.parameters import check_name, modelfile_lines, parameter_of, sampling_of

COMMANDS = ("FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES")
REFUSED = {
    "RENDERER": "it names code inside Ollama. Write the template as TEMPLATE, or leave the line out.",
    "PARSER": "it names code inside Ollama. Calls and thoughts are found by the template's marks: leave the line out.",
}
ROLES = ("system", "user", "assistant")
WORD = re.compile(r"\S*")
QUOTES = ('"""', '"')
BLANK = " \t\r\n"
COMMAND = re.compile(r"[ \t]*([A-Za-z]+)(?:[ \t]+|$)")
MAX_SAID = 64  # characters of the file that an error repeats


class BadModelfile(InvalidRequest):
    """A Modelfile that cannot be read. Says where."""

    code = "bad_modelfile"

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"Line {line} of the Modelfile: {problem}", field="modelfile")
        self.line = line


@dataclass(frozen=True, slots=True)
class Modelfile:
    """One that was read. `str` writes it so that it reads back equal."""

    base: str  # what FROM says
    parameters: dict[str, Any] = field(default_factory=dict)
    template: str = ""
    system: str = ""
    adapters: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()  # role, content
    requires: str = ""

    def __str__(self) -> str:
        lines = [f"FROM {_quoted(self.base)}"]
        lines += [f"PARAMETER {name} {_quoted(value)}" for name, value in modelfile_lines(self.parameters)]
        lines += [f"TEMPLATE {_quoted(self.template)}"] if self.template else []
        lines += [f"SYSTEM {_quoted(self.system)}"] if self.system else []
        lines += [f"ADAPTER {_quoted(each)}" for each in self.adapters]
        lines += [f"MESSAGE {role} {_quoted(content)}" for role, content in self.messages]
        lines += [f"LICENSE {_quoted(each)}" for each in self.licences]
        lines += [f"REQUIRES {_quoted(self.requires)}"] if self.requires else []
        return "\n".join(lines) + "\n"


class _Command(NamedTuple):
    line: int
    name: str  # in capitals
    word: str  # a parameter's name or a message's role
    value: str


def parse_modelfile(text: str) -> Modelfile:
    """Read one. A BadModelfile says in which line it is wrong, and how."""
    said: dict[str, Any] = {"parameters": {}, "adapters": [], "licences": [], "messages": []}
    for command in _commands(text.removeprefix("\ufeff")):
        _take(command, said)
    if "base" not in said:
        raise BadModelfile(1, "there is no FROM, which says what the model is made from.")
    for name in ("adapters", "licences", "messages"):
        said[name] = tuple(said[name])
    return Modelfile(**said)


def _take(command: _Command, said: dict[str, Any]) -> None:
    line, name, word, value = command
    match name:
        case "FROM":
            if "base" in said:
                raise BadModelfile(line, "there is a FROM already: a model is made from one.")
            if not value:
                raise BadModelfile(line, "FROM has no value: write a name or a path.")
            said["base"] = value
        case "PARAMETER":
            try:
                made = parameter_of(word, value)
                sampling_of({word: [made] if word == "stop" else made})
            except InvalidRequest as error:
                raise BadModelfile(line, error.public) from None
            said["parameters"][word] = [*said["parameters"].get(word, ()), made] if word == "stop" else made
        case "MESSAGE":
            said["messages"].append((word, value))
        case "ADAPTER" | "LICENSE":
            said["adapters" if name == "ADAPTER" else "licences"].append(value)
        case "TEMPLATE" | "SYSTEM" | "REQUIRES":
            said[name.lower()] = value


def _commands(text: str) -> Iterator[_Command]:
    """All of them, with the numbers of the lines that they begin in."""
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = COMMAND.match(line.rstrip("\r"))
        name = found[1].upper() if found else ""
        if name in REFUSED:
            raise BadModelfile(number, f"{name} is not supported, because {REFUSED[name]}")
        if found is None or name not in COMMANDS:
            said = line.split()[0][:MAX_SAID]
            raise BadModelfile(number, f"{said!r} is no command: it must be one of {', '.join(COMMANDS)}.")
        rest = line[found.end() :]
        word = ""
        if name in ("PARAMETER", "MESSAGE"):
            word, rest = _word(number, name, rest)
        value = _value(rest, (line for _, line in lines))
        if value is None:
            raise BadModelfile(number, f"the quotes that {name} opens are not closed.")
        if name == "PARAMETER" and not value:
            raise BadModelfile(number, f"{word} has no value.")
        yield _Command(number, name, word, value)


def _word(number: int, name: str, rest: str) -> tuple[str, str]:
    """A parameter's name or a message's role, and what follows it."""
    found = WORD.match(rest)
    assert found is not None, "it matches an empty text too"
    word, value = found[0].lower(), rest[found.end() :]
    if name == "MESSAGE":
        if word not in ROLES:
            raise BadModelfile(number, f"a message's role is one of {', '.join(ROLES)}, not {word[:MAX_SAID]!r}.")
    elif not word:
        raise BadModelfile(number, "PARAMETER takes a name and a value.")
    else:
        try:
            check_name(word)
        except InvalidRequest as error:
            raise BadModelfile(number, error.public) from None
    return word, value


def _value(first: str, more: Iterator[str]) -> str | None:
    """A value without its quotes, which begins in one line and may need more. None: its quotes are not closed."""
    parts = [first.strip(BLANK)]
    quotes = next((each for each in QUOTES if parts[0].startswith(each)), "")
    if not quotes:
        return parts[0]
    is_closed = len(parts[0]) >= 2 * len(quotes) and parts[0].endswith(quotes)
    parts[0] = first.lstrip(BLANK)
    while not is_closed:
        line = next(more, None)
        if line is None:
            return None
        parts.append(line)
        is_closed = line.rstrip(BLANK).endswith(quotes)
    return "\n".join(parts).rstrip(BLANK)[len(quotes) : -len(quotes)]


def _quoted(text: str) -> str:
    """A value as it reads back: plain if it may be. A text with a line that ends in three quotes has no spelling."""
    for quotes in ("", '"'):
        lines = iter(f"{quotes}{text}{quotes}".split("\n"))
        if text and _value(next(lines), lines) == text and next(lines, None) is None:
            return f"{quotes}{text}{quotes}"
    return f'"""{text}"""'
