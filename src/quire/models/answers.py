"""Decoders that are rerankers: the score comes from the logits of two answer tokens, such as yes and no.

Only these two rows of the head are computed, for the last token of a text.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quire.graph.graph import ANSWERS
from quire.graph.weight import Weight
from quire.models.config import CheckpointSource
from quire.models.embedding import HasModules
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.models.values import Values

LOGIT_SCORE = "LogitScore"  # the module of sentence-transformers folders


def answer_ids(checkpoint: CheckpointSource) -> tuple[int, ...]:
    """Return the token for yes, and the one for no if there is one. Empty: the model is no such reranker."""
    modules = checkpoint.modules if isinstance(checkpoint, HasModules) else ()
    found = next((each for each in modules if each.kind == LOGIT_SCORE), None)
    if found is None:
        return ()
    values = Values(found.config)
    if (given := values.text("module_input_name", "causal_logits")) != "causal_logits":
        raise UnsupportedModel(f"The module {LOGIT_SCORE} reads {given}; supported is causal_logits.")
    true, false = values.integer("true_token_id"), values.integer_or_none("false_token_id")
    return (true,) if false is None else (true, false)


def bind_answers(weights: dict[str, Weight], ids: tuple[int, ...]) -> None:
    """Replace the head by the rows of the answers. Reads no weights."""
    head = weights.pop("head", None)
    if head is None:
        raise UnsupportedModel(f"modules.json has a {LOGIT_SCORE}, but the model has no head with token logits.")
    if not all(0 <= each < head.shape[0] for each in ids):
        raise BadCheckpoint(f"The answers are the tokens {ids}, but the model has only {head.shape[0]} tokens.")
    rows = np.array(ids, np.int64)
    order = rows if head.row_order is None else head.row_order[rows]
    shape, transform = (len(ids), *head.shape[1:]), replace(head.transform, rows=order)
    weights[ANSWERS] = replace(head, name=ANSWERS, shape=shape, transform=transform)
    if "head.bias" in weights:
        bias = weights.pop("head.bias")
        name = f"{ANSWERS}.bias"
        weights[name] = replace(bias, name=name, shape=(len(ids),), transform=replace(bias.transform, rows=order))
