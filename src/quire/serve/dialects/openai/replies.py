"""Parts of answers that OpenAI's endpoints share: usage, finish reasons, log probabilities, errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from quire.serve.dialects.usage import own_counts
from quire.types.answer import Usage
from quire.types.chat import Ending, PromptEcho, ScoredToken
from quire.types.errors import ContextTooLong, QuireError
from quire.types.step import PREDICTION

EVENT_STREAM = "text/event-stream"
LOWEST = -9999.0  # in place of minus infinity, which JSON does not have

# "abort" is vLLM's and SGLang's, not OpenAI's; "stop" would claim that a cancelled answer is complete.
_FINISH_REASONS = {
    Ending.STOP: "stop",
    Ending.STOP_TEXT: "stop",
    Ending.LENGTH: "length",
    Ending.TOOL_CALLS: "tool_calls",
    Ending.CANCELLED: "abort",
}

encode = msgspec.json.Encoder().encode


def usage_fields(usage: Usage) -> dict[str, Any]:
    """OpenAI's counts, and ours."""
    details = {"reasoning_tokens": usage.reasoning} | prediction_counts(usage) | own_counts(usage)
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.kept},
        "completion_tokens_details": details,
    }


def prediction_counts(usage: Usage) -> dict[str, int]:
    """How much of the request's `prediction` became output, and how much was tried and did not."""
    found = next((each for each in usage.drafts if each.drafter == PREDICTION), None)
    if found is None:
        return {}
    rejected = found.num_drafted - found.num_accepted
    return {"accepted_prediction_tokens": found.num_accepted, "rejected_prediction_tokens": rejected}


def finish_fields(ending: Ending, stop: str | int | None) -> dict[str, Any]:
    """The finish reason. `stop_reason` is vLLM's: the stop string or token that was found."""
    return {"finish_reason": _FINISH_REASONS[ending]} | ({} if stop is None else {"stop_reason": stop})


def error_fields(error: QuireError) -> dict[str, Any]:
    """The error object. `context_length_exceeded` is OpenAI's code; the others are our own."""
    return {
        "message": error.public,
        "type": _error_type(error.status),
        "param": getattr(error, "field", None),
        "code": "context_length_exceeded" if isinstance(error, ContextTooLong) else error.code,
    }


def error_body(error: QuireError) -> bytes:
    """Encode an error."""
    return encode({"error": error_fields(error)})


def scored(token: ScoredToken) -> dict[str, Any]:
    """A token of chat completions and responses, without its alternatives."""
    return {"token": token.text, "logprob": finite(token.logprob), "bytes": list(token.bytes)}


def scores(tokens: Iterable[ScoredToken]) -> list[dict[str, Any]]:
    """Tokens with their alternatives."""
    return [{**scored(token), "top_logprobs": [scored(other) for other in token.top]} for token in tokens]


def finite(logprob: float | None) -> float:
    """A number that JSON can hold."""
    return LOWEST if logprob is None else max(logprob, LOWEST)


def prompt_scores(prompt: PromptEcho) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token the likeliest ones and itself, by id; nothing for the first."""
    return [None if token.logprob is None else _ranked(token) for token in prompt.logprobs]


def _ranked(token: ScoredToken) -> dict[str, Any]:
    ranked = {str(other.id): _rank(other, place) for place, other in enumerate(token.top, 1)}
    return {str(token.id): _rank(token, None), **ranked}


def _rank(token: ScoredToken, rank: int | None) -> dict[str, Any]:
    return {"logprob": finite(token.logprob), "rank": rank, "decoded_token": token.text}


def _error_type(status: int) -> str:
    named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return named.get(status, "invalid_request_error" if status < 500 else "server_error")
