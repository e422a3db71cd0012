"""What a user asks of the engine, after text has become tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar

from quire.types.errors import InvalidRequest
from quire.types.sampling_values import (
    MAX_INT,
    biases,
    number,
    refusal,
    seed_number,
    strings,
    token_ids,
    truth,
    whole,
    words,
)
from quire.types.vllm_words import SAMPLING, translated

T = TypeVar("T")
_set = object.__setattr__

_COUNTS = (  # name, least, what it takes
    ("max_tokens", 1, "at least 1"),
    ("min_tokens", 0, "from 0 to max_tokens"),
    ("n", 1, "at least 1"),
    ("top_k", 0, "0 (off) or a positive number"),
    ("logprobs", 0, "0 or more"),
    ("prompt_logprobs", 0, "0 or more"),
)
_ABOVE_0 = math.ulp(0.0)
MAX_TEMPERATURE = 1e6  # above it the distribution is flat in 32-bit floats; no other parameter can be so large
_NUMBERS = (  # name, least, most, what it takes
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
    CANCELLED = "cancelled"  # the client went away or asked for it


class _Given:
    """Holds the names of the parameters that a user gave, apart from those that the request consists of."""

    __slots__ = ("_given",)
    _given: frozenset[str]


def _remembers_given(kind: type[T]) -> type[T]:
    """Have a constructor note which of its parameters were given, and take vLLM's words for them."""
    declared = {each.name: each.default for each in fields(kind)}  # type: ignore[arg-type]
    make = kind.__init__

    @wraps(make)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        if len(values) > len(declared):
            raise InvalidRequest(f"SamplingParams has {len(declared)} parameters; {len(values)} were given.")
        given = dict(zip(declared, values, strict=False))
        if twice := given.keys() & named.keys():
            raise InvalidRequest(f"{min(twice)} was given twice.", field=min(twice))
        named = translated(SAMPLING, named)
        if strange := named.keys() - declared.keys():
            raise InvalidRequest(f"SamplingParams has no parameter {min(strange)!r}.", field=min(strange))
        # None means "not given", but for parameters whose default it is: there it is a value.
        given = {name: value for name, value in (given | named).items() if value is not None or declared[name] is None}
        object.__setattr__(self, "_given", frozenset(given))
        make(self, **given)

    setattr(kind, "__init__", __init__)  # noqa: B010  # mypy forbids assigning to a method
    return kind


@_remembers_given
@dataclass(frozen=True, slots=True)
class SamplingParams(_Given):
    """How the next token is chosen, and when to stop. A parameter that is not given is the model's own default.

    The defaults below hold where the model has none: they sample from its distribution. `dataclasses.replace` gives
    every parameter; `updated` changes some and leaves the others as they were given or not.
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
    stop: Sequence[str] = ()  # one string is one stop string; found in the text, not in the engine
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None  # alternatives per output token; 0: only the chosen token's
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        """Bring every value into its one form; refuse what no sampler can do, naming the field and what it takes."""
        for name, low, takes in _COUNTS:
            value = getattr(self, name)
            if value is not None:
                _set(self, name, whole(name, value, low, MAX_INT, takes))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refusal("min_tokens", self.min_tokens, "from 0 to max_tokens")
        for name, least, most, takes in _NUMBERS:
            real = number(name, getattr(self, name), takes)
            if not least <= real <= most:
                raise refusal(name, real, takes)
            _set(self, name, min(real, MAX_TEMPERATURE))
        if self.seed is not None:
            _set(self, "seed", seed_number("seed", self.seed))
        _set(self, "ignore_eos", truth("ignore_eos", self.ignore_eos))
        _set(self, "logit_bias", biases("logit_bias", self.logit_bias))
        _set(self, "stop", strings("stop", self.stop))
        _set(self, "stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        _set(self, "bad_words", words("bad_words", self.bad_words))
        if self.allowed_token_ids is not None:
            _set(self, "allowed_token_ids", token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise refusal("allowed_token_ids", (), "at least one token id")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only what was given, so that a copy has the same gaps."""
        return _made, ({name: getattr(self, name) for name in self.given},)

    @property
    def given(self) -> frozenset[str]:
        """The names of the parameters that were given. Those that came over a socket are complete."""
        return self._given if hasattr(self, "_given") else frozenset(each.name for each in fields(self))

    def updated(self, **changes: Any) -> SamplingParams:
        """A copy in which these were given too; all others stay as they are."""
        return SamplingParams(**({name: getattr(self, name) for name in self.given} | changes))

    @property
    def is_greedy(self) -> bool:
        """Is the likeliest token chosen, and nothing left to chance?"""
        return self.temperature == 0.0 or self.top_k == 1


