"""A slow, readable sampler in lists, loops and float64. It shares no code with the package."""

from __future__ import annotations

import math
from collections.abc import Sequence

from quire.types.request import SamplingParams


def softmax(scores: dict[int, float]) -> dict[int, float]:
    high = max(scores.values())
    weights = {token: math.exp(score - high) for token, score in scores.items()}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def adjusted(logits: Sequence[float], params: SamplingParams, text: Sequence[int], num_prompt: int) -> dict[int, float]:
    scores = dict(enumerate(map(float, logits)))
    if params.allowed_token_ids is not None:
        scores = {token: score for token, score in scores.items() if token in params.allowed_token_ids}
    for word in params.bad_words:
        if list(text[len(text) - len(word) + 1 :]) == list(word[:-1]):
            scores.pop(word[-1], None)
    for token in scores:
        scores[token] += params.logit_bias.get(token, 0.0)
        if token in text:
            factor = 1 / params.repetition_penalty if scores[token] > 0 else params.repetition_penalty
            scores[token] *= factor
        count = list(text[num_prompt:]).count(token)
        scores[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return scores


def _fewest(ranked: list[int], p: dict[int, float], mass: float) -> set[int]:
    kept, reached = set(), 0.0
    for token in ranked:
        kept.add(token)
        reached += p[token]
        if reached >= mass:
            break
    return kept


def filtered(scores: dict[int, float], params: SamplingParams) -> dict[int, float]:
    """Probabilities after temperature, min-p, top-k, typical-p, top-p, each applied to what the one before kept."""
    scores = {token: score / params.temperature for token, score in scores.items()}

    def keep(tokens: set[int]) -> None:
        for token in set(scores) - tokens:
            del scores[token]

    p = softmax(scores)
    keep({token for token in p if p[token] >= params.min_p * max(p.values())})
    ranked = sorted(scores, key=lambda token: -scores[token])
    keep(set(ranked[: params.top_k or len(ranked)]))
    if params.typical_p < 1.0:
        p = softmax(scores)
        entropy = -sum(each * math.log(each) for each in p.values())
        keep(_fewest(sorted(p, key=lambda token: abs(-math.log(p[token]) - entropy)), p, params.typical_p))
    if params.top_p < 1.0:
        p = softmax(scores)
        keep(_fewest(sorted(p, key=lambda token: -p[token]), p, params.top_p))
    return softmax(scores)
