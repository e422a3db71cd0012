"""gpt-oss: messages on channels. A message to a function is a call; analysis is thought; all else is text.

<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from quire.text.parsers.channels import (
    ANALYSIS,
    CALL,
    CHANNEL,
    CHANNELS,
    COMMENTARY,
    CONSTRAIN,
    END,
    MESSAGE,
    RETURN,
    ROLE,
    START,
)
from quire.text.parsers.json_value import ValueScanner
from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule
from quire.text.parsers.marks import Flow, mark_pattern, scan
from quire.text.parsers.style import (
    ArgumentsPiece,
    CallStart,
    Piece,
    TemplateInput,
    TextPiece,
    ThoughtPiece,
    ToolStyle,
)
from quire.text.parsers.turns import one_call_each, one_system_message
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message

_FUNCTIONS = "functions."
_BUILT_IN = ("python", "browser", "container")  # tools that the models were trained with, and that no client offers
_SEPARATOR = "\n\n"  # between messages of one kind
_ENDS = (END, CALL, RETURN)
_AFTER_HEADER = mark_pattern((START, MESSAGE, *_ENDS))
_AFTER_CONTENT = mark_pattern((START, CHANNEL, *_ENDS))
_FIRST = (START, CHANNEL, MESSAGE, *_ENDS, "to=")  # what a header begins with
_BEGINNINGS = (mark_pattern((*_FIRST, ROLE)), mark_pattern(_FIRST))  # of a later message, of the first one
_WORD = re.compile(r"[^\s<]*")
_ADDRESS = re.compile(rf"\bto=\s*([^\s<]+)(?=[\s<])|\s({re.escape(_FUNCTIONS)}[^\s<]+)(?=[\s<])")


class Header(NamedTuple):
    """The facts about a message that come before its content."""

    role: str
    channel: str
    recipient: str

    @classmethod
    def read(cls, text: str) -> Header:
        """Read a header. The recipient may follow the role or the channel, with or without `to=`."""
        role, *channels = text.strip().removeprefix(START).split(CHANNEL)
        found = _ADDRESS.search(text)
        word = _first_word(role)
        return cls(
            ROLE if word.startswith("to=") else word or ROLE,
            _first_word(channels[-1]).lower() if channels else "",
            (found[1] or found[2]) if found else "",
        )


def _first_word(text: str) -> str:
    return _WORD.match(text.lstrip())[0]  # type: ignore[index]  # it always matches


class HarmonyParser:
    """One answer. A header is kept until it is complete; what has none is text."""

    def __init__(self, tools: Sequence[Tool], begun: str = "") -> None:
        self._tools = frozenset(tool.name for tool in tools)
        self._step: Callable[[str, int, list[Piece]], int] = self._begin
        self._held = ""  # text that may begin a mark
        self._header: list[str] = []
        self._is_first = True  # no message has ended
        self._kind: type[TextPiece | ThoughtPiece] = TextPiece  # of the current message
        self._is_empty = True  # the current message has no text yet
        self._seen: set[type[TextPiece | ThoughtPiece]] = set()  # kinds of messages that had text
        self._flow = Flow()
        self._scanner = ValueScanner()
        if begun:
            self.push(begun)
            self._held, self._seen, self._flow = "", set(), Flow(after_mark=self._is_empty)

    def push(self, text: str) -> list[Piece]:
        out: list[Piece] = []
        text, self._held = self._held + text, ""
        place = 0
        while place < len(text):
            place = self._step(text, place, out)
        return out

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        out: list[Piece] = []
        held, self._held = self._held, ""
        if self._step in (self._begin, self._in_header):
            if not is_cut_off:
                self._give_up(held, out)
            elif name := self._function(Header.read("".join(self._header))):
                out.append(CallStart(name))
        elif self._step == self._content and not (held and is_cut_off):
            self._add(held, out)
            out += [self._kind(rest)] if (rest := self._flow.rest()) else []
        elif self._step == self._before_arguments and not is_cut_off:
            out.append(ArgumentsPiece(held or "{}"))
        elif self._step == self._other_arguments and held and not is_cut_off:
            out.append(ArgumentsPiece(held))
        self._step, self._header, self._flow = self._begin, [], Flow()
        return out

    def _begin(self, text: str, place: int, out: list[Piece]) -> int:
        """Before a message."""
        if text[place].isspace():
            self._header += [text[place]] if self._is_first else []
            return place + 1
        found = _BEGINNINGS[self._is_first].match(text, place)
        if found is not None and found[1] is None:
            self._held = found[0]
            return found.end()
        if found is None:
            space, self._header = "".join(self._header), []
            self._open(TextPiece, Flow(after_mark=not self._is_first))
            self._add(space, out)
        else:
            self._step = self._in_header
        return place

    def _in_header(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(_AFTER_HEADER, text, place)
        self._header.append(before)
        if mark == MESSAGE:
            self._enter(out)
        elif mark is not None:
            if "".join(self._header).strip() not in ("", START, ROLE, START + ROLE):
                self._give_up("", out)
            self._leave(mark)
        return end

    def _enter(self, out: list[Piece]) -> None:
        """Begin the message whose header is complete."""
        header = Header.read("".join((*self._header, MESSAGE)))
        self._header.clear()
        name = self._function(header)
        if name and self._tools:
            out.append(CallStart(name))
            self._step = self._before_arguments
        elif name or not (header.recipient or header.role != ROLE or header.channel == ANALYSIS):
            self._open(TextPiece, Flow(after_mark=True))
        else:
            self._open(ThoughtPiece, Flow(after_mark=True))

    def _function(self, header: Header) -> str:
        """The function that a message calls, which need not be one of the tools. Empty: it is no call."""
        name = header.recipient.removeprefix(_FUNCTIONS)
        if header.role != ROLE or (name == header.recipient and name not in self._tools and _is_built_in(name)):
            return ""
        return name

    def _open(self, kind: type[TextPiece | ThoughtPiece], flow: Flow) -> None:
        self._kind, self._flow, self._is_empty, self._step = kind, flow, True, self._content

    def _leave(self, mark: str) -> None:
        """A message, or a header, ends with this mark."""
        self._is_first = False
        is_header = mark in (START, CHANNEL)
        self._header, self._step = ([mark], self._in_header) if is_header else ([], self._begin)

    def _content(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(_AFTER_CONTENT, text, place)
        self._add(before, out)
        if mark is not None:
            self._leave(mark)
        return end

    def _before_arguments(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        found = _AFTER_CONTENT.match(text, place)
        if found is not None and found[1] is None:
            self._held = found[0]
            return found.end()
        if found is not None:
            out.append(ArgumentsPiece("{}"))
            self._leave(found[1])
            return found.end()
        self._scanner = ValueScanner()
        self._step = self._arguments if text[place] == "{" else self._other_arguments
        return place

    def _arguments(self, text: str, place: int, out: list[Piece]) -> int:
        """An object, in whose strings there may be marks."""
        end = self._scanner.scan(text, place)
        out.append(ArgumentsPiece(text[place : end if end >= 0 else len(text)]))
        if end < 0:
            return len(text)
        self._open(TextPiece, Flow(after_mark=True))
        return end

    def _other_arguments(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(_AFTER_CONTENT, text, place)
        out += [ArgumentsPiece(before)] if before else []
        if mark is not None:
            self._leave(mark)
        return end

    def _give_up(self, held: str, out: list[Piece]) -> None:
        """Return a header that is none as text."""
        raw, self._header = "".join((*self._header, held)), []
        if raw:
            self._open(TextPiece, Flow(after_mark=not self._is_first))
            self._add(raw, out)
            out += [TextPiece(rest)] if self._is_first and (rest := self._flow.rest()) else []

    def _add(self, text: str, out: list[Piece]) -> None:
        certain = self._flow.take(text)
        if certain:
            separator = _SEPARATOR if self._is_empty and self._kind in self._seen else ""
            out.append(self._kind(separator + certain))
            self._is_empty = False
            self._seen.add(self._kind)


def _is_built_in(recipient: str) -> bool:
    return recipient == ROLE or recipient.split(".", maxsplit=1)[0] in _BUILT_IN


def knows(template: str) -> bool:
    return CHANNELS.is_in(template)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    """One call: the mark that ends it ends the answer. The function comes after the channel or before it."""
    channel, message = mark_rule(CHANNEL, tokens), mark_rule(MESSAGE, tokens)
    kind = f"{mark_rule(CONSTRAIN, tokens)} {literal('json')} {message}"

    def written(tool: Tool) -> str:
        address = f"to={_FUNCTIONS}{tool.name}"
        after = f"{channel} {literal(f'{COMMENTARY} {address} ')}"
        before = f"{literal(f' {address}')} {channel} {literal(f'{COMMENTARY} ')}"
        return f"({after} | {before}) {kind} {arguments(tool)}"

    return f"calls: call\n{call_rules(tools, choice, written)}"


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """The template writes one call a turn, and no system message but the first."""
    turns = one_call_each(one_system_message(messages))
    return TemplateInput(tuple(map(_without_text_beside_thought, turns)), tuple(tools))


def _without_text_beside_thought(message: Message) -> Message:
    """The template writes the text before a call as a thought, and refuses a text and a thought."""
    if not (message.tool_calls and message.text and message.reasoning):
        return message
    return replace(message, text="", reasoning=f"{message.reasoning}{_SEPARATOR}{message.text}")


STYLE = ToolStyle("harmony", CHANNELS.marks, knows, HarmonyParser, rules, prepare, whole=HarmonyParser)
