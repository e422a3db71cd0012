"""What a user asks of the engine, after text has become tokens."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quire.types.errors import InvalidRequest


class FinishReason(StrEnum):
    """Why a request ended well."""

    STOP = "stop"  # an end-of-text or stop token, or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    CANCELLED = "cancelled"  # the client went away or asked for it


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to stop. The defaults sample from the model's own distribution."""

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
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop: tuple[str, ...] = ()  # strings; found in the text, not in the engine
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None  # alternatives per output token; 0: only the chosen token's
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no sampler can do, naming the field and what it takes."""
        for name, ok, takes in (
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            ("min_tokens", 0 <= self.min_tokens <= (self.max_tokens or self.min_tokens), "from 0 to max_tokens"),
            ("n", self.n >= 1, "at least 1"),
            ("temperature", 0.0 <= self.temperature < float("inf"), "0 (greedy) or a positive number"),
            ("top_k", self.top_k >= 0, "0 (off) or a positive number"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "from 0 to 1"),
            ("typical_p", 0.0 < self.typical_p <= 1.0, "above 0 and at most 1"),
            ("repetition_penalty", 1e-6 <= self.repetition_penalty <= 1e6, "from 1e-6 to 1e6"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "from -2 to 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "from -2 to 2"),
            ("allowed_token_ids", self.allowed_token_ids != (), "at least one token id"),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "0 or more"),
            ("prompt_logprobs", self.prompt_logprobs is None or self.prompt_logprobs >= 0, "0 or more"),
        ):
            if not ok:
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; it must be {takes}.", field=name)

    @property
    def is_greedy(self) -> bool:
        """Is the likeliest token chosen, and nothing left to chance?"""
        return self.temperature == 0.0 or self.top_k == 1


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
    choices: tuple[str, ...] = ()
    strict: bool = False  # of a schema: its objects are closed whatever the setting `open_objects` says

    def __post_init__(self) -> None:
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
        except OverflowError:
            raise InvalidRequest("A token id in the prompt is negative or too large.", field="prompt") from None
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
