"""Which form an answer has: what the model is held to, and what is made out of its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from quire.grammar.alternatives import SchemaOptions
from quire.grammar.schema import parse_schema
from quire.grammar.schema_writer import exact_schema
from quire.serve.dialects.strict_json import text_of
from quire.serve.generation.choice_decoder import OutputFormat
from quire.serve.generation.prompts import ModelText, Prompt
from quire.text.parsers.compose import constraint_for, parser_for
from quire.types.chat import Ask, ChatRequest, Tool
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind


def offered(ask: Ask) -> Ask:
    """The same without tools that must not be called: the model is not shown what it may not use."""
    if isinstance(ask, ChatRequest) and ask.tool_choice.mode == "none":
        return replace(ask, tools=())
    return ask


def constraint_of(ask: Ask, prompt: Prompt, model_text: ModelText, open_objects: bool = False) -> Constraint | None:
    """The grammar that the answer must follow: the client's own, if it is text, or that of a call which it requires."""
    if not isinstance(ask, ChatRequest) or ask.tool_choice.mode != "required":
        return ask.constraint
    if ask.constraint is not None and ask.constraint.kind not in (ConstraintKind.JSON, ConstraintKind.SCHEMA):
        public = f"An answer that must be a call cannot have another form too: leave out the {ask.constraint.kind}."
        raise InvalidRequest(public, field="tool_choice")
    if not ask.tools:
        raise InvalidRequest("A call is required, and there are no tools.", field="tool_choice")
    tools = [replace(tool, parameters=_arguments(tool, open_objects)) for tool in ask.tools]
    return constraint_for(
        model_text.style, tools, ask.tool_choice, _marks(model_text), model_text.reasoning, prompt.begins_in_thought
    )


def output_format_of(ask: Ask, prompts: Sequence[Prompt], model_text: ModelText) -> OutputFormat:
    """How the answer is to be told. In a form that the client prescribes there is no room for thoughts and calls."""
    if not isinstance(ask, ChatRequest):
        return OutputFormat(ask.sampling, model_text.side, continues=True, echo=ask.echo)
    plain = OutputFormat(
        ask.sampling, model_text.side, continues=ask.continue_last, echo=ask.echo, parallel=ask.tool_choice.parallel
    )
    is_text = ask.constraint is not None and ask.tool_choice.mode != "required"
    if is_text or not (ask.tools or model_text.reasoning):
        return plain
    parser = partial(parser_for, model_text.style, model_text.reasoning, ask.tools, prompts[0].begins_in_thought)
    return replace(plain, parser=parser, shown=tuple(_marks(model_text).values()))


def _arguments(tool: Tool, open_objects: bool) -> dict[str, Any]:
    """The schema of a tool's arguments, as grammars want it. If it has none, there are no arguments."""
    given = tool.parameters or {"type": "object", "properties": {}}
    try:
        return _exact(
            text_of(given, "tools"), SchemaOptions(tool.strict or not open_objects, is_lenient=not tool.strict)
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"The tool {tool.name!r}: {error.public}", field="tools") from error
    except RecursionError as error:
        raise InvalidRequest(f"The parameters of {tool.name!r} are nested too deeply.", field="tools") from error


@lru_cache(maxsize=256)
def _exact(text: str, options: SchemaOptions) -> dict[str, Any]:
    """Clients send the same tools again and again."""
    return exact_schema(parse_schema(text), options)


def _marks(model_text: ModelText) -> dict[str, int]:
    """Those marks of the model that are tokens of its vocabulary."""
    names = (*model_text.style.marks, *(model_text.reasoning.marks if model_text.reasoning else ()))
    return model_text.side.tokenizer.tokens_named(names) if model_text.side.tokenizer is not None else {}
