"""Reads the sampling parameters of a request."""

from __future__ import annotations

from typing import Any

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.openai.fields import MAX_BIAS, Biases, OpenAIFields
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

ANY_SEED = -1  # as vLLM and llama.cpp have it
_SAME = (
    *("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "min_tokens", "ignore_eos", "seed", "prompt_logprobs", "speculate"),
)
_SAID = {name: name for name in (*_SAME, "top_k", "stop", "max_tokens")} | {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}


def given_parameters(given: OpenAIFields) -> frozenset[str]:
    """The names of the parameters that a request gives."""
    return frozenset(ours for theirs, ours in _SAID.items() if getattr(given, theirs, None) is not None)


def read_sampling(given: OpenAIFields, limits: RequestLimits, **own: Any) -> SamplingParams:
    """The sampling parameters. `own` are those that each endpoint spells differently; None: the default."""
    bias, banned = _biases(given.logit_bias)
    chosen = {name: getattr(given, name) for name in _SAME} | {
        "logit_bias": bias,
        "top_k": None if given.top_k is None else max(given.top_k, 0),
        "stop": _stops(given.stop, limits),
        "stop_token_ids": None if given.stop_token_ids is None else tuple(given.stop_token_ids),
        "allowed_token_ids": None if given.allowed_token_ids is None else tuple(given.allowed_token_ids),
        "bad_words": _bad_words(given.bad_words) + banned,
    }
    if given.sampling_seed is not None:
        if given.seed not in (None, given.sampling_seed):
            raise InvalidRequest("seed and sampling_seed differ: give one of them.", field="sampling_seed")
        chosen["seed"] = given.sampling_seed
    if chosen["seed"] == ANY_SEED:
        chosen["seed"] = None
    _at_most(given.prompt_logprobs, limits.max_logprobs, "prompt_logprobs")
    return SamplingParams(**{name: value for name, value in (chosen | own).items() if value is not None})


def num_samples(n: int | None, limits: RequestLimits) -> int:
    """The number of answers to each prompt."""
    _at_most(n, limits.max_n, "n")
    return n or 1


def num_logprobs(given: int | None, limits: RequestLimits, field: str) -> int | None:
    """The number of alternatives for each token."""
    _at_most(given, limits.max_logprobs, field)
    return given


def _at_most(given: int | None, limit: int, field: str) -> None:
    if given is not None and given > limit:
        raise InvalidRequest(f"{field} is {given}; this server allows at most {limit}.", field=field)


def _stops(given: str | list[str] | None, limits: RequestLimits) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > limits.max_stops:
        raise InvalidRequest(f"stop has {len(stops)} strings; at most {limits.max_stops} are allowed.", field="stop")
    if not all(0 < len(stop) <= limits.max_stop_chars for stop in stops):
        public = f"A stop string has from 1 to {limits.max_stop_chars} characters."
        raise InvalidRequest(public, field="stop")
    return stops


def _biases(given: Biases | None) -> tuple[dict[int, float] | None, tuple[tuple[int, ...], ...]]:
    """Biases and banned tokens, from OpenAI's object or llama.cpp's list of pairs, where false bans a token."""
    if not isinstance(given, list):
        return given, ()
    bias: dict[int, float] = {}
    banned: list[tuple[int, ...]] = []
    for place, (token, value) in enumerate(given):
        field = f"logit_bias[{place}]"
        if isinstance(token, str):
            public = f"{field} is for a string; give a token id: a text can be written in many tokens."
            raise InvalidRequest(public, field=field)
        if value is False:
            banned.append((token,))
        elif value is True or not -MAX_BIAS <= value <= MAX_BIAS:
            raise InvalidRequest(f"{field}: a bias is false or from -{MAX_BIAS} to {MAX_BIAS}.", field=field)
        else:
            bias[token] = float(value)
    return bias or None, tuple(banned)


def _bad_words(given: list[str | list[int]] | None) -> tuple[tuple[int, ...], ...]:
    words = []
    for place, word in enumerate(given or ()):
        field = f"bad_words[{place}]"
        if isinstance(word, str):
            public = f"{field} is a string; give its token ids as a list: a text can be written in many tokens."
            raise InvalidRequest(public, field=field)
        if not word:
            raise InvalidRequest(f"{field} is empty.", field=field)
        words.append(tuple(word))
    return tuple(words)
