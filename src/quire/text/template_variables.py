"""Variables that a client may set for a chat template, and names that are reserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from quire.types.errors import InvalidRequest

NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})

KWARGS_FIELD = "chat_template_kwargs"
FUNCTIONS = ("cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now")
_LITERALS = ("true", "false", "none", "True", "False", "None")
_SETTINGS = (  # of the function that renders templates in transformers; no template sees them
    *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
    *("return_assistant_tokens_mask", "sanitize_control_tokens"),
)
RESERVED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(FUNCTIONS, "it is a function that templates call"),
        **dict.fromkeys(_LITERALS, "it is a word of the templates' language"),
        **dict.fromkeys(_SETTINGS, "it is no variable of templates"),
        "messages": "give the conversation as messages",
        "conversation": "give the conversation as messages",
        "tools": "give tools beside the messages",
        "chat_template": "the model's own template is used",
        "add_generation_prompt": "give it beside the messages",
        "continue_final_message": "give it beside the messages",
        "self": "it is a word of the templates' language",
    }
)


def check_names(names: Iterable[str]) -> None:
    """Refuse reserved names, and names that no template can read."""
    for name in names:
        field = f"{KWARGS_FIELD}.{name}"
        if name in RESERVED:
            raise InvalidRequest(f"{field} cannot be set: {RESERVED[name]}.", field=field)
        if not name.isidentifier():
            public = (
                f"{KWARGS_FIELD} has the name {name[:64]!r}, which no template can read: use letters and underscores."
            )
            raise InvalidRequest(public, field=KWARGS_FIELD)


def take_switch(variables: dict[str, Any], name: str, beside: bool | None = None) -> bool | None:
    """Remove a switch from the variables and return it; or `beside`, its value outside of them. They may not differ."""
    value = variables.pop(name, None)
    field = f"{KWARGS_FIELD}.{name}"
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{field} must be a boolean.", field=field)
    if value is not None and beside is not None and value != beside:
        raise InvalidRequest(f"{field} and {name} differ: give one of them.", field=field)
    return beside if value is None else value


def take_thinking(variables: dict[str, Any], effort: str | None) -> bool | None:
    """Remove the switch for thinking from the variables, and add the effort. None: the template decides.

    A switch among the variables is nearer to the model than an effort, so it wins.
    """
    think = take_switch(variables, "enable_thinking")
    check_names(variables)
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
    return effort_thinks(effort) if think is None else think


def effort_thinks(effort: str | None) -> bool | None:
    """Whether an effort requests thoughts. None: the template decides."""
    return None if effort is None else effort != "none"
