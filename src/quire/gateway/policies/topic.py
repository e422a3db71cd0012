"""By the topic of the user's latest message, according to a classifier of the routes file."""

from __future__ import annotations

from quire.gateway.policy import Condition, Declarations, RequestFacts
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = "{classifier: subjects, is: code, at_least: 0.8}"
WORDS = ("classifier", "is", "at_least")


def read(node: YamlNode, declared: Declarations) -> Condition:
    """A classifier, its classes, and the least probability."""
    parts = node.entries(WORDS)
    for word in ("classifier", "is"):
        if word not in parts:
            raise node.error(f"{word!r} is missing.")
    name = parts["classifier"].text()
    if name not in declared.classifiers:
        known = ", ".join(declared.classifiers) or "none"
        raise parts["classifier"].error(f"there is no classifier {name!r}: declared are {known}.")
    classifier = declared.classifiers[name]
    for each in parts["is"].items():
        if each.text() not in classifier.examples:
            raise each.error(f"{name} has no class {each.text()!r}: it has {', '.join(classifier.examples)}.")
    labels = frozenset(parts["is"].texts())
    least = parts["at_least"].number(0, 1) if "at_least" in parts else 0.0

    def holds(facts: RequestFacts) -> bool:
        found = classifier.classify(facts.last)
        return found.label in labels and found.probability >= least

    return holds
