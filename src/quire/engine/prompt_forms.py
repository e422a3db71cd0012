"""Everything that Python users may give for a prompt, as tokens: text, token ids, vLLM's dictionaries, conversations.

What is none of these is refused with the name of the argument and what it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypedDict

from quire.engine.text_side import Message, TextSide
from quire.types.errors import InvalidRequest
from quire.types.sampling_values import is_unicode, refusal, token_ids


class TextPrompt(TypedDict):
    """vLLM's form of a text."""

    prompt: str


class TokensPrompt(TypedDict):
    """vLLM's form of token ids."""

    prompt_token_ids: Sequence[int]


OnePrompt = str | Sequence[int] | TextPrompt | TokensPrompt
Prompts = OnePrompt | Sequence[str] | Sequence[Sequence[int]] | Sequence[TextPrompt] | Sequence[TokensPrompt]
Conversation = str | Sequence[Message]
Conversations = Conversation | Sequence[Sequence[Message]]

PROMPT = "a text, token ids, {'prompt': …} or {'prompt_token_ids': …}, or a list of these"
MESSAGES = "a list of messages such as {'role': 'user', 'content': 'Hi'}, a list of such lists, or a text"
TAKEN = ("messages", "tools", "add_generation_prompt", "self")  # these have arguments of their own, or none
TOOLS = "a list of tools such as {'type': 'function', 'function': {'name': …}}"


class Encoded(NamedTuple):
    """A prompt for the engine. `text` is what the tokens were made from; None: they were given."""

    tokens: tuple[int, ...]
    text: str | None = None


def encode_prompts(side: TextSide, prompts: Any) -> list[Encoded]:
    """Encode one prompt, or each of several."""
    if isinstance(prompts, str | Mapping):
        return [encode_prompt(side, prompts)]
    items = _items("prompts", prompts, PROMPT)
    if items and isinstance(items[0], Integral):
        return [Encoded(token_ids("prompts", items))]
    return [encode_prompt(side, item) for item in items]


def encode_prompt(side: TextSide, prompt: Any) -> Encoded:
    """Encode one prompt."""
    if isinstance(prompt, Mapping):
        prompt = _of_mapping(prompt)
    if isinstance(prompt, str):
        return Encoded(side.encode(_text("prompt", prompt)), prompt)
    return Encoded(token_ids("prompt", _items("prompt", prompt, PROMPT)))


def encode_chats(side: TextSide, messages: Any, tools: Any = None, variables: Any = None) -> list[Encoded]:
    """Encode one conversation, or each of several. A text is what the user says."""
    if isinstance(messages, str):
        return [encode_chat(side, [{"role": "user", "content": messages}], tools, variables)]
    items = _items("messages", messages, MESSAGES)
    if not items:
        raise refusal("messages", messages, MESSAGES)
    if isinstance(items[0], Mapping):
        return [encode_chat(side, items, tools, variables)]
    return [encode_chat(side, _items("messages", item, MESSAGES), tools, variables) for item in items]


def encode_chat(side: TextSide, messages: Sequence[Any], tools: Any = None, variables: Any = None) -> Encoded:
    """Encode one conversation, up to where the answer begins. `variables` go to the chat template."""
    if not messages:
        raise refusal("messages", messages, MESSAGES)
    if tools is not None:
        tools = _items("tools", tools, TOOLS)
        if not all(isinstance(tool, Mapping) for tool in tools):
            raise refusal("tools", tools, TOOLS)
    text = side.render([_message(message) for message in messages], tools, _variables(variables))
    return Encoded(side.encode_rendered(_text("messages", text)), text)


def encode_any(side: TextSide, prompt: Any, variables: Any = None) -> Encoded:
    """Encode one prompt or one conversation."""
    if not isinstance(prompt, str | Mapping):
        prompt = _items("prompt", prompt, PROMPT)
        if prompt and isinstance(prompt[0], Mapping):
            return encode_chat(side, prompt, None, variables)
    if variables:
        public = "chat_template_kwargs needs a conversation: this prompt goes to the model without a template."
        raise InvalidRequest(public, field="chat_template_kwargs")
    return encode_prompt(side, prompt)


def _variables(given: Any) -> dict[str, Any]:
    """Further variables of the chat template, such as enable_thinking."""
    name, takes = "chat_template_kwargs", "a mapping from names of the template's variables to values"
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) and key not in TAKEN for key in given):
        raise refusal(name, given, f"{takes}, without {', '.join(TAKEN)}")
    return dict(given)


def _of_mapping(given: Mapping[Any, Any]) -> Any:
    """The text or the token ids of one of vLLM's dictionaries. Other entries ask for what is not done here."""
    found = {name: value for name, value in given.items() if value is not None}
    known = [name for name in ("prompt_token_ids", "prompt") if name in found]
    if not known:
        raise refusal("prompt", given, PROMPT)
    strange = found.keys() - {"prompt", "prompt_token_ids"}
    if strange:
        name = min(map(str, strange))
        raise InvalidRequest(f"A prompt has {name[:64]!r}; it may have prompt or prompt_token_ids.", field="prompt")
    return found[known[0]]


def _message(given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise refusal("messages", given, MESSAGES)
    if not isinstance(given.get("role"), str):
        raise refusal("messages", given, MESSAGES)
    content = given.get("content")
    if isinstance(content, list | tuple):
        return {**given, "content": "".join(map(_part, content))}
    return given


def _part(part: Any) -> str:
    """The text of one part of a message: all that there is where models read text."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise refusal("messages", part, "text, or parts of text such as {'type': 'text', 'text': 'Hi'}")


def _text(name: str, text: str) -> str:
    if not is_unicode(text):
        raise refusal(name, text, "text without halves of surrogate pairs")
    return text


def _items(name: str, given: Any, takes: str) -> list[Any]:
    """The entries of a list, a tuple, an array or an iterator."""
    if hasattr(given, "tolist"):  # an array: its numbers as Python's
        given = given.tolist()
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise refusal(name, given, takes)
    return list(given)
