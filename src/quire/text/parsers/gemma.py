"""Gemma's own notation for arguments: call:name{key:value,…}, in which a mark stands on either side of a string."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from quire.text.parsers.call_reader import CallReader, Progress, SteppedReader
from quire.text.parsers.calls import CallForm, CallParser, object_reader
from quire.text.parsers.lark import (
    arguments,
    call_rules,
    joined,
    literal,
    mark_rule,
    object_call,
    one_or_more,
    schema_rule,
    text_until,
)
from quire.text.parsers.marks import mark_pattern, scan
from quire.text.parsers.parameters import Parameter, separate_parameters, tool_parameter, value_as_json
from quire.text.parsers.style import ArgumentsPiece, CallStart, Parser, Piece
from quire.types.chat import Tool, ToolChoice

_HEAD = "call:"
_WORD = re.compile(r"[\w.\-]*")
_KEY = re.compile(r"[\w\-]+")
_BARE_KEY = re.compile(r"[^:,{}\[\]]*")
_SCALAR = re.compile(r"[^,}\]]*")
_SCALARS = frozenset({"integer", "number", "boolean", "null"})
_LIST_KEYS = frozenset({"type", "items", "description", "title"})


@dataclass(frozen=True)
class GemmaNotation:
    """The marks around a call and around a string."""

    opening: str
    closing: str
    quote: str

    @property
    def marks(self) -> tuple[str, str, str]:
        """All marks."""
        return self.opening, self.closing, self.quote

    @cached_property
    def _form(self) -> CallForm:
        return CallForm((self.opening,), (self.closing,), bare="{", reader=self._reader)

    @cached_property
    def string_end(self) -> re.Pattern[str]:
        """Matches the end of a string."""
        return mark_pattern((self.quote,))

    def _reader(self, char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
        if is_marked and char == _HEAD[0]:
            return GemmaCallReader(self)
        return object_reader(char, tools, is_marked)

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Make the parser of an answer with such calls."""
        return CallParser(self._form, tools)

    def rules(self, tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
        """The grammar of an answer that must be such calls.

        A schema that this notation cannot be held to has its arguments as a JSON object.
        """
        more: list[str] = []

        def written(tool: Tool) -> str:
            arguments(tool)  # raises what is wrong with the schema
            place = len(more)
            found = _ArgumentRules(self, tokens, f"value_{place}")
            body = found.object_rule(tool) if _WORD.fullmatch(tool.name) else None
            if body is None:
                more.append("")
                return object_call(tool, "arguments")
            more.append("\n".join(found.rules))
            return f"{literal(_HEAD + tool.name)} {body}"

        calls = call_rules(tools, choice, written)
        call = f"({mark_rule(self.opening, tokens)} call {mark_rule(self.closing, tokens)})"
        return "\n".join([f"calls: {one_or_more(choice, call, '')}", calls, *filter(None, more)])


class _ArgumentRules:
    """Grammar rules for the arguments of one tool, with names that begin with `prefix`."""

    def __init__(self, notation: GemmaNotation, tokens: Mapping[str, int], prefix: str) -> None:
        self.rules: list[str] = []
        self._quote = notation.quote
        self._tokens = tokens
        self._prefix = prefix

    def object_rule(self, tool: Tool, is_quoted: bool = False) -> str | None:
        """{key:value,…}; None if the schema says more than that. Keys of inner objects are strings."""
        parameters = separate_parameters(tool)
        if parameters is None or not all(_KEY.fullmatch(each.name) for each in parameters):
            return None
        parts = []
        for each in parameters:
            value = self._value(each, tool)
            if value is None:
                return None
            key = self._string(literal(each.name)) if is_quoted else literal(each.name)
            parts.append((f"{key} {literal(':')} {value}", each.is_required))
        return f"{literal('{')} {joined(parts, ',')} {literal('}')}"

    def _value(self, parameter: Parameter, tool: Tool) -> str | None:
        kinds, schema = parameter.kinds, parameter.schema
        if parameter.is_free_text:
            name = f"{self._prefix}_{len(self.rules)}"
            self.rules.append(text_until(name, self._quote, self._tokens))
            return f"{mark_rule(self._quote, self._tokens)} {name}"
        if kinds == {"string"} and parameter.choices is not None:
            if not all(
                isinstance(choice, str) and choice and self._quote not in choice for choice in parameter.choices
            ):
                return None
            return self._string(f"({' | '.join(map(literal, parameter.choices))})")
        if kinds and kinds <= _SCALARS and "$ref" not in schema:
            return schema_rule(schema, tool)
        if kinds == {"array"} and set(schema) <= _LIST_KEYS and isinstance(schema.get("items"), Mapping):
            inner = Tool(tool.name, "", {"type": "object", "properties": {"items": schema["items"]}})
            item = self._value(tool_parameter(inner, "items"), tool)
            return item and f"{literal('[')} ({item} ({literal(',')} {item})*)? {literal(']')}"
        if kinds == {"object"} and "properties" in schema:
            return self.object_rule(Tool(tool.name, "", schema, tool.strict), is_quoted=True)
        return None

    def _string(self, text: str) -> str:
        mark = mark_rule(self._quote, self._tokens)
        return f"{mark} {text} {mark}"


class GemmaCallReader(SteppedReader):
    """One call. Its arguments are returned as JSON: strings as they come, other values when they are complete."""

    def __init__(self, notation: GemmaNotation) -> None:
        super().__init__(self._head)
        self._notation = notation
        self._parts: list[str] = []
        self._open: list[str] = []  # the brackets that end what is open, the innermost last
        self._is_first = True  # the innermost object or list is empty so far

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        return True  # there are no calls without a mark

    def _head(self, text: str, place: int, out: list[Piece]) -> int:
        end = self._expect(_HEAD, text, place)
        if end is None:
            self.progress = Progress.FAILED
            return place
        if not self._held:
            self._step = self._name
        return end

    def _name(self, text: str, place: int, out: list[Piece]) -> int:
        end = _WORD.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        name = self._take()
        if not name or text[end] != "{":
            self.progress = Progress.FAILED
            return end
        self.progress = Progress.CALLING
        out.append(CallStart(name))
        return self._enter("{", "}", end, out)

    def _enter(self, bracket: str, end: str, place: int, out: list[Piece]) -> int:
        out.append(ArgumentsPiece(bracket))
        self._open.append(end)
        self._is_first = True
        self._step = self._before_key if end == "}" else self._before_value
        return place + 1

    def _before_key(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] == "}":
            return self._leave(place, out)
        end = self._expect(self._notation.quote, text, place)
        if end is None:
            self._step = self._key
            return place
        if not self._held:
            self._step = self._quoted_key
        return end

    def _key(self, text: str, place: int, out: list[Piece]) -> int:
        end = _BARE_KEY.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        if end == len(text):
            self._held = text[place:]
            return end
        return self._add_key(text[place:end].strip(), end, out) if text[end] == ":" else self._break(place, out)

    def _quoted_key(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(self._notation.string_end, text, place)
        self._parts.append(before)
        if mark:
            self._step = self._colon
        return end

    def _colon(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] == ":":
            return self._add_key(self._take(), place, out)
        return self._break(place, out)

    def _add_key(self, key: str, place: int, out: list[Piece]) -> int:
        out.append(ArgumentsPiece(f"{'' if self._is_first else ', '}{json.dumps(key, ensure_ascii=False)}: "))
        self._step = self._value
        return place + 1

    def _before_value(self, text: str, place: int, out: list[Piece]) -> int:
        """In a list."""
        if text[place].isspace():
            return place + 1
        if text[place] == "]":
            return self._leave(place, out)
        if not self._is_first:
            out.append(ArgumentsPiece(", "))
        self._step = self._value
        return place

    def _value(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] in "{[":
            return self._enter(text[place], "}" if text[place] == "{" else "]", place, out)
        end = self._expect(self._notation.quote, text, place)
        if end is None:
            self._step = self._scalar
            return place
        if not self._held:
            out.append(ArgumentsPiece('"'))
            self._step = self._string
        return end

    def _string(self, text: str, place: int, out: list[Piece]) -> int:
        part, mark, self._held, end = scan(self._notation.string_end, text, place)
        if part:
            out.append(ArgumentsPiece(json.dumps(part, ensure_ascii=False)[1:-1]))
        if mark:
            out.append(ArgumentsPiece('"'))
            self._step, self._is_first = self._after_value, False
        return end

    def _scalar(self, text: str, place: int, out: list[Piece]) -> int:
        end = _SCALAR.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._parts.append(text[place:end])
        if end == len(text):
            return end
        out.append(ArgumentsPiece(value_as_json(self._take().strip(), frozenset())))
        self._step, self._is_first = self._after_value, False
        return end

    def _after_value(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            return place + 1
        if text[place] == ",":
            self._step = self._before_key if self._open[-1] == "}" else self._before_value
            return place + 1
        if text[place] == self._open[-1]:
            return self._leave(place, out)
        return self._break(place, out)

    def _leave(self, place: int, out: list[Piece]) -> int:
        out.append(ArgumentsPiece(self._open.pop()))
        self._step, self._is_first = self._after_value, False
        if not self._open:
            self.progress = Progress.DONE
        return place + 1

    def _break(self, place: int, out: list[Piece]) -> int:
        """The notation ends here, and with it the call: all that is open is closed."""
        out.append(ArgumentsPiece("".join(reversed(self._open))))
        self.progress = Progress.DONE
        return place

    def _take(self) -> str:
        value = "".join(self._parts)
        self._parts.clear()
        return value
