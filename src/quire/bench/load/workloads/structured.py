"""Answers that must follow a JSON schema. An answer ends with its JSON; answers that are not JSON are counted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from quire.bench.load.lengths import LengthDistribution, parse_lengths
from quire.bench.load.random_words import random_words
from quire.bench.load.session import LoadRequest, Session, chat_message

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
class StructuredWorkload:
    """A text, and one of three schemas for the answer. `output` is the maximum length of an answer."""

    input: LengthDistribution = field(default=parse_lengths("64-192"))
    output: LengthDistribution = field(default=parse_lengths("192"))

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions without end."""
        while True:
            name = rng.choice(list(SCHEMAS))
            schema = {"type": "json_schema", "json_schema": {"name": name, "schema": SCHEMAS[name], "strict": True}}
            question = f"Describe this as JSON, as a {name}: {random_words(rng, self.input.draw(rng))}"
            messages = (chat_message("user", question),)
            fields = {"response_format": schema}
            yield Session((LoadRequest(messages, self.output.draw(rng), fields, expects_json=True),))


WORKLOAD = StructuredWorkload