def _made(given: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(**given)


class ConstraintKind(StrEnum):
    """The languages in which a form can be prescribed."""

    JSON = "json_object"  # any JSON object
    SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"  # with llguidance's additions, such as %json
    EBNF = "ebnf"  # GBNF, as llama.cpp and xgrammar write it


@dataclass(frozen=True, slots=True)
class Constraint:
    """A form that the output must have. Equal ones are compiled once."""

    kind: ConstraintKind
    text: str = ""  # the schema as JSON, the regular expression, the grammar
    choices: Sequence[str] = ()  # one string is one choice
    strict: bool = False  # of a schema: its objects are closed whatever the setting `open_objects` says

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
        """Its size, as limits count it."""
        return sum(len(text.encode(errors="replace")) for text in (self.text, *self.choices))


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Whose prefixes these are. Blocks are shared only between requests with equal keys.

    The salt separates tenants: without it, the time to the first token would tell one what another has asked.
    """

    model: str = ""
    adapter: str = ""
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep the blocks of tokens [start, end) longer than others: a higher rank is evicted later.

    With a `ttl` (seconds, renewed by every hit) the pin ends by itself, and its blocks are then the first to go.
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
    """One request as the engine takes it."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # lower is served first
    key: str = ""  # the API key whose fair share this request uses
    weight: float = 1.0  # of that key's share
    deadline: float | None = None  # on the engine's clock
    cache: CacheKey = field(default_factory=CacheKey)
    session: str | None = None  # its last context stays held between turns
    pins: tuple[Pin, ...] = ()
    constraint: Constraint | None = None
    # Of a request that an engine had accepted before it died: each sample's output so far; None: that sample is over.
    resumed: tuple[tuple[int, ...] | None, ...] = ()

    @property
    def constrained(self) -> bool:
        """Does a grammar follow the output? Then no step is planned before the last one's token is known."""
        return self.constraint is not None

    def sample_id(self, sample: int) -> str:
        """What one of its samples is called in plans."""
        return self.id if self.sampling.n == 1 else f"{self.id}#{sample}"

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidRequest("The prompt is empty: send at least one token.", field="prompt")
        try:
            array("I", self.prompt)  # takes a fifth of the time of min and max
        except (OverflowError, TypeError):
            public = "A token id in the prompt is no whole number, negative or too large."
            raise InvalidRequest(public, field="prompt") from None
        if not 0 < self.weight < float("inf"):
            raise InvalidRequest(f"The weight is {self.weight}; it must be a positive number.", field="weight")
        if self.resumed and (len(self.resumed) != self.sampling.n or not self.open_samples):
            raise InvalidRequest(
                "What is resumed has an output for each sample, and one that goes on.", field="resumed"
            )

    @property
    def open_samples(self) -> list[int]:
        """The samples that are to be computed."""
        return [s for s in range(self.sampling.n) if not self.resumed or self.resumed[s] is not None]

    def output_before(self, sample: int) -> tuple[int, ...]:
        """What a sample had said before it was resumed."""
        return (self.resumed[sample] or ()) if self.resumed else ()
