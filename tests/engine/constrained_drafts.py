"""Many constrained requests at once while a model drafts: their texts, and whether each obeys its constraint."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from quire.models.config import CheckpointSource
from quire.types.request import Constraint, ConstraintKind, FinishReason, SamplingParams
from tests.engine.constrained_driver import ENDS, text_of
from tests.engine.model_drafts import DraftDriver, plain_answers

NUM_BLOCKS = 400
SIDES = ["left", "right"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,12}$"},
        "side": {"enum": SIDES},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["name", "side", "count"],
}
FORMS = {
    "regex": Constraint(ConstraintKind.REGEX, r'\{"name": "[a-z]{1,12}", "(left|right)": [1-9]\d{0,3}\}'),
    "schema": Constraint(ConstraintKind.SCHEMA, json.dumps(SCHEMA), strict=True),
}


def obeys(text: str, form: Constraint) -> bool:
    """Return whether a finished answer is one of the constraint's language."""
    if form.kind is ConstraintKind.REGEX:
        return re.fullmatch(form.text, text) is not None
    answer = json.loads(text)
    is_name = re.fullmatch("[a-z]{1,12}", answer["name"]) is not None
    is_count = type(answer["count"]) is int and 0 <= answer["count"] <= 9999
    return set(answer) == {"name", "side", "count"} and is_name and is_count and answer["side"] in SIDES


@dataclass
class ConstrainedLoad:
    """32 requests with one constraint. Their prompts fit into one step, so that all start together."""

    form: Constraint
    sampling: SamplingParams
    prompts: list[list[int]] = field(default_factory=lambda: [[n, n + 1, n + 2] for n in range(32)])

    def __post_init__(self) -> None:
        pytest.importorskip("llguidance")
        self.words: dict[str, Any] = {"eos_token_ids": ENDS, "constraint": self.form}

    def plain_answers(self, checkpoint: CheckpointSource) -> list[list[int]]:
        settings = {"checkpoint": checkpoint, "num_blocks": NUM_BLOCKS}
        return plain_answers(self.sampling, prompts=self.prompts, request=self.words, **settings)

    def check(self, driver: DraftDriver, plain: list[list[int]]) -> None:
        """Check that the texts are those without drafts, and that some drafted tokens were accepted and others not."""
        driver.answers(self.sampling, self.prompts[:1], **self.words)  # compiles the grammar: later requests need not
        driver.accepted.clear()
        found = [text_of(answer) for answer in driver.answers(self.sampling, self.prompts, **self.words)]
        assert found == [text_of(answer) for answer in plain]
        assert all(record.finish is FinishReason.STOP for record in driver.records.values())
        assert all(obeys(text, self.form) for text in found)
        assert driver.has_accepted_and_rejected and len(driver.accepted) > len(self.prompts)
        assert max(num_drafts for num_drafts, _ in driver.accepted) == 3
        assert max(num_rows for _, num_rows, _ in driver.program.batches) == len(self.prompts)
