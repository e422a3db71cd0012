"""For templates without tools, or with an unknown style: the tools are written into the system message.

The instructions request Hermes's form, which most models have seen. Models that were not trained on it leave out the
marks or write the object as a block of code; an answer that begins like that is read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from quire.text.parsers import hermes
from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.style import Parser, TemplateInput, ToolStyle
from quire.text.parsers.turns import described, with_instructions
from quire.types.chat import Tool
from quire.types.message import Message

_FORM = CallForm(opens=(hermes.OPEN,), closes=(hermes.CLOSE, "```"), fenced=True)

_INSTRUCTIONS = """You may call these functions:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as a JSON object between marks, like this:
<tool_call>
{{"name": "function_name", "arguments": {{"argument_name": "value"}}}}
</tool_call>
For several calls, write several such blocks. The results will come between <tool_response> and </tool_response>. \
If no function is needed, just answer."""


def knows(template: str) -> bool:
    return True


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    written = tuple(_in_plain_words(messages))
    if tools:
        written = with_instructions(written, _INSTRUCTIONS.format(tools=described(tools)))
    return TemplateInput(written, ())


def _in_plain_words(messages: Sequence[Message]) -> Iterator[Message]:
    """Calls become text of the assistant, results text of the user: all that follow each other in one message."""
    results: list[Message] = []
    for message in messages:
        if message.role == "tool":
            results.append(message)
            continue
        if results:
            yield _answered(results)
            results = []
        yield _called(message) if message.tool_calls else message
    if results:
        yield _answered(results)


def _called(message: Message) -> Message:
    calls = [
        f'{hermes.OPEN}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, '
        f'"arguments": {call.arguments.strip() or "{}"}}}\n{hermes.CLOSE}'
        for call in message.tool_calls
    ]
    return replace(message, text="\n".join([*([message.text] if message.text else []), *calls]), tool_calls=())


def _answered(results: Sequence[Message]) -> Message:
    text = "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for result in results)
    return Message("user", text, keep=max((r.keep for r in results if r.keep is not None), default=None))


STYLE = ToolStyle("generic", hermes.STYLE.marks, knows, parser, hermes.rules, prepare)
