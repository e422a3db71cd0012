"""Aliases with rules: which models to try for a request, and by which rule. Pure, except that it reads the file.

routes:
  assistant:                        # the alias, used in place of a model's name
    rules:                          # the first one whose conditions are all true applies
      - name: long
        when: {prompt_tokens: {at_least: 2000}}
        use: large
      - use: {small: 9, medium: 1}  # by weight, always the same for the same user
    fallback: [small]               # if that model cannot answer
tiers: {pro: [alice, bob]}          # sets of API keys
classifiers: {subjects: {code: ["Fix this function", …], prose: [Write a poem, …]}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.gateway.classify import Classifier
from quire.gateway.policy import Condition, Declarations, RequestFacts, all_policies
from quire.gateway.split import STICKY, Split
from quire.gateway.yaml_nodes import YamlNode, read_yaml

PARTS = ("routes", "tiers", "classifiers")
OF_ROUTE = ("rules", "fallback")
OF_RULE = ("name", "when", "use", "fallback", "sticky", "seed")
PLAIN_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)  # it goes into a response header

KnowsModel = Callable[[str], bool | None]  # is there a model of this name? None: another process has checked that


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """The models to try for a request, in this order, and the rule that chose them."""

    alias: str
    rule: str
    models: tuple[str, ...]

    @property
    def label(self) -> str:
        """The value of the response header."""
        return f"{self.alias}/{self.rule}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Conditions, and the models to use if they are true."""

    name: str
    conditions: tuple[Condition, ...]
    split: Split
    fallback: tuple[str, ...]
    declared: Any  # as written in the file, for /props

    def models(self, facts: RequestFacts) -> tuple[str, ...]:
        """The models to try; none if the rule does not apply."""
        if not all(holds(facts) for holds in self.conditions):
            return ()
        return tuple(dict.fromkeys((self.split.choose(facts), *self.fallback)))


@dataclass(frozen=True, slots=True)
class Routes:
    """All aliases of a file."""

    rules: Mapping[str, tuple[Rule, ...]]
    classifiers: Mapping[str, Classifier]

    def choose(self, name: str, facts: Callable[[], RequestFacts]) -> RouteChoice | None:
        """The models to try for a request that names an alias. None: the name is not an alias."""
        if name not in self.rules:
            return None
        known = facts()
        chosen = ((rule, rule.models(known)) for rule in self.rules[name])
        rule, models = next((rule, models) for rule, models in chosen if models)  # the last one always applies
        return RouteChoice(name, rule.name, models)

    def defaults(self) -> dict[str, str]:
        """The aliases, each with the model that its last rule, which always applies, uses most."""
        return {alias: max(w := rules[-1].split.weights, key=w.__getitem__) for alias, rules in self.rules.items()}

    def describe(self) -> dict[str, Any]:
        """For /props."""
        learnt = {
            name: {
                "classes": {label: len(texts) for label, texts in each.examples.items()},
                "leave_one_out_accuracy": round(each.accuracy(), 3),
            }
            for name, each in self.classifiers.items()
        }
        rules = {alias: [{"rule": r.name, **r.declared} for r in rules] for alias, rules in self.rules.items()}
        return {"aliases": rules, "classifiers": learnt}


def load_routes(path: Path, knows: KnowsModel) -> Routes:
    """The routes of a file. Raises BadRoutes, which names the line."""
    return build_routes(read_yaml(path), knows)


def build_routes(file: YamlNode, knows: KnowsModel) -> Routes:
    """The routes of a parsed file, checked."""
    parts = file.entries(PARTS)
    if "routes" not in parts:
        raise file.error("the file has no routes.")
    declared = Declarations(_tiers(parts.get("tiers")), _classifiers(parts.get("classifiers")))
    aliases = parts["routes"].entries()
    if not aliases:
        raise parts["routes"].error("there are no aliases here.")
    for alias, node in aliases.items():
        if not PLAIN_NAME.fullmatch(alias):
            raise node.error(f"{alias!r} is not a valid name: use letters, digits and . _ : / - only.")
        if knows(alias):
            raise node.error(f"{alias} is the name of a model: choose another name for the alias.")
    reader = _RuleReader(declared, knows, aliases)
    return Routes({alias: reader.route(alias, node) for alias, node in aliases.items()}, declared.classifiers)


