"""The grammar of an answer that must be a call: arguments follow the tools' schemas, closed like other schemas."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from quire.grammar.tool_schemas import exact_parameters
from quire.text.model_text import ModelText
from quire.text.output_format import constraint_of
from quire.text.prompts import Prompt
from quire.text.template import ChatTemplate
from quire.types.chat import ChatRequest, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind

pytestmark = pytest.mark.pure


LLAMA3 = '<|start_header_id|>{{ messages }}"parameters"'  # by these marks the style is found


def arguments(tool: Tool, open_objects: bool = False, **more: Any) -> dict[str, Any]:
    """The schema that the grammar of a call has for its arguments."""
    model_text = ModelText(None, ChatTemplate(LLAMA3), ())
    assert model_text.style.name == "llama3"
    ask = ChatRequest("m", (), tools=(tool,), tool_choice=ToolChoice("required", parallel=False), **more)
    constraint = constraint_of(ask, Prompt((), ""), model_text, partial(exact_parameters, open_objects))
    assert constraint is not None and constraint.kind is ConstraintKind.LARK
    found: dict[str, Any] = json.JSONDecoder().raw_decode(constraint.text.partition("%json ")[2])[0]
    return found


CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    "strict, open_objects, closes", [(False, False, True), (True, True, True), (False, True, False)]
)
def test_arguments_are_closed_unless_the_setting_leaves_them_open_and_the_tool_is_not_strict(
    strict: bool, open_objects: bool, closes: bool
) -> None:
    found = arguments(Tool("f", "", CITY, strict), open_objects)
    assert (found.get("additionalProperties") is False) is closes and "city" in found["properties"]


def test_a_tool_without_parameters_takes_none() -> None:
    assert arguments(Tool("now"))["additionalProperties"] is False


def test_a_required_call_takes_the_place_of_the_text_that_a_schema_describes() -> None:
    form = Constraint(ConstraintKind.SCHEMA, '{"type": "array"}')
    assert "city" in arguments(Tool("f", "", CITY), constraint=form)["properties"]
    with pytest.raises(InvalidRequest, match="leave out the regex"):
        arguments(Tool("f", "", CITY), constraint=Constraint(ConstraintKind.REGEX, "a+"))


def test_an_unsupported_schema_is_refused_with_the_name_of_its_tool() -> None:
    bad = {"type": "object", "properties": {"n": {"not": {}}}}
    assert "n" in arguments(Tool("f", "", bad))["properties"], "a tool that is not strict lets it pass"
    with pytest.raises(InvalidRequest, match=r"The tool 'f': .*#/properties/n: not supported: not") as error:
        arguments(Tool("f", "", bad, strict=True))
    assert error.value.field == "tools"
