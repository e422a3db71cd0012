"""Writes completions: the older endpoint, whose answers are text and may begin with the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from quire.serve.dialects.contract import Reply
from quire.serve.dialects.openai import replies
from quire.serve.dialects.openai.replies import encode
from quire.types.answer import Usage
from quire.types.chat import Answered, Choice, Event, Finish, PromptEcho, ReasoningDelta, ScoredToken, TextDelta
from quire.types.errors import QuireError


class CompletionForm(NamedTuple):
    """What this answer contains."""

    usage: bool = False  # in a chunk of its own, at the end of a stream
    logprobs: bool = False
    token_ids: bool = False
    prompt_logprobs: bool = False
    echo: bool = False
    answer: bool = True  # False: of the answer nothing but the echo


class CompletionWriter:
    """Writes one answer. Keeps the length of each choice's text: logprobs have the offset of each token."""

    content_type = replies.EVENT_STREAM

    def __init__(self, form: CompletionForm, reply: Reply) -> None:
        self._form = form
        self._is_plain = not form.logprobs and not form.token_ids and form.answer
        created = int(reply.created)
        self._facts = {"id": f"cmpl-{reply.id}", "object": "text_completion", "created": created, "model": reply.model}
        self._facts["system_fingerprint"] = reply.fingerprint
        self._head = b"data: " + encode(self._facts)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if form.usage else b"]}\n\n"
        self._text_head = self._head + b'{"index":'
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._offsets: dict[int, int] = {}

    def open(self, usage: Usage) -> bytes:
        """Nothing comes before the text."""
        return b""

    def write(self, events: Sequence[Event]) -> bytes:
        """One chunk for each event."""
        return self._event(events[0]) if len(events) == 1 else b"".join(map(self._event, events))

    def close(self, usage: Usage) -> bytes:
        """The usage if it was requested, and the end."""
        if not self._form.usage:
            return b"data: [DONE]\n\n"
        return b"data: %b\n\ndata: [DONE]\n\n" % encode({**self._facts, "choices": (), "usage": self._usage(usage)})

    def fail(self, error: QuireError) -> bytes:
        """Without [DONE], so that a client does not take this for a complete answer."""
        return b"data: %b\n\n" % replies.error_body(error)

    def whole(self, answered: Answered) -> bytes:
        """The answer as one object."""
        choices = [self._whole_choice(choice) for choice in answered.choices]
        return encode({**self._facts, "choices": choices, "usage": self._usage(answered.usage)})

    def _event(self, event: Event) -> bytes:
        if type(event) is TextDelta and self._is_plain:
            choice, text, _, _ = event
            if not text:
                return b""
            return b'%b%d,"text":%b%b' % (self._text_head, choice, encode(text), self._text_tail)
        match event:
            case TextDelta(choice, text, tokens, scored) | ReasoningDelta(choice, text, tokens, scored):
                return self._chunk(choice, text, self._scored(choice, tokens, scored)) if self._form.answer else b""
            case Finish(choice, ending, stop):
                return self._chunk(choice, "", replies.finish_fields(ending, stop))
            case PromptEcho(choice, text, _, scored) if self._form.echo:
                return self._chunk(choice, text, {**self._scored(choice, (), scored), **self._prompt(event)})
            case PromptEcho(choice) if self._form.token_ids:
                return self._chunk(choice, "", self._prompt(event))
        return b""

    def _chunk(self, choice: int, text: str, more: Mapping[str, Any]) -> bytes:
        written = {"index": choice, "text": text, "logprobs": None, "finish_reason": None, **more}
        return b"%b%b%b" % (self._head, encode(written), self._tail)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text, tokens, scored = (choice.text, choice.tokens, choice.logprobs) if self._form.answer else ("", (), ())
        more: dict[str, Any] = {}
        if choice.prompt is not None:
            more = self._prompt(choice.prompt)
            if self._form.echo:
                text, scored = choice.prompt.text + text, choice.prompt.logprobs + scored
        ended = {"logprobs": None, **replies.finish_fields(choice.ending, choice.stop)}
        more |= self._scored(choice.index, tokens, scored)
        return {"index": choice.index, "text": text, **ended, **more}

    def _scored(self, choice: int, tokens: Sequence[int], scored: Sequence[ScoredToken]) -> dict[str, Any]:
        """The requested logprobs and token ids of this part."""
        more: dict[str, Any] = {}
        if self._form.logprobs:
            start = self._offsets.get(choice, 0)
            more["logprobs"] = _legacy(scored, start)
            self._offsets[choice] = start + sum(len(token.text) for token in scored)
        if self._form.token_ids:
            more["token_ids"] = tokens
        return more

    def _prompt(self, prompt: PromptEcho) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self._form.token_ids:
            more["prompt_token_ids"] = prompt.tokens
        if self._form.prompt_logprobs:
            more["prompt_logprobs"] = replies.prompt_scores(prompt)
        return more

    def _usage(self, usage: Usage) -> dict[str, Any]:
        """Leave out the answer if only the prompt was requested: the engine always makes one token."""
        return replies.usage_fields(usage if self._form.answer else replace(usage, output=0, forced=0, reasoning=0))


def _legacy(scored: Sequence[ScoredToken], start: int) -> dict[str, Any]:
    """Four lists of equal length. The chosen token is added to the likeliest."""
    offsets = []
    for token in scored:
        offsets.append(start)
        start += len(token.text)
    return {
        "tokens": [token.text for token in scored],
        "token_logprobs": [None if token.logprob is None else replies.finite(token.logprob) for token in scored],
        "top_logprobs": [None if token.logprob is None else _tops(token) for token in scored],
        "text_offset": offsets,
    }


def _tops(token: ScoredToken) -> dict[str, float]:
    """Logprobs by text. Of two tokens with the same text, the likelier one is used."""
    tops: dict[str, float] = {}
    for other in (*token.top, token):
        tops.setdefault(other.text, replies.finite(other.logprob))
    return tops
