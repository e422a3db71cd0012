"""Renders a conversation as the text that the model was trained to continue."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from quire.text.errors import BrokenTemplate, RejectedMessages
from quire.text.sandbox import MAX_TEXT, ChatEnvironment, TemplateRefusal, TemplateTooBig
from quire.text.template_files import template_sources
from quire.text.template_variables import KWARGS_FIELD, NO_VARIABLES, check_names
from quire.types.errors import InvalidRequest

CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_REASONING = ("reasoning_content", "thinking", "reasoning")
_ENVIRONMENT = ChatEnvironment()
_COMPILING = threading.Lock()
_TAG = "<<the last message goes on here>> "  # its space shows whether the template trims its text

NO_TOKENS: Mapping[str, str] = MappingProxyType({})

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's template, compiled at first use. Without one (`source` is None) conversations are written as ChatML.

    A model may have several by name; "tool_use" is taken when there are tools, else "default". `tokens` are special
    tokens by the names that templates have for them, such as `bos_token`.
    """

    writes_bos = True  # the tokenizer adds nothing before its text

    def __init__(self, source: str | Mapping[str, str] | None, tokens: Mapping[str, str] = NO_TOKENS) -> None:
        self.is_default = not source
        named = {"default": source} if isinstance(source, str) else dict(source or {})
        self.sources: dict[str, str] = {name: text for name, text in named.items() if text} or {"default": CHATML}
        self._tokens = dict(tokens)
        self._compiled: dict[str, jinja2.Template] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokens: Mapping[str, str] = NO_TOKENS) -> ChatTemplate:
        """The template in a GGUF file, and its named variants."""
        key = "tokenizer.chat_template"
        found = {name: metadata.get(f"{key}.{name}") for name in metadata.get("tokenizer.chat_templates") or ()}
        if metadata.get(key):
            found["default"] = metadata[key]
        return cls({name: text for name, text in found.items() if text}, tokens)

    @classmethod
    def from_folder(cls, folder: Path, tokens: Mapping[str, str] = NO_TOKENS) -> ChatTemplate:
        """The templates among the files of a checkpoint."""
        return cls(template_sources(folder), tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """The prompt's text. `variables` are others that some templates read (enable_thinking, documents)."""
        check_names(variables)
        template = self._template(tools is not None)
        plain = [_with_reasoning(message) for message in _checked(messages)]
        scope = {"documents": None, **self._tokens, **_plain_variables(variables)}
        scope |= {"messages": plain, "tools": _plain(tools), "add_generation_prompt": add_generation_prompt}
        return self._written(template, scope, plain)

    def render_open(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """The prompt's text up to the end of the last message's words, which the answer continues.

        A tag after these words shows where the template wrote them, as in `transformers`. If a template leaves the
        message out, the words come where an answer would begin.
        """
        *before, last = _checked(messages)
        words = last.get("content") or ""
        if isinstance(words, str):
            tagged = [*before, {**last, "content": words + _TAG}]
            text = self.render(tagged, tools=tools, add_generation_prompt=False, variables=variables)
            head, found, tail = text.rpartition(_TAG.rstrip())
            if found:
                return head if tail.startswith(" ") else head.rstrip()
        return self.render(before, tools=tools, variables=variables) + str(words)

    def _written(self, template: jinja2.Template, scope: dict[str, Any], plain: Sequence[Message]) -> str:
        _ENVIRONMENT.begin()
        try:
            return _bounded(template, scope)
        except TemplateRefusal as error:
            raise RejectedMessages(f"The model's chat template refuses these messages: {error}") from error
        except TemplateTooBig as error:
            raise RejectedMessages(f"The chat template does not finish with these messages: {error}.") from error
        except jinja2.exceptions.SecurityError as error:
            raise BrokenTemplate(f"The model's chat template does something that templates may not: {error}") from error
        except RecursionError as error:
            raise BrokenTemplate("The model's chat template calls itself without end.") from error
        except Exception as error:  # an untrusted template may raise anything
            raise RejectedMessages(
                f"The model's chat template cannot write these messages: {_suspect(plain)}({error})"
            ) from error

    def _template(self, with_tools: bool) -> jinja2.Template:
        name = "tool_use" if with_tools and "tool_use" in self.sources else "default"
        if name not in self.sources:
            raise BrokenTemplate(f"The model has no default chat template, only {', '.join(self.sources)}.")
        with _COMPILING:
            if name not in self._compiled:
                _ENVIRONMENT.begin()  # constant parts are evaluated while compiling, within the same bounds
                try:
                    self._compiled[name] = _ENVIRONMENT.from_string(self.sources[name])
                except jinja2.TemplateSyntaxError as error:
                    raise BrokenTemplate(
                        f"The model's chat template is not valid: {error.message} in line {error.lineno}. "
                        "Give another template, or use completions instead of chat."
                    ) from error
                except (TemplateTooBig, RecursionError) as error:
                    raise BrokenTemplate(f"The model's chat template cannot be compiled: {error}.") from error
            return self._compiled[name]


def _bounded(template: jinja2.Template, scope: dict[str, Any]) -> str:
    parts, size = [], 0
    for part in template.generate(scope):
        size += len(part)
        if size > MAX_TEXT:
            raise TemplateTooBig(f"it writes more than {MAX_TEXT:,} characters")
        parts.append(part)
    return "".join(parts)


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RejectedMessages(
                f"messages[{place}] is {type(message).__name__}, not an object with role and content."
            )
    return [_plain(message) for message in messages]


def _plain(value: Any) -> Any:
    """A copy made of JSON's own types: a template must never get an object with other methods."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise RejectedMessages(f"A message holds a {type(value).__name__}, which is not a JSON value.")


def _plain_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the variables made of JSON's own types. An error names the variable that has another type."""
    plain = {}
    for name, value in variables.items():
        field = f"{KWARGS_FIELD}.{name}"
        try:
            plain[name] = _plain(value)
        except RejectedMessages as error:
            raise InvalidRequest(f"{field} is not a JSON value.", field=field) from error
        except RecursionError as error:
            raise InvalidRequest(f"{field} is nested too deeply.", field=field) from error
    return plain


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Clients and templates have several names for reasoning: set all names that templates read."""
    found = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _suspect(messages: Sequence[Message]) -> str:
    """Describe the first message with a property that templates often fail on."""
    for place, message in enumerate(messages):
        for name in ("role", "content"):
            if name not in message:
                return f"messages[{place}] has no {name!r} "
        if not isinstance(message["role"], str):
            return f"the role of messages[{place}] is not text "
        if not isinstance(message["content"], str):
            kind = "null" if message["content"] is None else type(message["content"]).__name__
            return f"the content of messages[{place}] is {kind}, and this template may want text "
    return "" if messages else "there are no messages "
