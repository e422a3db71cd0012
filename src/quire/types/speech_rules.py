"""Which tokens a speech model may write, and when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """Tokens that are never sampled, and the order of timestamps.

    A text is segments, each between two timestamps. Timestamps come in pairs, except before the end of the text, and
    never decrease. If all timestamps together are likelier than the likeliest other token, one of them is sampled.
    """

    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()  # not as the first token
    end: int = 0  # the token that ends the text: tokens before it are text
    first_timestamp: int | None = None  # tokens from here on are timestamps; None: none may be written
    max_initial: int | None = None  # the latest timestamp, counted from the first, that a text may begin with
