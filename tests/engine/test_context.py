"""The context that an engine serves, and the factors of rope that it is drawn with."""

from __future__ import annotations

from functools import partial

import pytest

from quire.config import load
from quire.engine.context import context_limit
from quire.models.draw import draw
from quire.ops.registry import relative_error
from tests.models.case import TOKENS, rope
from tests.models.toys import Session, some_tokens, toy_of

pytestmark = pytest.mark.device

TRAINED = 64
DYNAMIC = {"max_position_embeddings": TRAINED, **rope("dynamic", factor=4.0)}
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 3.5, 4.5]}
LONG = {"original_max_position_embeddings": TRAINED, **TOKENS, **rope("longrope", **FACTORS)}


@pytest.mark.parametrize(
    "kind, changes, settings, context",
    [
        ("LlamaForCausalLM", DYNAMIC, {}, TRAINED),
        ("LlamaForCausalLM", DYNAMIC, {"max_context": 40}, 40),
        ("LlamaForCausalLM", DYNAMIC, {"max_context": 200}, 200),
        ("LlamaForCausalLM", DYNAMIC, {"max_context": 1000}, 4 * TRAINED),
        ("Phi3ForCausalLM", LONG, {"max_context": 40}, 40),
        ("Phi3ForCausalLM", LONG, {"max_context": 100}, 100),
    ],
)
def test_rope_that_depends_on_length_is_chosen_once_by_the_context(kind, changes, settings, context, caplog):
    caplog.set_level("INFO", "quire.models")
    toy = toy_of(kind, changes, seed=3)
    model = draw(toy.checkpoint, partial(context_limit, load(settings)))
    assert model.context == context and f"max_context is {context:,}" in caplog.text
    tokens = some_tokens(context)  # transformers chooses by the text: one of full length has the same factors
    actual = Session(model).step({"a": tokens})["a"]
    assert relative_error(actual, toy.expected_logits(tokens)) < 1e-4


def test_a_window_that_no_text_exceeds_is_no_window():
    toy = toy_of("MistralForCausalLM", {"sliding_window": 40}, seed=4)
    for context, window in ((40, None), (41, 40)):
        model = draw(toy.checkpoint, partial(context_limit, load({"max_context": context})))
        assert [spec.window for spec in model.graph.caches] == [window, window]
