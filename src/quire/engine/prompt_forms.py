"""Reads everything that Python users may give for a prompt: text, token ids, vLLM's dictionaries, conversations.

Anything else is refused with the name of the argument and what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypedDict

from quire.engine.chat_forms import MESSAGES, ChatOptions, Conversation, MessageForm, chat_request, items_of
from quire.types.chat import Ask, ChatRequest, CompletionRequest
from quire.types.errors import InvalidRequest
from quire.types.message import Message
from quire.types.sampling_values import is_unicode, refusal, token_ids


class TextPrompt(TypedDict):
    """vLLM's form of a text."""

    prompt: str


class TokensPrompt(TypedDict):
    """vLLM's form of token ids."""

    prompt_token_ids: Sequence[int]


OnePrompt = str | Sequence[int] | TextPrompt | TokensPrompt
Prompts = OnePrompt | Sequence[str] | Sequence[Sequence[int]] | Sequence[TextPrompt] | Sequence[TokensPrompt]
Conversations = Conversation | Sequence[Sequence[MessageForm]]

PROMPT = "a text, token ids, {'prompt': …} or {'prompt_token_ids': …}, or a list of these"


def completion_requests(prompts: Any) -> list[CompletionRequest]:
    """Read one prompt, or each of several."""
    if isinstance(prompts, str | Mapping):
        return [completion_request(prompts)]
    items = items_of("prompts", prompts, PROMPT)
    if items and isinstance(items[0], Integral):
        return [_request(token_ids("prompts", items))]
    return [completion_request(item) for item in items]


def completion_request(prompt: Any) -> CompletionRequest:
    """Read one prompt."""
    if isinstance(prompt, Mapping):
        prompt = _of_mapping(prompt)
    if not isinstance(prompt, str):
        return _request(token_ids("prompt", items_of("prompt", prompt, PROMPT)))
    if not is_unicode(prompt):
        raise refusal("prompt", prompt, "text without halves of surrogate pairs")
    return _request(prompt)


def chat_requests(messages: Any, options: ChatOptions) -> list[ChatRequest]:
    """Read one conversation, or each of several. A text is one message of the user."""
    if isinstance(messages, str):
        return [chat_request(messages, options)]
    items = items_of("messages", messages, f"{MESSAGES}, a list of such lists, or a text")
    if not items or isinstance(items[0], Mapping | Message):
        return [chat_request(items, options)]
    return [chat_request(items_of("messages", item, MESSAGES), options) for item in items]


def prompt_or_chat_request(prompt: Any, options: ChatOptions) -> Ask:
    """Read one prompt or one conversation."""
    if not isinstance(prompt, str | Mapping):
        prompt = items_of("prompt", prompt, PROMPT)
        if prompt and isinstance(prompt[0], Mapping | Message):
            return chat_request(prompt, options)
    for name in options.given:
        raise InvalidRequest(f"{name} needs a conversation: this prompt goes to the model without a template.", name)
    return completion_request(prompt)


def _request(prompt: str | tuple[int, ...]) -> CompletionRequest:
    return CompletionRequest("", (prompt,))


def _of_mapping(given: Mapping[Any, Any]) -> Any:
    """The text or the token ids of one of vLLM's dictionaries. Other entries request what is not supported."""
    found = {name: value for name, value in given.items() if value is not None}
    known = [name for name in ("prompt_token_ids", "prompt") if name in found]
    if not known:
        raise refusal("prompt", given, PROMPT)
    unknown = found.keys() - {"prompt", "prompt_token_ids"}
    if unknown:
        name = min(map(str, unknown))
        raise InvalidRequest(f"A prompt has {name[:64]!r}; it may have prompt or prompt_token_ids.", field="prompt")
    return found[known[0]]
