"""A small classifier of texts: naive Bayes over words and pairs of words, learnt from a few examples at start.

Small and honest: it knows no meaning, only words that its examples have. The same examples give the same answers. How
well it does is measured on its own examples, each one left out in turn, and shown in /props.
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
SMOOTHING = 0.5  # of an occurrence, that every class has of every word


@dataclass(frozen=True, slots=True)
class Verdict:
    """The likeliest class, and how likely it is; nothing if no word of the text is known."""

    label: str = ""
    share: float = 0.0


class Classifier:
    """Learnt once."""

    def __init__(self, examples: Mapping[str, Sequence[str]]) -> None:
        self.examples = {label: tuple(texts) for label, texts in examples.items()}
        self._counts = {label: Counter(w for text in texts for w in words(text)) for label, texts in examples.items()}
        self._known: Counter[str] = sum(self._counts.values(), Counter())

    def classify(self, text: str) -> Verdict:
        """What a text is about. Of equally likely classes, the one that was declared first."""
        return self._judge(words(text), {}, Counter())

    def accuracy(self) -> float:
        """Share of its examples that it would get right if it had learnt from the others alone."""
        num_right = num_all = 0
        for label, texts in self.examples.items():
            for text in texts:
                without = Counter(words(text))
                num_right += self._judge(words(text), {label: without}, without).label == label
                num_all += 1
        return num_right / num_all

    def _judge(self, found: Iterable[str], less: Mapping[str, Counter[str]], gone: Counter[str]) -> Verdict:
        """With `less` occurrences than were learnt, `gone` of them in all."""
        known = [word for word in found if self._known[word] > gone[word]]
        if not known:
            return Verdict()
        scores = {}
        for label, counts in self._counts.items():
            without = less.get(label, Counter())
            total = counts.total() - without.total() + SMOOTHING * len(self._known)
            scores[label] = sum(math.log((counts[word] - without[word] + SMOOTHING) / total) for word in known)
        best = max(scores, key=scores.__getitem__)
        return Verdict(best, 1.0 / sum(math.exp(score - scores[best]) for score in scores.values()))


def words(text: str) -> list[str]:
    """Words, and pairs of neighbours."""
    single = WORD.findall(text[:MAX_CHARS].casefold())
    return single + [f"{a} {b}" for a, b in pairwise(single)]
