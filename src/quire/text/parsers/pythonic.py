"""Llama 3.2 and 4, and others, as their model cards have it: a list of calls in Python, [f(a=1, b="x"), g()]."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

from quire.text.parsers.call_reader import CallReader, Progress, SteppedReader
from quire.text.parsers.calls import CallForm, CallParser, object_reader
from quire.text.parsers.lark import arguments, call_rules, joined, literal, object_call, one_or_more, schema_rule
from quire.text.parsers.parameters import separate_parameters, with_definitions
from quire.text.parsers.python_literal import literal_as_json
from quire.text.parsers.style import ArgumentsPiece, CallStart, Parser, Piece, ToolStyle, unchanged
from quire.types.chat import Tool, ToolChoice

OPEN, CLOSE = "<|python_start|>", "<|python_end|>"

_WORD = re.compile(r"[\w.\-]*")
_KEY = re.compile(r"[^\W\d]\w*")
_KEY_AND_SPACE = re.compile(rf"({_KEY.pattern})\s*")
_STRING_ENDS = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_OUTSIDE = re.compile(r"""["'(){}\[\],]""")


class PythonCallReader(SteppedReader):
    """name(key=value, …) with literals for values. Each argument is returned when it is complete.

    `names`: without a mark, one of these.
    """

    def __init__(self, names: Collection[str] | None) -> None:
        super().__init__(self._name)
        self._names = names
        self._parts: list[str] = []
        self._called = ""
        self._key = ""
        self._count = 0
        self._depth = 0
        self._quote = ""  # within a string: the character that ends it

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        if self.progress is Progress.CALLING:
            return True
        if self._called:
            out.append(CallStart(self._called))
            return True
        return is_announced or any(name.startswith("".join(self._parts)) for name in self._names or ())

    def _name(self, text: str, place: int, out: list[Piece]) -> int:
        end = _WORD.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        name = self._take()
        if text[end] != "(" or not name or (self._names is not None and name not in self._names):
            self.progress = Progress.FAILED
            return end
        self._called, self._step = name, self._before_key
        return end + 1

    def _before_key(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace() or (text[place] == "," and self._count):
            return place + 1
        if text[place] == ")":
            self._begin(out)
            out.append(ArgumentsPiece("}" if self._count else "{}"))
            self.progress = Progress.DONE
            return place + 1
        self._step = self._in_key
        return place

    def _in_key(self, text: str, place: int, out: list[Piece]) -> int:
        found = _KEY_AND_SPACE.match(text, place)
        if found is None or (found.end() < len(text) and text[found.end()] != "="):
            return self._break(place, out)
        if found.end() == len(text):
            self._held = text[place:]
            return len(text)
        self._key = found[1]
        self._begin(out)
        self._step = self._value
        return found.end() + 1

    def _value(self, text: str, place: int, out: list[Piece]) -> int:
        """Read a literal, which ends with a comma or a bracket outside of it."""
        start = place
        while place < len(text):
            if self._quote:
                place = self._in_string(text, place)
                continue
            found = _OUTSIDE.search(text, place)
            if found is None:
                break
            place, char = found.end(), found[0]
            if char in "\"'":
                self._quote = char
            elif char in "({[":
                self._depth += 1
            elif self._depth == 0:  # a comma, or the end of the call
                self._parts.append(text[start : found.start()])
                self._end_value(out)
                return found.start()
            elif char != ",":
                self._depth -= 1
        self._parts.append(text[start:])
        return len(text)

    def _in_string(self, text: str, place: int) -> int:
        """Read to the end of a string. A backslash at the end of the text is kept in `_quote`."""
        if len(self._quote) == 2:
            self._quote = self._quote[0]
            return place + 1
        found = _STRING_ENDS[self._quote].search(text, place)
        if found is None:
            return len(text)
        if found[0] == self._quote:
            self._quote = ""
            return found.end()
        if found.end() == len(text):
            self._quote += found[0]
            return len(text)
        return found.end() + 1

    def _end_value(self, out: list[Piece]) -> None:
        key = json.dumps(self._key, ensure_ascii=False)
        out.append(ArgumentsPiece(f"{', ' if self._count else '{'}{key}: {literal_as_json(self._take())}"))
        self._count += 1
        self._step = self._before_key

    def _begin(self, out: list[Piece]) -> None:
        if self.progress is Progress.READING:
            self.progress = Progress.CALLING
            out.append(CallStart(self._called))

    def _break(self, place: int, out: list[Piece]) -> int:
        """It is no call from here on. A call that has started ends here."""
        if self.progress is Progress.READING:
            self.progress = Progress.FAILED
        else:
            out.append(ArgumentsPiece("}"))
            self.progress = Progress.DONE
        return place

    def _take(self) -> str:
        value = "".join(self._parts)
        self._parts.clear()
        return value


def python_reader(char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
    """The reader of a call in Python, or of an object."""
    if _WORD.fullmatch(char):
        return PythonCallReader(None if is_marked else frozenset(tool.name for tool in tools))
    return object_reader(char, tools, is_marked)


def python_call(tool: Tool) -> str:
    """The grammar of a call in Python; of an object if the tool's schema is more than a list of parameters."""
    arguments(tool)  # raises what is wrong with the schema
    parameters = separate_parameters(tool) if _WORD.fullmatch(tool.name) else None
    if parameters is None or not all(_KEY.fullmatch(each.name) for each in parameters):
        return object_call(tool, "arguments")
    written = [
        (f"{literal(each.name + '=')} {schema_rule(with_definitions(each, tool), tool)}", each.is_required)
        for each in parameters
    ]
    return f"{literal(tool.name + '(')} {joined(written, ', ')} {literal(')')}"


_FORM = CallForm(opens=(OPEN,), closes=(CLOSE,), bare="[", reader=python_reader)


def knows(template: str) -> bool:
    """Recognized by the example that the model cards have for the form."""
    return "func_name1(param" in template


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    several = one_or_more(choice, "call", literal(", "))
    return f'calls: "[" {several} "]"\n{call_rules(tools, choice, python_call)}'


STYLE = ToolStyle("pythonic", (OPEN, CLOSE), knows, parser, rules, unchanged)
