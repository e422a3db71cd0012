"""Where a name leads: models that other programs keep on this disk, then the sources that may have it, in order.

`org/repo` is a repository of the hub, and only if that says that it has none, a model of the registry. A hub that does
not answer decides nothing: the same name must not be another model when the network is down. One that must not be asked
(HF_HUB_OFFLINE) is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from .errors import ModelNotFound, NotAsked, StoreError, Unreachable
from .found import Found, Place
from .names import DEFAULT_TAG, OLLAMA, ModelName
from .source import Offer, Source, all_sources
from .suggest import KNOWN_NAMES, did_you_mean

ADVICE = " Try {default}, a repository of the model hub (hf.co/{repository}), or the path of a GGUF file."
DEFAULT_MODEL = "smollm2:135m"
Names = Callable[[], Iterable[str]]  # of the store's own models


class Lookup:
    """The places and the sources of one store."""

    def __init__(self, sources: Sequence[Source] | None, registry: str, places: Sequence[Place], names: Names) -> None:
        self._sources = sources
        self._registry = registry
        self._places = places
        self._names = names

    # ── on this disk ──

    def find(self, name: ModelName) -> Found | None:
        """The model of this name that another program keeps. Without a host it may also be one of Ollama's own library,
        whatever registry is set: `Found.name` leads back to it."""
        asked = dict.fromkeys(each.at(host) for each in name.meanings for host in (self._registry, OLLAMA))
        found = (place.find(each) for each in asked for place in self._places)
        return next(filter(None, found), None)

    def all(self) -> Iterator[Found]:
        """Every model that other programs keep."""
        for place in self._places:
            yield from place.all()

    def blob(self, digest: str, size: int | None = None) -> Path | None:
        """A file with this sha256 that another program keeps; of this size, if that is known."""
        found = next(filter(None, (place.blob(digest) for place in self._places)), None)
        return found if found is not None and size in (None, found.stat().st_size) else None

    # ── elsewhere ──

    def offer(self, name: ModelName) -> tuple[Source, Offer]:
        """The first source that has the model, and what it offers. Raises with the answer of each that was asked."""
        failures: list[tuple[ModelName, StoreError]] = []
        for source, asked in self._asked(name):
            try:
                offer = source.offer(asked)
            except (ModelNotFound, Unreachable) as error:
                failures.append((asked, error))
                continue
            if not failures or isinstance(failures[-1][1], ModelNotFound | NotAsked):
                return source, offer
            advice = f"It has a model of this name: to use that one, write {_short(asked)}"
            failures.append((asked, Unreachable(advice)))
        raise self._failure(name, failures)

    def hint(self, text: str, known: Iterable[str] = KNOWN_NAMES) -> str:
        """Which name may have been meant, of those that are here and those that are known."""
        return did_you_mean(text, [*self._names(), *(str(each.name) for each in self.all()), *known])

    def _asked(self, name: ModelName) -> list[tuple[Source, ModelName]]:
        """Whom to ask, and for what: a name that no source claims as it is belongs to the registry."""
        sources = all_sources() if self._sources is None else self._sources
        asked = []
        for meaning in name.meanings:
            for each in (meaning, meaning.at(self._registry)):
                source = next((source for source in sources if source.claims(each)), None)
                if source is not None:
                    asked.append((source, each))
                    break
        return asked

    def _failure(self, name: ModelName, failures: Sequence[tuple[ModelName, StoreError]]) -> StoreError:
        if Path(name.name).exists() and name.kind != "path":
            return ModelNotFound(
                f"{name} is not a model that Quire knows. For the file or folder of that name here, write ./{name.name}"
            )
        repository = name.name if "/" in name.name else "organisation/name"
        hint = self.hint(str(name))
        advice = hint or ADVICE.format(default=DEFAULT_MODEL, repository=repository)
        if not failures:
            return ModelNotFound(f"There is no model {name}.{advice}")
        is_sure = all(isinstance(error, ModelNotFound) for _, error in failures)
        kind = ModelNotFound if is_sure else Unreachable
        if len(failures) > 1:
            answers = [f"  {_short(asked)}: {error.public}" for asked, error in failures]
            said = [f"{_short(name)} is not here, and cannot be had:", *answers, *filter(None, [hint.strip()])]
            return kind("\n".join(said))
        asked, error = failures[0]
        if asked == name:
            return kind(f"{error.public}{hint}")
        if is_sure:
            return kind(f"There is no model {name} on {asked.host}.{advice}")
        return kind(f"{name} is not here, and {error.public}{hint}")


def _short(name: ModelName) -> str:
    return name.untagged if name.tag == DEFAULT_TAG else str(name)
