"""DeepSeek V3 and R1, and the models distilled from it: the name, then the arguments as a block of JSON, in marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from quire.text.parsers.call_reader import CallReader, Progress, SteppedReader
from quire.text.parsers.calls import CallForm, CallParser, object_reader
from quire.text.parsers.json_value import ValueScanner
from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule, one_or_more
from quire.text.parsers.style import ArgumentsPiece, CallStart, Parser, Piece, ToolStyle, unchanged, writes_tools
from quire.types.chat import Tool, ToolChoice

CALLS, END_OF_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_OF_CALL, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
MARKS = (CALLS, END_OF_CALLS, CALL, END_OF_CALL, SEPARATOR)

_WORD = re.compile(r"[\w.\-]*")
_FENCE, _KIND = "```json", "function"


class SeparatedReader(SteppedReader):
    """function<｜tool▁sep｜>name and a block of JSON, or name<｜tool▁sep｜> and JSON; then the end mark."""

    def __init__(self) -> None:
        super().__init__(self._word)
        self._parts: list[str] = []
        self._name = ""
        self._has_separator = False
        self._scanner = ValueScanner()

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        if self.progress is Progress.READING and self._name not in ("", _KIND):
            out.append(CallStart(self._name))
        return True  # there are no calls without a mark

    def _word(self, text: str, place: int, out: list[Piece]) -> int:
        end = _WORD.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        self._name = "".join(self._parts)
        self._parts.clear()
        self._step = self._before_arguments if self._has_separator else self._separator
        return end

    def _separator(self, text: str, place: int, out: list[Piece]) -> int:
        end = self._expect(SEPARATOR, text, place)
        if end is None:
            self.progress = Progress.FAILED
            return place
        if not self._held:
            self._has_separator, self._step = True, self._before_arguments
        return end

    def _before_arguments(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] == "{" and self._name:
            out.append(CallStart(self._name))
            self.progress, self._step = Progress.CALLING, self._arguments
            return place
        if text[place] == "`":
            end = self._expect(_FENCE, text, place)
            if end is not None:
                return end
        elif self._name == _KIND and _WORD.fullmatch(text[place]):
            self._step = self._word
            return place
        self.progress = Progress.FAILED
        return place

    def _arguments(self, text: str, place: int, out: list[Piece]) -> int:
        end = self._scanner.scan(text, place)
        out.append(ArgumentsPiece(text[place : end if end >= 0 else len(text)]))
        if end < 0:
            return len(text)
        self._step = self._end
        return end

    def _end(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace() or text[place] == "`":
            return place + 1
        end = self._expect(END_OF_CALL, text, place)
        if not self._held:
            self.progress = Progress.DONE
        return place if end is None else end


def _reader(char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
    if is_marked and _WORD.fullmatch(char):
        return SeparatedReader()
    return object_reader(char, tools, is_marked)


_FORM = CallForm(opens=(CALLS, CALL), closes=(END_OF_CALLS, END_OF_CALL), reader=_reader)


def knows(template: str) -> bool:
    return CALL in template and _FENCE in template and writes_tools(template)


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def block_rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int], joint: str) -> str:
    """The rule `calls`, for calls of which the rule `call` has no marks."""
    call = f"({mark_rule(CALL, tokens)} call {mark_rule(END_OF_CALL, tokens)})"
    several = one_or_more(choice, call, literal(joint) if joint else "")
    return f"calls: {mark_rule(CALLS, tokens)} {several} {mark_rule(END_OF_CALLS, tokens)}"


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    def written(tool: Tool) -> str:
        head = f"{literal(_KIND)} {mark_rule(SEPARATOR, tokens)} {literal(f'{tool.name}{chr(10)}{_FENCE}{chr(10)}')}"
        return f"{head} {arguments(tool)} {literal(chr(10) + '```')}"

    return f"{block_rules(tools, choice, tokens, chr(10))}\n{call_rules(tools, choice, written)}"


STYLE = ToolStyle("deepseek", MARKS, knows, parser, rules, unchanged)
