"""Apertus: between <|tools_prefix|> and <|tools_suffix|> a JSON list of objects with one key, the name of a tool."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from quire.text.parsers.call_reader import CallReader, Progress, SteppedReader
from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.json_value import ValueScanner
from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule, one_or_more
from quire.text.parsers.style import ArgumentsPiece, CallStart, Parser, Piece, ToolStyle, unchanged
from quire.types.chat import Tool, ToolChoice

OPEN, CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


class KeyedReader(SteppedReader):
    """{"<name>": {…}}. `names`: without a mark, one of these."""

    def __init__(self, names: Collection[str] | None) -> None:
        super().__init__(self._open)
        self._names = names
        self._scanner = ValueScanner()
        self._parts: list[str] = []
        self._name = ""

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        if self.progress is Progress.READING and self._name:
            out.append(CallStart(self._name))
        begun = "".join(self._parts)[1:]
        return is_announced or bool(self._name) or any(name.startswith(begun) for name in self._names or ())

    def _open(self, text: str, place: int, out: list[Piece]) -> int:
        self._step = self._before_name
        return place + 1

    def _before_name(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] == '"':
            self._step = self._in_name
        else:
            self.progress = Progress.FAILED
        return place

    def _in_name(self, text: str, place: int, out: list[Piece]) -> int:
        end = self._scanner.scan(text, place)
        self._parts.append(text[place : end if end >= 0 else len(text)])
        if end < 0:
            return len(text)
        try:
            self._name = json.loads("".join(self._parts))
        except ValueError:
            self._name = ""
        if not self._name or (self._names is not None and self._name not in self._names):
            self._name, self.progress = "", Progress.FAILED
        self._step, self._scanner = self._colon, ValueScanner()
        return end

    def _colon(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place] == ":":
            self._step = self._before_arguments
        elif not text[place].isspace():
            self.progress = Progress.FAILED
            return place
        return place + 1

    def _before_arguments(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] == "{":
            out.append(CallStart(self._name))
            self.progress, self._step = Progress.CALLING, self._arguments
        else:
            self.progress = Progress.FAILED
        return place

    def _arguments(self, text: str, place: int, out: list[Piece]) -> int:
        end = self._scanner.scan(text, place)
        out.append(ArgumentsPiece(text[place : end if end >= 0 else len(text)]))
        if end < 0:
            return len(text)
        self.progress = Progress.DONE  # a brace between calls is ignored
        return end


def _reader(char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
    return KeyedReader(None if is_marked else frozenset(tool.name for tool in tools)) if char == "{" else None


_FORM = CallForm(opens=(OPEN,), closes=(CLOSE,), bare="[", reader=_reader)


def knows(template: str) -> bool:
    return OPEN in template


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    def written(tool: Tool) -> str:
        head = f"{{{json.dumps(tool.name, ensure_ascii=False)}: "
        return f"{literal(head)} {arguments(tool)} {literal('}')}"

    calls = call_rules(tools, choice, written)
    several = one_or_more(choice, "call", literal(", "))
    return f'calls: {mark_rule(OPEN, tokens)} "[" {several} "]" {mark_rule(CLOSE, tokens)}\n{calls}'


STYLE = ToolStyle("apertus", (OPEN, CLOSE), knows, parser, rules, unchanged)
