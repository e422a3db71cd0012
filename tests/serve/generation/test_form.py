"""The form of an answer that must be a call: arguments by the tools' schemas, closed as schemas of answers are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.serve.generation.form import constraint_of
from quire.serve.generation.prompts import ModelText, Prompt
from quire.text.parsers.registry import by_name
from quire.types.chat import ChatRequest, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind

pytestmark = pytest.mark.pure


class NoText:
    """A model's text side of which nothing is asked."""

    tokenizer = None


def arguments(tool: Tool, open_objects: bool = False, **more: Any) -> dict[str, Any]:
    """The schema that the grammar of a call has for its arguments."""
    model_text = ModelText(NoText(), by_name("llama3"), None)  # type: ignore[arg-type]
    ask = ChatRequest("m", (), tools=(tool,), tool_choice=ToolChoice("required", parallel=False), **more)
    constraint = constraint_of(ask, Prompt((), ""), model_text, open_objects)
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


def test_the_form_of_a_text_is_of_no_matter_where_a_call_must_come() -> None:
    form = Constraint(ConstraintKind.SCHEMA, '{"type": "array"}')
    assert "city" in arguments(Tool("f", "", CITY), constraint=form)["properties"]
    with pytest.raises(InvalidRequest, match="leave out the regex"):
        arguments(Tool("f", "", CITY), constraint=Constraint(ConstraintKind.REGEX, "a+"))


def test_what_cannot_be_followed_names_the_tool() -> None:
    bad = {"type": "object", "properties": {"n": {"not": {}}}}
    assert "n" in arguments(Tool("f", "", bad))["properties"], "a tool that is not strict lets it pass"
    with pytest.raises(InvalidRequest, match=r"The tool 'f': .*#/properties/n: not supported: not") as error:
        arguments(Tool("f", "", bad, strict=True))
    assert error.value.field == "tools"
