"""Resolve a name: to a model that another program keeps on this disk, or to the source that has it.

`org/repo` is a repository of the hub; it is a model of the registry only if the hub has no such repository. If the hub
does not respond, that is an error: a name must not mean another model while the network is down. If requests to the hub
are forbidden (HF_HUB_OFFLINE), the registry is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from .errors import ModelNotFound, SourceDisabled, StoreError, Unreachable
from .external.model import ExternalFolder, ExternalModel
from .names import DEFAULT_TAG, OLLAMA, ModelName
from .source import ModelOffer, Source, all_sources
from .suggest import KNOWN_NAMES, did_you_mean

ADVICE = " Try {default}, a repository of the model hub (hf.co/{repository}), or the path of a GGUF file."
DEFAULT_MODEL = "smollm2:135m"
Names = Callable[[], Iterable[str]]  # of the store's own models


class Lookup:
    """The external folders and the sources of one store."""

    def __init__(
        self, sources: Sequence[Source] | None, registry: str, folders: Sequence[ExternalFolder], names: Names
    ) -> None:
        self._sources = sources
        self._registry = registry
        self._folders = folders
        self._names = names

    # ── on this disk ──

    def find(self, name: ModelName) -> ExternalModel | None:
        """The model with this name that another program keeps.

        A name without a host is also looked up in Ollama's library, whatever registry is set: `ExternalModel.name`
        resolves to the model that was found.
        """
        names = dict.fromkeys(each.at(host) for each in name.meanings for host in (self._registry, OLLAMA))
        found = (folder.find(each) for each in names for folder in self._folders)
        return next(filter(None, found), None)

    def all(self) -> Iterator[ExternalModel]:
        """Every model that other programs keep."""
        for folder in self._folders:
            yield from folder.all()

    def blob(self, digest: str, size: int | None = None) -> Path | None:
        """A file with this sha256 (and size, if given) that another program keeps."""
        found = next(filter(None, (folder.blob(digest) for folder in self._folders)), None)
        return found if found is not None and size in (None, found.stat().st_size) else None

    # ── sources ──

    def offer(self, name: ModelName) -> tuple[Source, ModelOffer]:
        """The first source that has the model, and its offer. If none has it, the error lists their answers."""
        failures: list[tuple[ModelName, StoreError]] = []
        for source, meaning in self._candidates(name):
            try:
                offer = source.offer(meaning)
            except (ModelNotFound, Unreachable) as error:
                failures.append((meaning, error))
                continue
            if not failures or isinstance(failures[-1][1], ModelNotFound | SourceDisabled):
                return source, offer
            advice = f"It has a model of this name: to use that one, write {_short(meaning)}"
            failures.append((meaning, Unreachable(advice)))
        raise self._failure(name, failures)

    def hint(self, text: str, known: Iterable[str] = KNOWN_NAMES) -> str:
        """A question that suggests a similar name, of the models that are here and those that are well known."""
        return did_you_mean(text, [*self._names(), *(str(each.name) for each in self.all()), *known])

    def _candidates(self, name: ModelName) -> list[tuple[Source, ModelName]]:
        """The sources to try, each with the name to look up. A name that no source claims belongs to the registry."""
        sources = all_sources() if self._sources is None else self._sources
        candidates = []
        for meaning in name.meanings:
            for each in (meaning, meaning.at(self._registry)):
                source = next((source for source in sources if source.claims(each)), None)
                if source is not None:
                    candidates.append((source, each))
                    break
        return candidates

    def _failure(self, name: ModelName, failures: Sequence[tuple[ModelName, StoreError]]) -> StoreError:
        if Path(name.name).exists() and name.kind != "path":
            return ModelNotFound(
                f"There is no model {name}. To use the file or folder of that name here, write ./{name.name}"
            )
        repository = name.name if "/" in name.name else "organisation/name"
        hint = self.hint(str(name))
        advice = hint or ADVICE.format(default=DEFAULT_MODEL, repository=repository)
        if not failures:
            return ModelNotFound(f"There is no model {name}.{advice}")
        is_certain = all(isinstance(error, ModelNotFound) for _, error in failures)
        kind = ModelNotFound if is_certain else Unreachable
        if len(failures) > 1:
            answers = [f"  {_short(meaning)}: {error.public}" for meaning, error in failures]
            lines = [f"{_short(name)} is not here, and cannot be fetched:", *answers, *filter(None, [hint.strip()])]
            return kind("\n".join(lines))
        meaning, error = failures[0]
        if meaning == name:
            return kind(f"{error.public}{hint}")
        if is_certain:
            return kind(f"There is no model {name} on {meaning.host}.{advice}")
        return kind(f"{name} is not here, and {error.public}{hint}")


def _short(name: ModelName) -> str:
    return name.untagged if name.tag == DEFAULT_TAG else str(name)
