"""Pieces of Lark grammars, in llguidance's dialect: marks, tools that may be called, arguments by their schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.types.chat import Tool, ToolChoice
from quire.types.errors import InvalidRequest

# Like json.dumps, with or without its spaces. With free whitespace, a model may write it forever.
_SPACING = {"whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?"}


def literal(text: str) -> str:
    """A string of the grammar."""
    return json.dumps(text, ensure_ascii=False)


def letters(text: str) -> str:
    """The same text within a regular expression."""
    return re.escape(text).replace("/", r"\/")


def mark_rule(mark: str, tokens: Mapping[str, int]) -> str:
    """A mark: its token if the vocabulary has one, else its letters."""
    return f"<[{tokens[mark]}]>" if mark in tokens else literal(mark)


def one_or_more(choice: ToolChoice, call: str, joint: str) -> str:
    """One call, or several if that is allowed. A tool that must be called is called once."""
    return f"{call} ({joint} {call})*" if choice.parallel and choice.name is None else call


def joined(parts: Sequence[tuple[str, bool]], joint: str) -> str:
    """Parts in a row with the joint between them. Those that are required come first; the others may be left out."""
    needed = [part for part, is_required in parts if is_required]
    others = [part for part, is_required in parts if not is_required]
    tails = ["".join(f" ({literal(joint)} {part})?" for part in others[place:]) for place in range(len(others) + 1)]
    if needed:
        return f" {literal(joint)} ".join(needed) + tails[0]
    firsts = [f"{part}{tails[place + 1]}" for place, part in enumerate(others)]
    return f"({' | '.join(firsts)})?" if firsts else ""


def call_rules(tools: Sequence[Tool], choice: ToolChoice, written: Callable[[Tool], str]) -> str:
    """The rule `call`: any of the tools that may be called, as `written` says."""
    chosen = [tool for tool in tools if choice.name in (None, tool.name)]
    if not chosen:
        names = ", ".join(tool.name for tool in tools) or "none"
        raise InvalidRequest(f"tool_choice names {choice.name!r}; the tools are: {names}.", field="tool_choice")
    rules = [f"call: {' | '.join(f'call_{place}' for place in range(len(chosen)))}"]
    rules += [f"call_{place}: {written(tool)}" for place, tool in enumerate(chosen)]
    return "\n".join(rules)


def arguments(tool: Tool) -> str:
    """An object that follows the tool's schema. If the tool is not strict, keywords without a grammar are ignored."""
    kind = tool.parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequest(f"The parameters of {tool.name!r} are {kind!r}; they must be an object.", field="tools")
    return schema_rule({**tool.parameters, "type": "object"}, tool)


def schema_rule(schema: Mapping[str, Any], tool: Tool) -> str:
    """A JSON value that follows a schema of this tool."""
    options = {**_SPACING, "lenient": not tool.strict}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def text_until(rule: str, mark: str, tokens: Mapping[str, int]) -> str:
    """Rules named after `rule` for any text and the mark that ends it.

    Both the mark's token and its letters end it, so it does not matter how the grammar sees the token.
    """
    end, name = letters(mark), rule.upper()
    rules = [f"{rule}_spelled[lazy]: /(?s:.*){end}/"]
    if mark in tokens:
        rules += [f"{name}_TEXT: /(?s:.*)/ & ~/(?s:.*){end}(?s:.*)/", f"{rule}_closing: {mark_rule(mark, tokens)}"]
        return "\n".join([f"{rule}: {rule}_spelled | {name}_TEXT {rule}_closing", *rules])
    return "\n".join([f"{rule}: {rule}_spelled", *rules])


def object_call(tool: Tool, key: str, name_key: str = "name") -> str:
    """{"<name_key>": …, "<key>": {…}}."""
    head = f'{{"{name_key}": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": '
    return f"{literal(head)} {arguments(tool)} {literal('}')}"
