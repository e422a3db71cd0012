"""Loads for speculative decoding, from answers that repeat their prompt to answers that cannot be predicted.

They are texts that a small model continues as intended: it copies what it is shown, rather than following instructions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from quire.types.request import Constraint, ConstraintKind

WORDS = (
    *("river", "stone", "cloud", "amber", "forge", "lantern", "sparrow", "copper", "meadow", "violet", "canyon"),
    *("ember", "harbor", "willow", "quartz", "thistle", "falcon", "marble", "cedar", "tide"),
)
NUM_RANDOM = 64  # tokens of a random prompt
FIRST_TOKEN_ID = 256  # those before it are special ones, or bytes, in most vocabularies
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        name: {"type": "string", "maxLength": 40} for name in ("name", "profession", "street", "city", "email")
    },
    "required": ["name", "profession", "street", "city", "email"],
    "additionalProperties": False,
}


class DraftLoad(NamedTuple):
    """How the prompts of a load are made, and how it is sampled."""

    about: str
    prompt: Callable[[random.Random, int], Any]  # text or token ids; the vocabulary's size is given too
    temperature: float = 0.0
    constraint: Constraint | None = None
    shared: str = ""  # what all prompts begin with; it is cached
    is_repeated: bool = False  # the same prompts were answered before, and the answers are cached

    def sampling(self, num_tokens: int) -> dict[str, Any]:
        """Return the sampling parameters of an answer with `num_tokens`, or of the constraint's length."""
        return {"temperature": self.temperature, "max_tokens": num_tokens, "ignore_eos": self.constraint is None}


def _code(rng: random.Random) -> str:
    first, second, third = rng.sample(WORDS, 3)
    return (
        f"def {first}_{second}(path):\n"
        f"    with open(path) as handle:\n"
        f"        data = json.load(handle)\n"
        f'    for row in data["{third}"]:\n'
        f'        row["{first}"] = row["{first}"].strip().lower()\n'
        f'        row["{second}"] = int(row["{second}"])\n'
        f'        row["{third}"] = row.get("{third}", "unknown").strip()\n'
        f"    return data\n"
    )


def _edit(code: str) -> str:
    return f"Before:\n```python\n{code}```\nAfter, with `handle` renamed to `file`:\n```python\n"


_EXAMPLE = _code(random.Random("an example"))
EDIT_EXAMPLE = f"{_edit(_EXAMPLE)}{_EXAMPLE.replace('handle', 'file')}```\n\n"


def _code_edit(rng: random.Random, vocab_size: int) -> str:
    return EDIT_EXAMPLE + _edit(_code(rng))


def _record(rng: random.Random) -> str:
    first, last, street, city = (word.capitalize() for word in rng.sample(WORDS, 4))
    number = rng.randrange(10, 999)
    return (
        f"{first} {last}, {number} {street} Street, {city}, {first.lower()}.{last.lower()}{number}@{city.lower()}.org"
    )


def _extraction(rng: random.Random, vocab_size: int) -> str:
    rows = "".join(f"Entry {place}: {_record(rng)}.\n" for place in range(1, 6))
    return f"{rows}\nThe same entries again:\nEntry 1:"


def _json(rng: random.Random, vocab_size: int) -> str:
    first, last, street, city, trade = rng.sample(WORDS, 5)
    return (
        f"{first.capitalize()} {last.capitalize()} is a {trade} merchant who lives at {rng.randrange(10, 99)} "
        f"{street.capitalize()} Street in {city.capitalize()}. Write to {first}.{last}@{city}.org.\n"
        f"The same as JSON ({', '.join(PERSON['properties'])}):\n"
    )


def _story(rng: random.Random, vocab_size: int) -> str:
    first, second, third = rng.sample(WORDS, 3)
    return f"Write a story about a {first}, a {second} and a {third}.\n\nOnce upon a time"


def _question(rng: random.Random, vocab_size: int) -> str:
    first, second = rng.sample(WORDS, 2)
    return f"Question {rng.randrange(10**6)}: what do a {first} and a {second} have in common?\nAnswer:"


def _random_tokens(rng: random.Random, vocab_size: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(NUM_RANDOM)]


DRAFT_LOADS = {
    "creative": DraftLoad("a story, temperature 1", _story, temperature=1.0),
    "code": DraftLoad("a function with a variable renamed", _code_edit, shared=EDIT_EXAMPLE),
    "extraction": DraftLoad("entries of a list", _extraction),
    "json": DraftLoad(
        "facts of a text as JSON, by a schema", _json, constraint=Constraint(ConstraintKind.SCHEMA, json.dumps(PERSON))
    ),
    "replay": DraftLoad("questions that were answered before", _question, is_repeated=True),
    "random": DraftLoad("after random tokens, temperature 1", _random_tokens, temperature=1.0),
}