@dataclass(frozen=True, slots=True)
class _RuleReader:
    declared: Declarations
    knows: KnowsModel
    aliases: Mapping[str, YamlNode]

    def route(self, alias: str, node: YamlNode) -> tuple[Rule, ...]:
        parts = node.entries(OF_ROUTE)
        if "rules" not in parts or not parts["rules"].items():
            raise node.error(f"{alias} has no rules.")
        common = self._models(parts["fallback"]) if "fallback" in parts else ()
        places = parts["rules"].items()
        rules = tuple(self._rule(alias, number, each, common) for number, each in enumerate(places, 1))
        if rules[-1].conditions:
            raise places[-1].error(f"the last rule of {alias} must have no `when`: every request needs a model.")
        for place, rule in zip(places, rules[:-1], strict=False):
            if not rule.conditions:
                raise place.error("this rule always applies, so the rules after it never do: give it a `when`.")
        twice = next((n for n, rule in enumerate(rules) if rule.name in {r.name for r in rules[:n]}), None)
        if twice is not None:
            raise places[twice].error(f"{alias} has two rules named {rules[twice].name}.")
        return rules

    def _rule(self, alias: str, number: int, node: YamlNode, common: Sequence[str]) -> Rule:
        parts = node.entries(OF_RULE)
        if "use" not in parts:
            raise node.error("this rule does not say which model to `use`.")
        name = parts["name"].text() if "name" in parts else str(number)
        if not PLAIN_NAME.fullmatch(name):
            raise parts["name"].error(f"{name!r} is not a valid name: use letters, digits and . _ : / - only.")
        conditions = self._conditions(parts["when"]) if "when" in parts else ()
        fallback = self._models(parts["fallback"]) if "fallback" in parts else tuple(common)
        declared = {word: value.plain() for word, value in parts.items() if word != "name"}
        if "fallback" not in declared and common:
            declared["fallback"] = list(common)
        return Rule(name, conditions, self._split(f"{alias}/{name}", parts), fallback, declared)

    def _conditions(self, node: YamlNode) -> tuple[Condition, ...]:
        policies = all_policies()
        parts = node.entries(tuple(policies))
        if not parts:
            raise node.error("`when` has no condition: leave it out.")
        for model in parts["loaded"].items() if "loaded" in parts else ():
            self._model(model)
        return tuple(policies[word].read(value, self.declared) for word, value in parts.items())

    def _split(self, seed: str, parts: Mapping[str, YamlNode]) -> Split:
        use = parts["use"]
        declared = use.entries() if use.is_mapping else {}
        for name, weight in declared.items():
            self._check(name, weight)
        weights = {name: weight.number(0, 1e9) for name, weight in declared.items()}
        if not use.is_mapping:
            weights = {self._model(use): 1.0}
        if sum(weights.values()) <= 0:
            raise use.error("at least one model needs a weight above 0.")
        by = parts["sticky"].text() if "sticky" in parts else ""
        if by and by not in STICKY:
            raise parts["sticky"].error(f"a split is sticky by {', '.join(STICKY)}, and not by {by!r}.")
        return Split(weights, parts["seed"].text() if "seed" in parts else seed, by)

    def _models(self, node: YamlNode) -> tuple[str, ...]:
        return tuple(self._model(each) for each in node.items())

    def _model(self, node: YamlNode) -> str:
        self._check(node.text(), node)
        return node.text()

    def _check(self, name: str, node: YamlNode) -> None:
        if name in self.aliases:
            raise node.error(f"{name} is an alias: a rule names models.")
        if self.knows(name) is False:
            raise node.error(f"there is no model {name!r} here.")


def _tiers(node: YamlNode | None) -> dict[str, frozenset[str]]:
    return {} if node is None else {name: frozenset(keys.texts()) for name, keys in node.entries().items()}


def _classifiers(node: YamlNode | None) -> dict[str, Classifier]:
    found = {}
    for name, declared in node.entries().items() if node is not None else ():
        examples = {label: texts.texts() for label, texts in declared.entries().items()}
        if len(examples) < 2:
            raise declared.error(f"{name} needs two classes or more, each with examples.")
        found[name] = Classifier(examples)
    return found
