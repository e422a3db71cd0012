"""Digests of the tokens behind every state: a check, for debugging, that a row reads the state of its own text.

A state has no trace of the tokens that it was computed from, so a wrong one gives wrong text and no error. Here each
slot has the digest of those tokens. They are compared when a step's results arrive: by then all its tokens are known,
also those that the device sampled.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from quire.ops.batch import StateSlots
from quire.types.errors import StepFailed
from quire.types.step import Part, PartResult, StepPlan

logger = logging.getLogger(__name__)


class TextDigest:
    """The tokens of one row, and the digest of the first of them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = array("I", tokens)
        self._hash, self._num_hashed = blake2b(digest_size=16), 0

    def put(self, start: int, tokens: Sequence[int]) -> None:
        """Set the tokens from `start` on: the text ends with them."""
        self._tokens[start:] = array("I", tokens)
        if start < self._num_hashed:
            self._hash, self._num_hashed = blake2b(digest_size=16), 0

    def computed_tokens(self, part: Part) -> array[int]:
        """Return the tokens that a part computes."""
        return self._tokens[part.start : part.start + 1] if part.tokens is None else array("I", part.tokens)

    def at(self, position: int) -> bytes:
        """Return the digest of the first `position` tokens; positions ascend from one `put` to the next."""
        self._hash.update(self._tokens[self._num_hashed : position].tobytes())
        self._num_hashed = position
        return self._hash.digest()


class StateDigests:
    """The digest of the tokens behind every slot. Only the runner changes it, in the order of the steps."""

    def __init__(self) -> None:
        self.of_slot: dict[int, bytes] = {}

    def check(
        self, plan: StepPlan, texts: Sequence[TextDigest], states: StateSlots, results: Sequence[PartResult]
    ) -> tuple[PartResult, ...]:
        """Return the results of a step; a part that read the state of other tokens fails."""
        saves: dict[int, list[tuple[int, int]]] = {}
        for row, position, slot in sorted(plan.saves):
            saves.setdefault(row, []).append((position, slot))
        checked, written = list(results), dict[int, bytes | None]()
        for index, (part, text) in enumerate(zip(plan.parts, texts, strict=True)):
            source, saved = int(states.source[index]), saves.get(part.row, [])
            tokens = text.computed_tokens(part)
            text.put(part.start, tokens)
            if text.at(part.start) != (self.of_slot.get(source) if source >= 0 else TextDigest(()).at(0)):
                checked[index] = _refuse(part, source)
            digests = {slot: text.at(position) for position, slot in saved}
            digests[int(states.target[index])] = text.at(part.start + len(tokens))
            tokens_sampled, _, error, _, _ = checked[index]
            written |= digests if error is None else dict.fromkeys(digests)
            if tokens_sampled:
                text.put(part.start + len(tokens) - len(part.drafts), tokens_sampled)
        self.of_slot |= {slot: digest for slot, digest in written.items() if digest is not None}
        for slot, digest in written.items():
            if digest is None:
                self.of_slot.pop(slot, None)
        return tuple(checked)


def _refuse(part: Part, slot: int) -> PartResult:
    error = StepFailed(
        f"State {slot} was not computed from the first {part.start} tokens of request {part.request_id}: "
        "its result is refused."
    )
    logger.error("%s", error)
    return PartResult(error=error)
