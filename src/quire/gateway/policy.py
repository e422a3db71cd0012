"""What a rule of a route may look at, and how kinds of conditions are found: each is one file in policies/.

A file of policies/ is named as its condition is written in a file of routes. It has an `EXAMPLE`, and

    read(node, given) -> Condition     checks what stands in the file, once; the condition is asked for each request
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from quire.gateway.classify import Classifier
from quire.gateway.declared import Node

MAX_TEXT = 32_768  # characters that a condition looks at: routing must not make others wait
BYTES_PER_TOKEN = 4  # of a text that no tokenizer has seen: which model's would it be?


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of a request before a model is chosen for it."""

    last: str = ""  # the newest message of the user, or the prompt
    first: str = ""  # the first message: all turns of a conversation have the same
    system: str = ""
    text: str = ""  # everything
    num_ids: int = 0  # tokens that were given as such
    key: str = ""  # name of the API key
    user: str = ""
    session: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    loaded: frozenset[str] = frozenset()  # models that could answer at once

    @property
    def num_chars(self) -> int:
        """Length of the whole prompt."""
        return len(self.text)

    @property
    def num_tokens(self) -> int:
        """About how many tokens that is: the same for every model."""
        return self.num_ids + -(-len(self.text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


Condition = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class Given:
    """What else the file of routes declares, for conditions that refer to it."""

    tiers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    classifiers: Mapping[str, Classifier] = field(default_factory=dict)


class Policy(Protocol):
    """A module of policies/."""

    EXAMPLE: str  # the condition in YAML

    def read(self, node: Node, given: Given) -> Condition:
        """The condition that stands here. Raises BadRoutes."""
        ...


@cache
def all_policies() -> Mapping[str, Policy]:
    """Files are found, not listed."""
    folder = import_module("quire.gateway.policies")
    names = [each.name for each in iter_modules(folder.__path__)]
    return {name: import_module(f"{folder.__name__}.{name}") for name in names}
