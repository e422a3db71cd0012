"""A request to the engine, with text already encoded as tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar

from quire.types.errors import InvalidRequest
from quire.types.kinds import RequestKind
from quire.types.sampling_values import (
    AUTO,
    MAX_INT,
    biases,
    number,
    refusal,
    seed_number,
    speculation,
    strings,
    token_id_lists,
    token_ids,
    truth,
    whole,
)
from quire.types.source import EncoderInput
from quire.types.speech_rules import SpeechRules
from quire.types.transfer import PrefixSource
from quire.types.vllm_words import SAMPLING, translate

T = TypeVar("T")
_set = object.__setattr__

_COUNTS = (  # name, minimum, description of the allowed values
    ("max_tokens", 1, "at least 1"),
    ("min_tokens", 0, "from 0 to max_tokens"),
    ("n", 1, "at least 1"),
    ("top_k", 0, "0 (off) or a positive number"),
    ("logprobs", 0, "0 or more"),
    ("prompt_logprobs", 0, "0 or more"),
)
_ABOVE_0 = math.ulp(0.0)
MAX_TEMPERATURE = 1e6  # above it the distribution is flat in 32-bit floats; all other parameters have smaller maxima
_NUMBERS = (  # name, minimum, maximum, description of the allowed values
    ("temperature", 0.0, math.inf, "0 (greedy) or a positive number"),
    ("top_p", _ABOVE_0, 1.0, "above 0 and at most 1"),
    ("min_p", 0.0, 1.0, "from 0 to 1"),
    ("typical_p", _ABOVE_0, 1.0, "above 0 and at most 1"),
    ("repetition_penalty", 1e-6, 1e6, "from 1e-6 to 1e6"),
    ("presence_penalty", -2.0, 2.0, "from -2 to 2"),
    ("frequency_penalty", -2.0, 2.0, "from -2 to 2"),
)


class FinishReason(StrEnum):
    """Why a sample ended without an error."""

    STOP = "stop"  # an end-of-text or stop token, or a stop string
    TOOL_CALLS = "tool_calls"  # the answer is tool calls; of answers only: to the engine it is a stop
    LENGTH = "length"  # max_tokens or the context limit
    CANCELLED = "cancelled"  # the client disconnected or cancelled it


class _Given:
    """A slot for the names of the parameters that were given. Not a dataclass field: it is no part of equality."""

    __slots__ = ("_given",)
    _given: frozenset[str]


def _records_given(kind: type[T]) -> type[T]:
    """Wrap a constructor so that it records which parameters were given, and accepts vLLM's names for them."""
    declared = {each.name: each.default for each in fields(kind)}  # type: ignore[arg-type]
    make = kind.__init__

    @wraps(make)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        if len(values) > len(declared):
            raise InvalidRequest(
                f"SamplingParams has {len(declared)} parameters; {len(values)} positional values were given."
            )
        given = dict(zip(declared, values, strict=False))
        if repeated := given.keys() & named.keys():
            raise InvalidRequest(f"{min(repeated)} was given twice.", field=min(repeated))
        named = translate(SAMPLING, named)
        if unknown := named.keys() - declared.keys():
            raise InvalidRequest(f"SamplingParams has no parameter {min(unknown)!r}.", field=min(unknown))
        # None means "not given", except for parameters whose default is None: there it is a value.
        given = {name: value for name, value in (given | named).items() if value is not None or declared[name] is None}
        object.__setattr__(self, "_given", frozenset(given))
        make(self, **given)

    setattr(kind, "__init__", __init__)  # noqa: B010  # mypy forbids assigning to a method
    return kind


