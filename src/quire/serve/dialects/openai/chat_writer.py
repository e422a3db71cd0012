"""Writes chat completions: the chunks of a stream, or the whole.

Law: a piece of text costs one JSON string and one formatting of bytes. Parts that are the same in every chunk are
encoded when the writer is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quire.serve.dialects.contract import Reply
from quire.serve.dialects.openai import replies
from quire.serve.dialects.openai.replies import encode
from quire.types.answer import Usage
from quire.types.chat import Answered, Choice, Event, Finish, PromptEcho, ReasoningDelta, TextDelta, ToolDelta
from quire.types.errors import QuireError

_NOTHING: Mapping[str, Any] = {}


class ChatForm(NamedTuple):
    """What this answer contains."""

    n: int = 1
    usage: bool = False  # in a chunk of its own, at the end of a stream
    logprobs: bool = False
    token_ids: bool = False
    prompt_logprobs: bool = False


class ChatWriter:
    """Writes one answer. It has no state."""

    content_type = replies.EVENT_STREAM

    def __init__(self, form: ChatForm, reply: Reply) -> None:
        self._form = form
        self._is_plain = not form.logprobs and not form.token_ids
        self._facts = {"id": f"chatcmpl-{reply.id}", "created": int(reply.created), "model": reply.model}
        self._facts["system_fingerprint"] = reply.fingerprint
        self._chunk = {**self._facts, "object": "chat.completion.chunk"}
        self._head = b"data: " + encode(self._chunk)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if form.usage else b"]}\n\n"
        self._text_head = self._head + b'{"index":'
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def open(self, usage: Usage) -> bytes:
        """Every choice begins with its role."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._choice_chunk(choice, delta) for choice in range(self._form.n))

    def write(self, events: Sequence[Event]) -> bytes:
        """One chunk for each event."""
        return self._event(events[0]) if len(events) == 1 else b"".join(map(self._event, events))

    def close(self, usage: Usage) -> bytes:
        """The usage if it was requested, and the end."""
        if not self._form.usage:
            return b"data: [DONE]\n\n"
        chunk = encode({**self._chunk, "choices": (), "usage": replies.usage_fields(usage)})
        return b"data: %b\n\ndata: [DONE]\n\n" % chunk

    def fail(self, error: QuireError) -> bytes:
        """Without [DONE], so that a client does not take this for a complete answer."""
        return b"data: %b\n\n" % replies.error_body(error)

    def whole(self, answered: Answered) -> bytes:
        """The answer as one object."""
        choices = [self._whole_choice(choice) for choice in answered.choices]
        facts = {**self._facts, "object": "chat.completion", "choices": choices}
        return encode(
            {**facts, "usage": replies.usage_fields(answered.usage), **self._prompt(answered.choices[0].prompt)}
        )

    def _event(self, event: Event) -> bytes:
        if type(event) is TextDelta and self._is_plain:
            choice, text, _, _ = event
            if not text:
                return b""
            return b'%b%d,"delta":{"content":%b%b' % (self._text_head, choice, encode(text), self._text_tail)
        match event:
            case ReasoningDelta(choice, text) if self._is_plain:
                if not text:
                    return b""
                twice = b'"reasoning_content":%b,"reasoning":%b' % (said := encode(text), said)
                return b'%b%d,"delta":{%b%b' % (self._text_head, choice, twice, self._text_tail)
            case TextDelta(choice, text):
                return self._choice_chunk(choice, {"content": text}, self._scored(event))
            case ReasoningDelta(choice, text):
                return self._choice_chunk(choice, _thought(text), self._scored(event))
            case ToolDelta(choice, _, arguments, None) if self._is_plain and not arguments:
                return b""  # the tokens of a mark
            case ToolDelta(choice):
                return self._choice_chunk(choice, {"tool_calls": (_call_delta(event),)}, self._scored(event))
            case Finish(choice, ending, stop):
                return self._choice_chunk(choice, {}, replies.finish_fields(ending, stop))
            case PromptEcho(0) if self._form.token_ids:
                chunk = {**self._chunk, "choices": (_choice(0, {}),), **self._prompt(event)}
                return b"data: %b\n\n" % encode(chunk)
        return b""

    def _choice_chunk(self, choice: int, delta: Mapping[str, Any], more: Mapping[str, Any] = _NOTHING) -> bytes:
        return b"%b%b%b" % (self._head, encode({**_choice(choice, delta), **more}), self._tail)

    def _scored(self, part: TextDelta | ReasoningDelta | ToolDelta | Choice) -> dict[str, Any]:
        """The requested logprobs and token ids of this part."""
        more: dict[str, Any] = {}
        if self._form.logprobs:
            more["logprobs"] = {"content": replies.scores(part.logprobs), "refusal": None}
        if self._form.token_ids:
            more["token_ids"] = part.tokens
        return more

    def _prompt(self, prompt: PromptEcho | None) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if prompt is not None and self._form.token_ids:
            more["prompt_token_ids"] = prompt.tokens
        if prompt is not None and self._form.prompt_logprobs:
            more["prompt_logprobs"] = replies.prompt_scores(prompt)
        return more

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        calls = [_call(call.id, call.name, call.arguments) for call in choice.tool_calls]
        text = None if calls and not choice.text else choice.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": ()}
        message |= _thought(choice.reasoning) if choice.reasoning else {}
        message |= {"tool_calls": calls} if calls else {}
        ended = {"logprobs": None, **replies.finish_fields(choice.ending, choice.stop)}
        return {"index": choice.index, "message": message, **ended, **self._scored(choice)}


def _choice(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _thought(text: str) -> dict[str, str]:
    """A thought, under the names of SGLang and llama.cpp, and of vLLM."""
    return {"reasoning_content": text, "reasoning": text}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_delta(event: ToolDelta) -> dict[str, Any]:
    if event.name is None:
        return {"index": event.call, "function": {"arguments": event.arguments}}
    return {"index": event.call, **_call(event.id or "", event.name, event.arguments)}
