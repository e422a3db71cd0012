"""Calls in tags: each argument has a pair of them, and its value is plain text. Several families differ in the tags.

Which value is text and which is a number is not written; the tool's schema says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from quire.text.parsers.call_reader import CallReader, Progress, Step, SteppedReader
from quire.text.parsers.calls import CallForm, CallParser, object_reader
from quire.text.parsers.lark import (
    arguments,
    call_rules,
    literal,
    mark_rule,
    object_call,
    one_or_more,
    schema_rule,
    text_until,
)
from quire.text.parsers.marks import mark_pattern, scan
from quire.text.parsers.parameters import (
    Parameter,
    separate_parameters,
    tool_parameter,
    value_as_json,
    with_definitions,
)
from quire.text.parsers.style import ArgumentsPiece, CallStart, Parser, Piece
from quire.types.chat import Tool, ToolChoice

WORD = re.compile(r"[\w.\-]*")


@dataclass(frozen=True)
class Markup:
    """The tags of a family, in the order in which they are written."""

    opening: str  # marks around a call
    closing: str
    name: str  # before the name; it may be empty
    name_end: str  # after it; empty: the name ends with its last letter
    key: str
    key_end: str
    value: str  # before a value; it may be empty
    value_end: str
    end: str  # after the arguments; it may be empty
    is_padded: bool  # a newline at either end of a value belongs to the tags
    joint: str = "\n"  # between tags
    has_shared_marks: bool = False  # the marks stand around all calls

    @cached_property
    def form(self) -> CallForm:
        """How calls are found in an answer."""
        return CallForm((self.opening,), (self.closing,), bare="{" + self.name[:1], reader=self._reader)

    @cached_property
    def after_value(self) -> re.Pattern[str]:
        """Matches what may follow a name or a value."""
        return mark_pattern(tag for tag in (self.key, self.end, self.closing) if tag)

    @cached_property
    def key_ending(self) -> re.Pattern[str]:
        """Matches the end of a key."""
        return mark_pattern((self.key_end,))

    @cached_property
    def value_ending(self) -> re.Pattern[str]:
        """Matches the end of a value."""
        return mark_pattern((self.value_end,))

    def _reader(self, char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
        if char == self.name[:1] or (not self.name and WORD.fullmatch(char)):
            return MarkupReader(self, tools, is_marked)
        return object_reader(char, tools, is_marked)

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Make the parser of an answer with such calls."""
        return CallParser(self.form, tools)

    def rules(self, tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
        """The grammar of an answer that must be such calls.

        A tool whose schema is more than a list of parameters is called with a JSON object instead: plain text cannot be
        held to such a schema.
        """
        more: list[str] = []
        joint = literal(self.joint) if self.joint else ""
        lead = "" if self.has_shared_marks else self.joint  # between the opening mark and a call

        def written(tool: Tool) -> str:
            arguments(tool)  # raises what is wrong with the schema
            parameters = separate_parameters(tool) if WORD.fullmatch(tool.name) else None
            place = len(more)
            values = [self._value(tool, each, f"value_{place}_{i}", tokens) for i, each in enumerate(parameters or ())]
            if parameters is None or None in values:
                return f"{literal(lead) if lead else ''} {object_call(tool, 'arguments')} {joint}"
            more.append("\n".join(value for value in values if value))
            parts = [f"(value_{place}_{i})" + ("" if each.is_required else "?") for i, each in enumerate(parameters)]
            head = literal(f"{lead if self.name else ''}{self.name}{tool.name}{self.name_end}{self.joint}")
            end = f"{literal(self.end)} {joint}" if self.end else ""
            return f"{head} {' '.join(parts)} {end}"

        calls = call_rules(tools, choice, written)
        opening, closing = mark_rule(self.opening, tokens), mark_rule(self.closing, tokens)
        if self.has_shared_marks:
            several = f"{opening} {joint} {one_or_more(choice, 'call', '')} {closing}"
        else:
            several = one_or_more(choice, f"({opening} call {closing})", joint)
        return "\n".join([f"calls: {several}", calls, *more])

    def _value(self, tool: Tool, parameter: Parameter, rule: str, tokens: Mapping[str, int]) -> str | None:
        """Rules for one argument; None if plain text cannot be held to the parameter's schema."""
        pad = "\n" if self.is_padded else ""
        if self.key_end in parameter.name or not parameter.name.strip():
            return None
        before = " ".join(
            mark_rule(tag, tokens)
            for tag in (self.key, parameter.name, self.key_end, self.joint if self.value else "", self.value + pad)
            if tag
        )
        end = f"{literal(pad)} {mark_rule(self.value_end, tokens)}" if pad else mark_rule(self.value_end, tokens)
        joint = literal(self.joint) if self.joint else ""
        if parameter.is_free_text:
            text = text_until(f"{rule}_text", self.value_end, tokens)
            return f"{rule}: {before} {rule}_text {joint}\n{text}"
        if parameter.kinds == {"string"} and parameter.choices is not None:
            if any(not _is_plain(choice, self.value_end) for choice in parameter.choices):
                return None
            some = " | ".join(literal(choice) for choice in parameter.choices)
            return f"{rule}: {before} ({some}) {end} {joint}"
        if not parameter.kinds or "string" in parameter.kinds:
            return None
        return f"{rule}: {before} {schema_rule(with_definitions(parameter, tool), tool)} {end} {joint}"


def _is_plain(choice: object, end: str) -> bool:
    return isinstance(choice, str) and bool(choice) and end not in choice and choice.strip("\n") == choice


class MarkupReader(SteppedReader):
    """One call. The text of a value is returned as it comes if it is a string, else when it is complete."""

    def __init__(self, markup: Markup, tools: Sequence[Tool], is_marked: bool) -> None:
        super().__init__(self._before_name if markup.name else self._name)
        self._markup = markup
        self._tools = {tool.name: tool for tool in tools}
        self._is_marked = is_marked
        self._parts: list[str] = []
        self._called = ""  # the name
        self._count = 0  # arguments so far
        self._parameter = tool_parameter(None, "")
        self._newline = ""  # at the end of the value so far
        self._is_begun = False  # the value has text

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        if self.progress is Progress.READING and self._called and is_announced:
            out.append(CallStart(self._called))
        if is_announced or self.progress is Progress.CALLING or self._held:
            return True
        return any(name.startswith("".join(self._parts)) for name in self._tools)

    def _before_name(self, text: str, place: int, out: list[Piece]) -> int:
        return self._tag(self._markup.name, self._name, (text, place, out))

    def _tag(self, tag: str, then: Step, at: tuple[str, int, list[Piece]]) -> int:
        """Read this tag. If other text comes, there is no call, or it ends here."""
        end = self._expect(tag, at[0], at[1])
        if end is None:
            self._break(at[2])
            return at[1]
        if not self._held:
            self._step = then
        return end

    def _name(self, text: str, place: int, out: list[Piece]) -> int:
        end = WORD.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        name = "".join(self._parts)
        self._parts.clear()
        if not name or (not self._is_marked and name not in self._tools):
            self.progress = Progress.FAILED
            return end
        self._called = name
        self._step = self._after_name if self._markup.name_end else self._between
        return end

    def _after_name(self, text: str, place: int, out: list[Piece]) -> int:
        end = self._tag(self._markup.name_end, self._between, (text, place, out))
        if self._step == self._between:
            self._begin(out)
        return end

    def _between(self, text: str, place: int, out: list[Piece]) -> int:
        """After the name, or after a value."""
        if text[place].isspace():
            return place + 1
        found = self._markup.after_value.match(text, place)
        if found is None:
            self._break(out)
            return place
        if found[1] is None:
            self._held = found[0]
            return found.end()
        self._begin(out)
        if found[1] == self._markup.key:
            self._step = self._key
        else:
            self._finish(out, Progress.CLOSED if found[1] == self._markup.closing else Progress.DONE)
        return found.end()

    def _key(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(self._markup.key_ending, text, place)
        self._parts.append(before)
        if mark:
            self._parameter = tool_parameter(self._tools.get(self._called), "".join(self._parts).strip())
            self._parts.clear()
            self._step = self._before_value
        return end

    def _before_value(self, text: str, place: int, out: list[Piece]) -> int:
        tag = self._markup.value
        if tag and text[place].isspace():
            return place + 1
        if not tag or text.startswith(tag, place):
            key = json.dumps(self._parameter.name, ensure_ascii=False)
            quote = '"' if self._parameter.kinds == {"string"} else ""
            out.append(ArgumentsPiece(f"{', ' if self._count else '{'}{key}: {quote}"))
            self._count += 1
            self._newline, self._is_begun = "", False
        return self._tag(tag, self._value, (text, place, out))

    def _value(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(self._markup.value_ending, text, place)
        self._add(before, out)
        if not mark:
            return end
        if self._newline and not self._markup.is_padded:
            self._write(self._newline, out)
        if self._parameter.kinds == {"string"}:
            out.append(ArgumentsPiece('"'))
        else:
            out.append(ArgumentsPiece(value_as_json("".join(self._parts), self._parameter.kinds)))
        self._parts.clear()
        self._step = self._between
        return end

    def _add(self, text: str, out: list[Piece]) -> None:
        """Add to the value. A newline at its end is held back: it may belong to the tag."""
        if text and not self._is_begun:
            self._is_begun = True
            text = text.removeprefix("\n") if self._markup.is_padded else text
        if text:
            self._write(self._newline + text.removesuffix("\n"), out)
            self._newline = "\n" if text.endswith("\n") else ""

    def _write(self, text: str, out: list[Piece]) -> None:
        if self._parameter.kinds != {"string"}:
            self._parts.append(text)
        elif text:
            out.append(ArgumentsPiece(json.dumps(text, ensure_ascii=False)[1:-1]))

    def _begin(self, out: list[Piece]) -> None:
        if self.progress is Progress.READING:
            self.progress = Progress.CALLING
            out.append(CallStart(self._called))

    def _finish(self, out: list[Piece], progress: Progress) -> None:
        out.append(ArgumentsPiece("}" if self._count else "{}"))
        self.progress = progress

    def _break(self, out: list[Piece]) -> None:
        """There are no tags from here on. A call that has started ends here."""
        if self.progress is Progress.READING:
            self.progress = Progress.FAILED
        else:
            self._finish(out, Progress.DONE)
