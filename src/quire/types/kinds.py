"""What requests ask a model for, and how the vectors of a text's tokens become one vector."""

from __future__ import annotations

from enum import StrEnum


class RequestKind(StrEnum):
    """What a request asks for."""

    GENERATE = "generate"  # tokens
    EMBED = "embed"  # a vector
    SCORE = "score"  # how well two texts belong together
    CLASSIFY = "classify"  # a number for each class
    ALIGN = "align"  # where in its source each token of a text is: queries of tokens, and keys of the source


TRANSCRIBE = "transcribe"  # many requests for one recording: what a speech model can do, in messages to users


class PoolKind(StrEnum):
    """How the vectors of a text's tokens become one vector."""

    MEAN = "mean"
    CLS = "cls"  # that of the first token
    LAST = "last"  # that of the last token
    WEIGHTED = "weighted"  # the mean, in which the token at position p counts p + 1 times

    @property
    def reads_all(self) -> bool:
        """Is the vector of every token read?"""
        return self in (PoolKind.MEAN, PoolKind.WEIGHTED)
