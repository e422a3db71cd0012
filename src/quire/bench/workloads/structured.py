"""Answers that must follow a JSON schema. They end when the JSON does; one that is no JSON is counted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from quire.bench.asks import Ask, Session, says
from quire.bench.lengths import Lengths, parse_lengths
from quire.bench.words import text

WORD = {"type": "string", "maxLength": 24}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS = {
    "person": _object(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120}, city=WORD),
    "verdict": _object(label={"enum": ["positive", "negative", "neutral"]}, certain={"type": "boolean"}),
    "order": _object(
        number={"type": "integer", "minimum": 1, "maximum": 99999},
        items={
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": _object(name=WORD, count={"type": "integer", "minimum": 1, "maximum": 99}),
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Structured:
    """A text, and one of three schemas to answer in. `output` is the most that an answer may have."""

    input: Lengths = field(default=parse_lengths("64-192"))
    output: Lengths = field(default=parse_lengths("192"))

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """Without end."""
        while True:
            name = chance.choice(list(SCHEMAS))
            form = {"type": "json_schema", "json_schema": {"name": name, "schema": SCHEMAS[name], "strict": True}}
            question = f"Describe this as JSON, as a {name}: {text(chance, self.input.draw(chance))}"
            asked = (says("user", question),)
            yield Session((Ask(asked, self.output.draw(chance), {"response_format": form}, wants_json=True),))


WORKLOAD = Structured
