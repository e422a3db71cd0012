"""Compares the tokens that the device sampled with the drafts of a step.

A draft holds if it equals the token that was sampled in its place; the first token that differs is output too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from quire.runner.flight import Mask
from quire.sampling.sampler import no_choice
from quire.types.errors import QuireError
from quire.types.step import Part, PartResult, one_token_result, verified_result

NO_TOKEN = PartResult()  # of a part that ends inside a prompt


def verify_all(parts: Sequence[Part], sampled: list[int], newest: NDArray[Any]) -> tuple[PartResult, ...]:
    """Return the results of all parts, if none has a mask and every token could be sampled.

    Hot path: the device waits for the next step. `newest`: the last token of each row, written here where drafts were.
    """
    results, at = [], 0
    for _, row, _, known, count, *_ in parts:
        if count > 1 and known is not None:
            end, shift = at, len(known) - count + 1 - at  # a sampled token's draft is so far from it
            while end < at + count - 1 and known[end + shift] == sampled[end]:
                end += 1
            newest[row] = sampled[end]
            results.append(verified_result(tuple(sampled[at : end + 1])))
        else:
            results.append(one_token_result(sampled[at]) if count else NO_TOKEN)
        at += count
    return tuple(results)


def verify(part: Part, sampled: list[int], mask: Mask | None, newest: NDArray[Any]) -> PartResult:
    """Return the result of one part: the tokens up to the first one that its draft does not equal."""
    if isinstance(mask, QuireError):
        return PartResult(error=mask)
    num_held, drafts = 0, part.drafts
    while num_held < len(drafts) and drafts[num_held] == sampled[num_held]:
        num_held += 1
    if sampled[num_held] < 0:
        return PartResult(error=no_choice(mask is not None and not mask[num_held].any()))
    newest[part.row] = sampled[num_held]
    return PartResult(tuple(sampled[: num_held + 1]))
