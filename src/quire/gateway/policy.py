"""What a routing rule can test. Each kind of condition is one file in policies/, found by its name.

A file in policies/ has the name that the condition has in a routes file. It defines an `EXAMPLE`, and

    read(node, declared) -> Condition     checks the declaration once; the condition is evaluated for each request
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from quire.gateway.classify import Classifier
from quire.gateway.yaml_nodes import YamlNode

MAX_TEXT_CHARS = 32_768  # that a condition searches: routing must not delay other requests
BYTES_PER_TOKEN = 4  # an estimate: no model, and so no tokenizer, is chosen yet


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known about a request before a model is chosen."""

    last: str = ""  # the user's latest message, or the prompt
    first: str = ""  # the user's first message, which is the same in all turns of a conversation
    system: str = ""
    text: str = ""  # everything
    num_ids: int = 0  # tokens given as ids
    key: str = ""  # name of the API key
    user: str = ""
    session: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    loaded: frozenset[str] = frozenset()  # models that can answer now

    @property
    def num_chars(self) -> int:
        """Length of the whole prompt."""
        return len(self.text)

    @property
    def num_tokens(self) -> int:
        """An estimate of its tokens, the same for every model."""
        return self.num_ids + -(-len(self.text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


Condition = Callable[[RequestFacts], bool]


@dataclass(frozen=True, slots=True)
class Declarations:
    """What else the routes file declares, for conditions that refer to it."""

    tiers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    classifiers: Mapping[str, Classifier] = field(default_factory=dict)


class Policy(Protocol):
    """A module of policies/."""

    EXAMPLE: str  # the condition in YAML

    def read(self, node: YamlNode, declared: Declarations) -> Condition:
        """The condition that is declared here. Raises BadRoutes."""
        ...


@cache
def all_policies() -> Mapping[str, Policy]:
    """The modules of policies/, by name."""
    folder = import_module("quire.gateway.policies")
    names = [each.name for each in iter_modules(folder.__path__)]
    return {name: import_module(f"{folder.__name__}.{name}") for name in names}
