"""Mistral: after [TOOL_CALLS] a list of JSON objects or, since its eleventh tokenizer, name[ARGS]{…} for each call."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from quire.text.parsers.call_reader import CallReader, Progress, SteppedReader
from quire.text.parsers.calls import CallForm, CallParser, object_reader
from quire.text.parsers.json_value import ValueScanner
from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule, object_call, one_or_more
from quire.text.parsers.style import ArgumentsPiece, CallStart, Parser, Piece, TemplateInput, ToolStyle
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

_WORD = re.compile(r"[\w.\-]*")
_ID_LENGTH = 9


class NamedReader(SteppedReader):
    """name[CALL_ID]id[ARGS]{…}; either tag may be missing."""

    def __init__(self) -> None:
        super().__init__(self._word)
        self._parts: list[str] = []
        self._name: str | None = None
        self._scanner = ValueScanner()

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        if self.progress is Progress.READING and self._name and is_announced:
            out.append(CallStart(self._name))
        return is_announced or self.progress is Progress.CALLING

    def _word(self, text: str, place: int, out: list[Piece]) -> int:
        """Read the name or, after its tag, an id, which is ignored."""
        end = _WORD.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._parts.append(text[place:end])
        if end < len(text):
            self._name = "".join(self._parts) if self._name is None else self._name
            self._parts, self._step = [], self._after_word
        return end

    def _after_word(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place] == "{" and self._name:
            out.append(CallStart(self._name))
            self.progress, self._step = Progress.CALLING, self._arguments
        elif text[place] == "[":
            self._step = self._tag
        elif text[place].isspace():
            return place + 1
        else:
            self.progress = Progress.FAILED
        return place

    def _tag(self, text: str, place: int, out: list[Piece]) -> int:
        self._parts.append(text[place])
        tag = "".join(self._parts)
        if tag in (ARGS, CALL_ID):
            self._parts, self._step = [], self._after_word if tag == ARGS else self._word
        elif not ARGS.startswith(tag) and not CALL_ID.startswith(tag):
            self.progress = Progress.FAILED
        return place + 1

    def _arguments(self, text: str, place: int, out: list[Piece]) -> int:
        end = self._scanner.scan(text, place)
        out.append(ArgumentsPiece(text[place : end if end >= 0 else len(text)]))
        if end < 0:
            return len(text)
        self.progress = Progress.DONE
        return end


def _reader(char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
    return NamedReader() if _WORD.fullmatch(char) else object_reader(char, tools, is_marked)


_FORM = CallForm(opens=(CALLS,), bare="[{", reader=_reader)


def knows(template: str) -> bool:
    return CALLS in template


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    """A vocabulary with [ARGS] belongs to a model that was trained on the newer form."""
    opening = mark_rule(CALLS, tokens)
    if ARGS in tokens and all(_WORD.fullmatch(tool.name) for tool in tools):
        some_id = f"({mark_rule(CALL_ID, tokens)} /[a-zA-Z0-9]{{9}}/)?" if CALL_ID in tokens else ""
        head = f"{some_id} {mark_rule(ARGS, tokens)}"
        calls = call_rules(tools, choice, lambda tool: f"{opening} {literal(tool.name)} {head} {arguments(tool)}")
        return f"calls: {one_or_more(choice, 'call', '')}\n{calls}"
    calls = call_rules(tools, choice, lambda tool: object_call(tool, "arguments"))
    return f'calls: {opening} " "? "[" {one_or_more(choice, "call", literal(", "))} "]"\n{calls}'


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """Shorten ids: the templates refuse ids that are not nine letters or digits."""
    return TemplateInput(tuple(_with_short_ids(message) for message in messages), tuple(tools))


def _with_short_ids(message: Message) -> Message:
    calls = tuple(replace(call, id=_short(call.id)) for call in message.tool_calls)
    answered = None if message.tool_call_id is None else _short(message.tool_call_id)
    return replace(message, tool_calls=calls, tool_call_id=answered)


def _short(call_id: str) -> str:
    if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_ID_LENGTH]


STYLE = ToolStyle("mistral", (CALLS, ARGS, CALL_ID), knows, parser, rules, prepare)
