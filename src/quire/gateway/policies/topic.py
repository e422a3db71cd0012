"""By what the newest message of the user is about, as a classifier of the file of routes sees it."""

from __future__ import annotations

from quire.gateway.declared import Node
from quire.gateway.policy import Condition, Facts, Given

EXAMPLE = "{classifier: subjects, is: code, at_least: 0.8}"
WORDS = ("classifier", "is", "at_least")


def read(node: Node, given: Given) -> Condition:
    """A classifier, classes of it, and how sure it must be."""
    parts = node.entries(WORDS)
    for word in ("classifier", "is"):
        if word not in parts:
            raise node.wrong(f"{word!r} is missing.")
    name = parts["classifier"].text()
    if name not in given.classifiers:
        known = ", ".join(given.classifiers) or "none"
        raise parts["classifier"].wrong(f"there is no classifier {name!r}: declared are {known}.")
    classifier = given.classifiers[name]
    for each in parts["is"].items():
        if each.text() not in classifier.examples:
            raise each.wrong(f"{name} has no class {each.text()!r}: it has {', '.join(classifier.examples)}.")
    labels = frozenset(parts["is"].texts())
    least = parts["at_least"].number(0, 1) if "at_least" in parts else 0.0

    def holds(facts: Facts) -> bool:
        verdict = classifier.classify(facts.last)
        return verdict.label in labels and verdict.share >= least

    return holds
