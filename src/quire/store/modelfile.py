"""Modelfiles, in Ollama's format: what a model is made from, and how it is prompted.

    FROM smollm2:135m                   a name, the path of a GGUF file or of a checkpoint folder
    PARAMETER temperature 0.2           names are in types/parameters.py; `stop` may repeat
    SYSTEM You are a patient teacher.
    TEMPLATE \"""{{ .Prompt }}\"""        in Go's dialect; parsed by text/go_template
    MESSAGE user Hello                  the first messages of a conversation: system, user or assistant
    LICENSE MIT
    ADAPTER ./lora.gguf
    REQUIRES 0.5.0                      the Ollama version that it was written for; ignored

A command ends at the end of its line, or with the first line that closes the quotes that its value opens. There are no
escapes. Inside \"""three\""" quotes, lines may end with a single quote. A line that begins with # is a comment.
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
MAX_QUOTED = 64  # characters of the file in an error


class BadModelfile(InvalidRequest):
    """A Modelfile that cannot be parsed; the message has the line."""

    code = "bad_modelfile"

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"Line {line} of the Modelfile: {problem}", field="modelfile")
        self.line = line


@dataclass(frozen=True, slots=True)
class Modelfile:
    """A parsed Modelfile. `str` gives a text that parses to an equal one."""

    base: str  # the value of FROM
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
    """Parse a Modelfile. Raises BadModelfile with the line and the problem."""
    fields: dict[str, Any] = {"parameters": {}, "adapters": [], "licences": [], "messages": []}
    for command in _commands(text.removeprefix("\ufeff")):
        _apply(command, fields)
    if "base" not in fields:
        raise BadModelfile(1, "there is no FROM: add a line with the model or the file that this one is made from.")
    for name in ("adapters", "licences", "messages"):
        fields[name] = tuple(fields[name])
    return Modelfile(**fields)


def _apply(command: _Command, fields: dict[str, Any]) -> None:
    line, name, word, value = command
    match name:
        case "FROM":
            if "base" in fields:
                raise BadModelfile(line, "there is a second FROM: keep one.")
            if not value:
                raise BadModelfile(line, "FROM has no value: write a name or a path.")
            fields["base"] = value
        case "PARAMETER":
            try:
                parsed = parameter_of(word, value)
                sampling_of({word: [parsed] if word == "stop" else parsed})
            except InvalidRequest as error:
                raise BadModelfile(line, error.public) from None
            fields["parameters"][word] = [*fields["parameters"].get(word, ()), parsed] if word == "stop" else parsed
        case "MESSAGE":
            fields["messages"].append((word, value))
        case "ADAPTER" | "LICENSE":
            fields["adapters" if name == "ADAPTER" else "licences"].append(value)
        case "TEMPLATE" | "SYSTEM" | "REQUIRES":
            fields[name.lower()] = value


def _commands(text: str) -> Iterator[_Command]:
    """All commands, with the numbers of their first lines."""
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = COMMAND.match(line.rstrip("\r"))
        name = match[1].upper() if match else ""
        if name in REFUSED:
            raise BadModelfile(number, f"{name} is not supported, because {REFUSED[name]}")
        if match is None or name not in COMMANDS:
            command = line.split()[0][:MAX_QUOTED]
            raise BadModelfile(number, f"{command!r} is not a command: use one of {', '.join(COMMANDS)}.")
        rest = line[match.end() :]
        word = ""
        if name in ("PARAMETER", "MESSAGE"):
            word, rest = _word(number, name, rest)
        value = _value(rest, (line for _, line in lines))
        if value is None:
            raise BadModelfile(number, f"the quotes after {name} are not closed.")
        if name == "PARAMETER" and not value:
            raise BadModelfile(number, f"PARAMETER {word} has no value: add one.")
        yield _Command(number, name, word, value)


def _word(number: int, name: str, rest: str) -> tuple[str, str]:
    """A parameter's name or a message's role, and the text after it."""
    match = WORD.match(rest)
    assert match is not None, "WORD matches the empty text too"
    word, value = match[0].lower(), rest[match.end() :]
    if name == "MESSAGE":
        if word not in ROLES:
            raise BadModelfile(number, f"the role is {word[:MAX_QUOTED]!r}: use one of {', '.join(ROLES)}.")
    elif not word:
        raise BadModelfile(number, "PARAMETER needs a name and a value.")
    else:
        try:
            check_name(word)
        except InvalidRequest as error:
            raise BadModelfile(number, error.public) from None
    return word, value


def _value(first: str, more: Iterator[str]) -> str | None:
    """A value without its quotes; it begins in `first` and may take more lines. None: its quotes are not closed."""
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
    """A value with the quotes it needs. A text with a line that ends in three quotes cannot be written."""
    for quotes in ("", '"'):
        lines = iter(f"{quotes}{text}{quotes}".split("\n"))
        if text and _value(next(lines), lines) == text and next(lines, None) is None:
            return f"{quotes}{text}{quotes}"
    return f'"""{text}"""'
