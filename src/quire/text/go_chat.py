"""Renders conversations with a template in Go's dialect, as Ollama writes them.

A template that reads .Messages is run once, with all of them. An older one, which reads .System, .Prompt and .Response,
is run for each turn; of the last turn only what comes before the answer is written. Neither writes the token that
begins a text: the tokenizer adds it if the model has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.text.errors import BrokenTemplate, RejectedMessages
from quire.text.go_template.errors import GoRunError, GoSyntaxError, GoTooBig
from quire.text.go_template.nodes import Action, Body, CallNode, FieldsNode, If, Include, Pipeline, Range
from quire.text.go_template.parse import MAIN
from quire.text.go_template.template import GoTemplate, fields_in
from quire.text.go_template.values import GoStruct
from quire.text.template_variables import NO_VARIABLES, check_names

RESPONSE = Action(Pipeline((CallNode("", (FieldsNode(None, ("Response",)),), 0),)))
Message = Mapping[str, Any]


class GoChatTemplate:
    """A stored model's template, which replaces its file's own. Has the methods of `ChatTemplate`."""

    is_default = False
    writes_bos = False

    def __init__(self, source: str) -> None:
        try:
            template = GoTemplate.read(source)
        except GoSyntaxError as error:
            raise BrokenTemplate(f"The model's template is not valid: {error}.") from error
        self.sources = {"default": source}
        self._takes_all = "Messages" in template.field_names
        body = template.bodies[MAIN]
        if not self._takes_all and "Response" not in template.field_names:
            body = (*body, RESPONSE)
        self._whole = GoTemplate({**template.bodies, MAIN: body})
        self._open = GoTemplate({**template.bodies, MAIN: up_to_answer(body)})

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """The prompt's text. These templates always end where the answer begins: `add_generation_prompt` is ignored."""
        check_names(variables)
        turns = _join_neighbours([_message(message) for message in messages])
        try:
            if self._takes_all:
                return self._whole.run(_data(turns, tools or (), variables))
            return self._turn_by_turn(turns)
        except GoTooBig as error:
            raise RejectedMessages(f"The model's template does not finish with these messages: {error}.") from error
        except GoRunError as error:
            raise RejectedMessages(f"The model's template cannot write these messages: {error}.") from error

    def render_open(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """The prompt's text up to the end of the last message's words, which the answer continues."""
        words = messages[-1].get("content") or ""
        return self.render(messages[:-1], tools=tools, variables=variables) + str(words)

    def _turn_by_turn(self, turns: Sequence[GoStruct]) -> str:
        written: list[str] = []
        turn = {"System": "", "Prompt": "", "Response": ""}
        for message in turns:
            role, content = message.fields["Role"], message.fields["Content"]
            name = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(role)
            if name is None or message.fields["ToolCalls"]:
                raise GoRunError("it has no place for tool calls and their results")
            is_begun = turn["Response"] or (name == "System" and turn["Prompt"])
            if name != "Response" and is_begun:
                written.append(self._whole.run(turn))
                turn = dict.fromkeys(turn, "")
            turn[name] = content
        return "".join(written) + self._open.run(turn)


def check_template(source: str) -> None:
    """Raise a GoSyntaxError if this cannot be a model's template."""
    GoTemplate.read(source)


def up_to_answer(body: Body) -> Body:
    """The template up to and including the first .Response."""
    kept: list[Any] = []
    for node in body:
        if not any("Response" in each.names for each in fields_in((node,))):
            kept.append(node)
            continue
        match node:
            case If(condition, inner, orelse, moves_dot) if _reads_response(inner):
                kept.append(If(condition, up_to_answer(inner), (), moves_dot))
            case If(condition, inner, orelse, moves_dot) if _reads_response(orelse):
                kept.append(If(condition, inner, up_to_answer(orelse), moves_dot))
            case Range(over, inner, orelse) if _reads_response(inner):
                kept.append(Range(over, up_to_answer(inner), ()))
            case Action() | Include():
                kept.append(node)
        break
    return tuple(kept)


def _reads_response(body: Body) -> bool:
    return any("Response" in each.names for each in fields_in(body))


def _data(turns: list[GoStruct], tools: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]) -> dict[str, Any]:
    thinks = extra.get("enable_thinking", extra.get("thinking"))
    return {
        "System": "\n\n".join(turn.fields["Content"] for turn in turns if turn.fields["Role"] == "system"),
        "Messages": turns,
        "Tools": [_tool(tool) for tool in tools],
        "Response": "",
        "Prompt": "",
        "Suffix": "",
        "Think": bool(thinks),
        "ThinkLevel": str(extra.get("reasoning_effort") or ""),
        "IsThinkSet": thinks is not None,
    }


def _message(given: Message) -> GoStruct:
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise RejectedMessages("A message for this model has a role and a content, which are text.")
    thinking = next((given[name] for name in ("reasoning_content", "thinking", "reasoning") if given.get(name)), "")
    calls = [_call(call, place) for place, call in enumerate(given.get("tool_calls") or ())]
    fields = {
        "Role": role,
        "Content": content or "",
        "Thinking": str(thinking),
        "Images": [],
        "ToolCalls": calls,
        "ToolName": str(given.get("name") or ""),
        "ToolCallID": str(given.get("tool_call_id") or ""),
    }
    return GoStruct(fields, {"role": role, "content": content or ""})


def _call(given: Mapping[str, Any], place: int) -> GoStruct:
    function = given.get("function") or {}
    plain = {"index": place, "name": str(function.get("name", "")), "arguments": _plain(function.get("arguments", {}))}
    called = GoStruct({"Index": place, "Name": plain["name"], "Arguments": plain["arguments"]}, plain)
    whole = {"id": str(given.get("id") or ""), "function": plain}
    return GoStruct({"ID": whole["id"], "Function": called}, whole)


def _tool(given: Mapping[str, Any]) -> GoStruct:
    plain = _plain(given)
    function = plain.get("function", {})
    schema = function.get("parameters", {})
    properties = {name: _property(each) for name, each in schema.get("properties", {}).items()}
    names = {"Type": schema.get("type", ""), "Required": schema.get("required", []), "Properties": properties}
    described = {
        "Name": function.get("name", ""),
        "Description": function.get("description", ""),
        "Parameters": GoStruct(names, schema),
    }
    return GoStruct({"Type": plain.get("type", ""), "Function": GoStruct(described, function)}, plain)


def _property(schema: Any) -> GoStruct:
    known = schema if isinstance(schema, dict) else {}
    names = {"Type": "type", "Description": "description", "Enum": "enum", "Items": "items"}
    return GoStruct({name: known.get(key, "") for name, key in names.items()}, schema)


def _plain(value: Any) -> Any:
    """A copy made of JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _join_neighbours(turns: Sequence[GoStruct]) -> list[GoStruct]:
    """Join consecutive messages of one role, except those of tools."""
    collated: list[GoStruct] = []
    for turn in turns:
        last = collated[-1] if collated else None
        if (
            last is None
            or last.fields["Role"] != turn.fields["Role"]
            or turn.fields["Role"] == "tool"
            or last.fields["ToolCalls"]
            or turn.fields["ToolCalls"]
        ):
            collated.append(turn)
            continue
        content = f"{last.fields['Content']}\n\n{turn.fields['Content']}"
        thinking = "\n\n".join(filter(None, (last.fields["Thinking"], turn.fields["Thinking"])))
        collated[-1] = GoStruct({**last.fields, "Content": content, "Thinking": thinking}, last.plain)
    return collated
