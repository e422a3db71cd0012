"""Lengths of real requests: percentiles 0, 5, … 100 of the 19,366 requests of the Azure LLM inference trace 2023,
"conversation" (Patel et al., Splitwise, ISCA 2024; CC-BY), by prompt and by output tokens."""

from __future__ import annotations

import random

PROMPT = (
    2,
    181,
    207,
    372,
    387,
    396,
    403,
    414,
    703,
    984,
    1020,
    1045,
    1071,
    1097,
    1130,
    1189,
    1315,
    1876,
    2734,
    4083,
    14050,
)
OUTPUT = (7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 1000)


def draw(percentiles: tuple[int, ...], chance: random.Random) -> int:
    """Draw a length from the distribution, linear between two percentiles."""
    at = chance.random() * (len(percentiles) - 1)
    low = int(at)
    return round(percentiles[low] + (at - low) * (percentiles[low + 1] - percentiles[low]))
