"""A model of a running server, used like one in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from quire.cli.model.answer_options import AnswerOptions
from quire.cli.model.chat_model import AnswerPart, Messages
from quire.cli.model.server_client import ServerClient
from quire.types.answer import Usage
from quire.types.request import ConstraintKind, SamplingParams
from quire.types.sampling_values import MAX_INT
from quire.types.step import DraftCount

SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "max_tokens", "min_tokens", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "speculate"),
)


@dataclass(slots=True)
class ServedModel:
    """A `ChatModel` over HTTP."""

    server: ServerClient
    name: str
    keep_alive: float | None = None  # seconds; negative: forever
    template: Any = None
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # This request loads the model. Its keep_alive also holds for the requests that follow.
        keep = {"keep_alive": self.keep_alive} if self.keep_alive else {}
        self.server.post("/api/generate", {"model": self.name, "stream": False, **keep})
        details = self.server.post("/api/show", {"model": self.name})
        self.sampling_defaults = details.get("sampling_defaults", {})
        self.template = SimpleNamespace(is_default=not details["template"], sources={"default": details["template"]})

    def stream(
        self, prompt: str | Messages, sampling: SamplingParams, options: AnswerOptions
    ) -> Generator[AnswerPart, None, None]:
        """Yield the answer in parts. Closing the generator cancels the request."""
        values = {name: getattr(sampling, name) for name in SAMPLING_FIELDS if name in sampling.given}
        body: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        body |= {"model": self.name, "stream": True, "stream_options": {"include_usage": True}}
        body |= _option_fields(options)
        if isinstance(prompt, str):
            path = "/v1/completions"
            body["prompt"] = prompt
            if sampling.max_tokens is None:
                body["max_tokens"] = MAX_INT  # without it, /v1/completions stops after 16 tokens
        else:
            path = "/v1/chat/completions"
            body["messages"] = prompt
        start, first = time.monotonic(), None
        for event in self.server.events(path, body):
            for choice in event["choices"]:
                first = first or time.monotonic()
                yield _answer_part(choice)
            if event.get("usage"):
                yield AnswerPart("", "", _usage(event["usage"], start, first))

    def close(self) -> None:
        """Close the connection; unload the model first if keep_alive is 0."""
        try:
            if self.keep_alive == 0:
                self.server.post("/api/generate", {"model": self.name, "keep_alive": 0, "stream": False})
        finally:
            self.server.close()


def _option_fields(options: AnswerOptions) -> dict[str, Any]:
    """Return the request fields for the answer's format and for thinking."""
    fields: dict[str, Any] = {}
    if options.constraint is not None and options.constraint.kind is ConstraintKind.JSON:
        fields["response_format"] = {"type": "json_object"}
    elif options.constraint is not None:
        schema = {"name": "answer", "schema": json.loads(options.constraint.text)}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if options.template_variables:
        fields["chat_template_kwargs"] = options.template_variables
    return fields


def _answer_part(choice: Any) -> AnswerPart:
    delta = choice.get("delta")
    if delta is None:
        return AnswerPart(choice["text"] or "")
    return AnswerPart(delta.get("content") or "", delta.get("reasoning_content") or "")


def _usage(usage: Any, start: float, first: float | None) -> Usage:
    now = time.monotonic()
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    drafts = (usage.get("completion_tokens_details") or {}).get("drafts", {})
    return Usage(
        usage["prompt_tokens"],
        cached,
        usage["completion_tokens"],
        (first or now) - start,
        now - start,
        drafts=tuple(DraftCount(name, count["drafted"], count["accepted"]) for name, count in drafts.items()),
    )
