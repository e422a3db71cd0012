"""A small text classifier: naive Bayes over words and pairs of words, trained on a few examples at start-up.

It knows only the words of its examples. The same examples give the same answers. Its accuracy is measured by leaving
out each example in turn, and shown in /props.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WORD = re.compile(r"\w+")
MAX_CHARS = 4096
SMOOTHING = 0.5  # occurrences added to every word in every class


@dataclass(frozen=True, slots=True)
class Classification:
    """The most probable class; empty if no word of the text is known."""

    label: str = ""
    probability: float = 0.0


class Classifier:
    """Trained when it is made."""

    def __init__(self, examples: Mapping[str, Sequence[str]]) -> None:
        self.examples = {label: tuple(texts) for label, texts in examples.items()}
        self._counts = {
            label: Counter(w for text in texts for w in features_of(text)) for label, texts in examples.items()
        }
        self._known: Counter[str] = sum(self._counts.values(), Counter())

    def classify(self, text: str) -> Classification:
        """The class of a text. Of equally probable ones, the one declared first."""
        return self._classify(features_of(text), {}, Counter())

    def accuracy(self) -> float:
        """The share of its examples that it classifies correctly when trained on the others."""
        num_right = num_all = 0
        for label, texts in self.examples.items():
            for text in texts:
                without = Counter(features_of(text))
                num_right += self._classify(features_of(text), {label: without}, without).label == label
                num_all += 1
        return num_right / num_all

    def _classify(
        self, features: Iterable[str], left_out: Mapping[str, Counter[str]], all_left_out: Counter[str]
    ) -> Classification:
        """Without the occurrences in `left_out`, which are by class and sum up to `all_left_out`."""
        known = [word for word in features if self._known[word] > all_left_out[word]]
        if not known:
            return Classification()
        scores = {}
        for label, counts in self._counts.items():
            without = left_out.get(label, Counter())
            total = counts.total() - without.total() + SMOOTHING * len(self._known)
            scores[label] = sum(math.log((counts[word] - without[word] + SMOOTHING) / total) for word in known)
        best = max(scores, key=scores.__getitem__)
        return Classification(best, 1.0 / sum(math.exp(score - scores[best]) for score in scores.values()))


def features_of(text: str) -> list[str]:
    """Words, and pairs of adjacent words."""
    single = WORD.findall(text[:MAX_CHARS].casefold())
    return single + [f"{a} {b}" for a, b in pairwise(single)]
