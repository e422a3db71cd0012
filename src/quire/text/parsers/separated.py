"""Calls in marks with a mark between name and arguments: the form of several families, which differ in the marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from quire.text.parsers.call_reader import CallReader, Progress, SteppedReader
from quire.text.parsers.calls import CallForm, CallParser, object_reader
from quire.text.parsers.json_value import ValueScanner
from quire.text.parsers.lark import literal, mark_rule, one_or_more
from quire.text.parsers.style import ArgumentsPiece, CallStart, Parser, Piece, TemplateInput
from quire.text.parsers.turns import described, with_instructions
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message

FENCE, KIND = "```json", "function"
_WORD = re.compile(r"[\w.\-:]*")
_NUMBER = re.compile(r":\d*\Z")
_INSTRUCTIONS = """You may call these functions:
{tools}
To call one, write its name for NAME and its arguments as a JSON object for {{ARGUMENTS}}:
{call}
For several calls, repeat what is between the outer marks. If no function is needed, just answer."""


@dataclass(frozen=True)
class SeparatedCalls:
    """The marks of a family."""

    opening: str  # marks around all calls
    closing: str
    call: str  # marks around one call
    call_end: str
    separator: str
    prefix: str = ""  # text before a name; then a colon and a number follow it

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return self.opening, self.closing, self.call, self.call_end, self.separator

    @cached_property
    def _form(self) -> CallForm:
        return CallForm((self.opening, self.call), (self.closing, self.call_end), reader=self._reader)

    def _reader(self, char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
        if is_marked and _WORD.fullmatch(char):
            return SeparatedReader(self)
        return object_reader(char, tools, is_marked)

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Make the parser of an answer with such calls."""
        return CallParser(self._form, tools)

    def name_in(self, word: str) -> str:
        """The name in the word before the arguments."""
        return _NUMBER.sub("", word).removeprefix(self.prefix) if self.prefix else word

    def block_rule(self, choice: ToolChoice, tokens: Mapping[str, int], joint: str = "") -> str:
        """The rule `calls`, for calls of which the rule `call` has no marks."""
        call = f"({mark_rule(self.call, tokens)} call {mark_rule(self.call_end, tokens)})"
        several = one_or_more(choice, call, literal(joint) if joint else "")
        return f"calls: {mark_rule(self.opening, tokens)} {several} {mark_rule(self.closing, tokens)}"

    def describe(
        self, messages: Sequence[Message], tools: Sequence[Tool], written: Callable[[str, str], str], joint: str = ""
    ) -> TemplateInput:
        """Write tools and calls as text, a call as `written` says with its name and arguments."""

        def block(calls: Iterable[tuple[str, str]]) -> str:
            inner = joint.join(f"{self.call}{written(*each)}{self.call_end}" for each in calls)
            return f"{self.opening}{inner}{self.closing}"

        def without_calls(message: Message) -> Message:
            calls = [(call.name, call.arguments.strip() or "{}") for call in message.tool_calls]
            return replace(message, text=message.text + block(calls), tool_calls=()) if calls else message

        texts = tuple(map(without_calls, messages))
        if not tools:
            return TemplateInput(texts, ())
        example = block([("NAME", "{ARGUMENTS}")])
        return TemplateInput(with_instructions(texts, _INSTRUCTIONS.format(tools=described(tools), call=example)), ())


class SeparatedReader(SteppedReader):
    """A name, the separator and JSON; or a kind, the separator, the name and a block of JSON. Then the end mark."""

    def __init__(self, form: SeparatedCalls) -> None:
        super().__init__(self._word)
        self._form = form
        self._parts: list[str] = []
        self._name = ""
        self._is_named_first = True  # the name comes before the separator
        self._scanner = ValueScanner()

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        word = "".join(self._parts)
        name = self._form.name_in(word) if self._form.prefix and ":" in word else self._name
        if self.progress is Progress.READING and name not in ("", KIND):
            out.append(CallStart(name))
        return True  # there are no calls without a mark

    def _word(self, text: str, place: int, out: list[Piece]) -> int:
        end = _WORD.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        self._name = self._form.name_in("".join(self._parts))
        self._parts.clear()
        self._step = self._separator if self._is_named_first else self._before_arguments
        return end

    def _separator(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        end = self._expect(self._form.separator, text, place)
        if end is None:
            self.progress = Progress.FAILED
            return place
        if not self._held:
            self._step = self._before_arguments
        return end

    def _before_arguments(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] == "{" and self._name:
            out.append(CallStart(self._name))
            self.progress, self._step = Progress.CALLING, self._arguments
            return place
        end: int | None = None
        if text[place] == FENCE[0]:
            end = self._expect(FENCE, text, place)
        elif self._name == KIND and self._is_named_first and _WORD.fullmatch(text[place]):
            self._step, self._is_named_first = self._word, False
            return place
        elif self._name and self._is_named_first:
            end = self._expect(self._form.call_end, text, place)
            if end is not None and not self._held:  # no arguments
                out += [CallStart(self._name), ArgumentsPiece("{}")]
                self.progress = Progress.DONE
        if end is None:
            self.progress = Progress.FAILED
        return place if end is None else end

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
        end = self._expect(self._form.call_end, text, place)
        if not self._held:
            self.progress = Progress.DONE
        return place if end is None else end
