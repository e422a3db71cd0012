"""Default sampling parameters of a model: those of its Modelfile, then those of its own files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.types.request import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values by the names of `SamplingParams`, each with the file that it was read from."""

    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def fill(self, sampling: SamplingParams, given: Collection[str]) -> SamplingParams:
        """Return `sampling` with these values in every field that is not in `given`."""
        own = {name: value for name, value in self.values.items() if name not in given}
        if "max_tokens" in own and (own["max_tokens"] or sampling.min_tokens) < sampling.min_tokens:
            del own["max_tokens"]  # the request's min_tokens exceeds the model's default
        return replace(sampling, **own) if own else sampling

    def describe(self) -> str:
        """One line for people: each value, and after values of one file its name."""
        by_source: dict[str, list[str]] = {}
        for name, value in self.values.items():
            by_source.setdefault(self.sources[name], []).append(f"{name} {_shown(value)}")
        return "; ".join(f"{', '.join(values)} ({source})" for source, values in by_source.items())


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(repr, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