@_records_given
@dataclass(frozen=True, slots=True)
class SamplingParams(_Given):
    """How tokens are sampled, and when to stop. A parameter that is not given has the model's default.

    The defaults below apply where the model has none: they sample from its distribution. `dataclasses.replace` counts
    every parameter as given; `updated` only those that it changes.
    """

    max_tokens: int | None = None  # None: until the context is full
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[Sequence[int]] = ()
    stop: Sequence[str] = ()  # one string is one stop string; matched in the text, not in the engine
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None  # alternatives per output token; 0: only the sampled token's
    prompt_logprobs: int | None = None
    speculate: str = AUTO  # or OFF: no drafts, which change the speed and never the text

    def __post_init__(self) -> None:
        """Convert every value to its normal form; raise for impossible ones, with the field and the allowed values."""
        for name, minimum, takes in _COUNTS:
            value = getattr(self, name)
            if value is not None:
                _set(self, name, whole(name, value, minimum, MAX_INT, takes))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refusal("min_tokens", self.min_tokens, "from 0 to max_tokens")
        for name, lowest, highest, takes in _NUMBERS:
            real = number(name, getattr(self, name), takes)
            if not lowest <= real <= highest:
                raise refusal(name, real, takes)
            _set(self, name, min(real, MAX_TEMPERATURE))
        if self.seed is not None:
            _set(self, "seed", seed_number("seed", self.seed))
        _set(self, "ignore_eos", truth("ignore_eos", self.ignore_eos))
        _set(self, "speculate", speculation("speculate", self.speculate))
        _set(self, "logit_bias", biases("logit_bias", self.logit_bias))
        _set(self, "stop", strings("stop", self.stop))
        _set(self, "stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        _set(self, "bad_words", token_id_lists("bad_words", self.bad_words))
        if self.allowed_token_ids is not None:
            _set(self, "allowed_token_ids", token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise refusal("allowed_token_ids", (), "at least one token id")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the given parameters, so that a copy has the same `given`."""
        return _sampling_params, ({name: getattr(self, name) for name in self.given},)

    @property
    def given(self) -> frozenset[str]:
        """The names of the parameters that were given. After transport over a socket: all names."""
        return self._given if hasattr(self, "_given") else frozenset(each.name for each in fields(self))

    def updated(self, **changes: Any) -> SamplingParams:
        """Return a copy with these parameters given too."""
        return SamplingParams(**({name: getattr(self, name) for name in self.given} | changes))

    @property
    def is_greedy(self) -> bool:
        """Is the most likely token always chosen?"""
        return self.temperature == 0.0 or self.top_k == 1


def _sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(**given)


class ConstraintKind(StrEnum):
    """The languages of constraints."""

    JSON = "json_object"  # any JSON object
    SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"  # with llguidance's additions, such as %json
    EBNF = "ebnf"  # GBNF, as llama.cpp and xgrammar write it


@dataclass(frozen=True, slots=True)
class Constraint:
    """A form that the output must have. Equal constraints are compiled once."""

    kind: ConstraintKind
    text: str = ""  # the schema as JSON, the regular expression, the grammar
    choices: Sequence[str] = ()  # one string is one choice
    strict: bool = False  # of a schema: its objects are closed, whatever the setting `open_objects`

    def __post_init__(self) -> None:
        if self.kind not in list(ConstraintKind):
            raise refusal("constraint", self.kind, f"of a kind among {', '.join(ConstraintKind)}")
        if not isinstance(self.text, str):
            raise refusal("constraint", self.text, "text; a JSON schema is given as json.dumps(schema)")
        _set(self, "kind", ConstraintKind(self.kind))
        _set(self, "choices", strings("choices", self.choices))
        if self.kind is ConstraintKind.CHOICE and not self.choices:
            raise InvalidRequest("A choice has no choices: give at least one.", field="constraint")
        if not self.text and self.kind in (ConstraintKind.SCHEMA, ConstraintKind.LARK, ConstraintKind.EBNF):
            raise InvalidRequest(f"A constraint of the kind {self.kind} has no text.", field="constraint")

    @property
    def num_bytes(self) -> int:
        """Its size in bytes, for limits."""
        return sum(len(text.encode(errors="replace")) for text in (self.text, *self.choices))


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The owner of cached prefixes. Blocks are shared only between requests with equal keys.

    The salt separates tenants: without it, the time to first token would reveal another tenant's prompts.
    """

    model: str = ""
    adapter: str = ""
    salt: str = ""
    source: str = ""  # digest of the input of an encoder: what the decoder computes depends on it


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep the blocks of tokens [start, end) longer than others: a higher rank is evicted later.

    With a `ttl` (seconds, renewed by every hit) the pin expires, and its blocks are then evicted first.
    """

    start: int
    end: int
    rank: int = 50
    ttl: float | None = None

    MAX_RANK = 100

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InvalidRequest(f"A pin covers tokens [{self.start}, {self.end}): the range is empty.", field="pins")
        if not 1 <= self.rank <= self.MAX_RANK:
            raise InvalidRequest(f"A pin's rank is {self.rank}; it must be from 1 to {self.MAX_RANK}.", field="pins")
        if self.ttl is not None and not 0 < self.ttl < float("inf"):
            raise InvalidRequest(f"A pin's ttl is {self.ttl}; it must be a positive number of seconds.", field="pins")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request to the engine."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # lower is served first
    key: str = ""  # the API key whose fair share this request uses
    weight: float = 1.0  # of that key's share
    deadline: float | None = None  # on the engine's clock
    cache: CacheKey = field(default_factory=CacheKey)
    session: str | None = None  # holds the last context between turns
    pins: tuple[Pin, ...] = ()
    constraint: Constraint | None = None
    predicted: tuple[int, ...] = ()  # tokens that much of the output is expected to be: drafts
    source: EncoderInput | None = None  # the input of the model's encoder; None: the model has none
    speech: SpeechRules | None = None  # by which its tokens are sampled; None: any token may follow
    kind: RequestKind = RequestKind.GENERATE  # of other kinds, nothing is sampled: the answer is one vector
    second_at: int = 0  # where the second of two texts begins, for models that mark its tokens; 0: there is one text
    prefix_source: PrefixSource | None = None  # another engine, from which its first blocks may be fetched
    # For a request whose engine died: the output of each sample so far; None: that sample is finished.
    resumed: tuple[tuple[int, ...] | None, ...] = ()

    @property
    def is_constrained(self) -> bool:
        """Does a grammar constrain the output? Then a step is planned only after the previous token is known."""
        return self.constraint is not None

    @property
    def is_pooled(self) -> bool:
        """Is the answer a vector?"""
        return self.kind is not RequestKind.GENERATE

    def sample_id(self, sample: int) -> str:
        """Return the id of a sample in plans."""
        return self.id if self.sampling.n == 1 else f"{self.id}#{sample}"

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidRequest("The prompt is empty: send at least one token.", field="prompt")
        try:
            array("I", self.prompt)  # five times as fast as min and max
        except (OverflowError, TypeError):
            public = "A token id in the prompt is not a whole number from 0 to 4294967295."
            raise InvalidRequest(public, field="prompt") from None
        if self.source is not None and self.cache.source != self.source.digest:
            _set(self, "cache", replace(self.cache, source=self.source.digest))
        if not 0 < self.weight < float("inf"):
            raise InvalidRequest(f"The weight is {self.weight}; it must be a positive number.", field="weight")
        if self.resumed and (len(self.resumed) != self.sampling.n or not self.unfinished_samples):
            raise InvalidRequest(
                "`resumed` must have an output for each sample, and at least one that is not None.", field="resumed"
            )

    @property
    def unfinished_samples(self) -> list[int]:
        """The samples to compute."""
        return [s for s in range(self.sampling.n) if not self.resumed or self.resumed[s] is not None]

    def resumed_output(self, sample: int) -> tuple[int, ...]:
        """Return the output that a resumed sample had before."""
        return (self.resumed[sample] or ()) if self.resumed else ()
