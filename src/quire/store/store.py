"""The models that this machine has, by name: pull, find, resolve, list, show, copy, remove.

A pull holds the store's lock together with others, a removal alone: so garbage is never collected under a pull whose
manifest is not written yet. Readers need no lock: a manifest and a blob are there whole or not at all.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from quire.types.errors import InvalidRequest

from .blobs import Blobs
from .errors import DamagedModel, ModelNotFound, writing
from .layout import Layout, write_whole
from .locks import locked, try_locked
from .manifest import Manifest, manifest_path, read_manifest
from .names import ModelName, parse_name
from .source import Progress, Source, all_sources, silent

DEFAULT_MODEL = "smollm2:135m"

logger = logging.getLogger(__name__)


class Store:
    """One folder of models. It has no state of its own: another process may change the folder at any time."""

    def __init__(self, home: Path, sources: Sequence[Source] | None = None) -> None:
        self.layout = Layout(home)
        self._blobs = Blobs(self.layout)
        self._sources = sources

    def pull(self, text: str, progress: Progress = silent) -> Manifest:
        """Fetch a model, or bring it up to date; every file that is there already is checked, and mended if damaged."""
        name = parse_name(text)
        if name.kind == "path":
            raise InvalidRequest(f"{text} is a path: it is used where it is, there is nothing to pull.", field="model")
        source = self._source_of(name)
        self.layout.make()
        with locked(self._lock, shared=True, waiting=lambda: progress("waiting: a model is being removed", 0, None)):
            offer = source.offer(name)
            files = tuple(self._blobs.bring(source, wanted, progress) for wanted in offer.files)
            manifest = Manifest(
                name=_untagged(name),
                tag=name.tag,
                files=files,
                source=offer.source,
                fetched=datetime.now(UTC).isoformat(timespec="seconds"),
                format=offer.format,
                quantization=offer.quantization,
                licence=offer.licence,
                num_parameters=offer.num_parameters,
                sampling=dict(offer.sampling),
            )
            write_whole(self._manifest_path(name), manifest.to_json())
        return manifest

    def find(self, text: str) -> Path | None:
        """What to open for this name: a file or a checkpoint folder. None: it is not here, a pull may bring it."""
        name = parse_name(text)
        if name.kind == "path":
            return name.path if name.path.exists() else None
        if not self._manifest_path(name).exists():
            return None
        return self._view(read_manifest(self._manifest_path(name)), name)

    def resolve(self, text: str, progress: Progress = silent) -> Path:
        """What to open for this name, pulled first if it is not here."""
        found = self.find(text)
        if found is not None:
            return found
        name = parse_name(text)
        if name.kind == "path":
            offer = self._source_of(name).offer(name)
            assert offer.in_place is not None, "a path is always used in place"
            return offer.in_place
        return self._view(self.pull(text, progress), name)

    def show(self, text: str) -> Manifest:
        """What the store knows about a model."""
        name = parse_name(text)
        path = self._manifest_path(name)
        if name.kind == "path" or not path.exists():
            raise ModelNotFound(
                f"{text} is not in the store: see `quire list` for what is, and `quire pull` to add to it."
            )
        return read_manifest(path)

    def list(self) -> list[Manifest]:
        """All models, by name. One whose manifest is damaged is left out, and the log says so."""
        found = []
        for path in sorted(self.layout.manifests.rglob("*.json")):
            try:
                found.append(read_manifest(path))
            except DamagedModel as error:
                logger.warning("%s", error)
        return found

    def copy(self, source: str, target: str) -> Manifest:
        """A second name for a model: no bytes are copied."""
        name = parse_name(target)
        if name.kind != "stored":
            raise InvalidRequest(f"{target} cannot be the name of a copy: write name or name:tag.", field="target")
        self.layout.make()
        with locked(self._lock, shared=True):
            manifest = replace(self.show(source), name=_untagged(name), tag=name.tag)
            write_whole(self._manifest_path(name), manifest.to_json())
        return manifest

    def remove(self, text: str) -> int:
        """Forget a name, and remove the files that no other name needs. Bytes freed."""
        name = parse_name(text)
        path = self._manifest_path(name)
        if name.kind == "path" or not path.exists():
            raise ModelNotFound(f"{text} is not in the store: see `quire list` for what is.")
        with writing(path.parent):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: other tags of this name are left
            for folder in path.parents[: len(name.folders)]:
                folder.rmdir()
        return self._collect()

    def _collect(self) -> int:
        self.layout.make()
        with try_locked(self._lock) as alone:
            if not alone:
                logger.info("A model is being pulled: unneeded files stay until the next removal.")
                return 0
            try:
                manifests = [read_manifest(path) for path in self.layout.manifests.rglob("*.json")]
            except DamagedModel as error:  # we cannot know what it needs, so everything stays
                logger.warning("No file was removed. %s", error)
                return 0
            keep = {file.digest for manifest in manifests for file in manifest.files}
            return self._blobs.collect(keep, {manifest.identity for manifest in manifests})

    def _view(self, manifest: Manifest, name: ModelName) -> Path:
        """A folder with the model's files under their own names; of a GGUF model, its first file in there."""
        for file in manifest.files:
            blob = self.layout.blob(file.digest)
            size = blob.stat().st_size if blob.is_file() else None
            if size != file.size:
                problem = "is missing" if size is None else f"has {size:,} bytes instead of {file.size:,}"
                raise DamagedModel(f"{file.file_name} of {name} {problem}: mend it with `quire pull {name}`.")
        view = self.layout.views / manifest.identity
        if not view.is_dir():
            self._make_view(view, manifest)
        if manifest.format == "gguf":
            return view / min(file.file_name for file in manifest.files if file.role == "weights")
        return view

    def _make_view(self, view: Path, manifest: Manifest) -> None:
        with writing(self.layout.views):
            temporary = Path(tempfile.mkdtemp(prefix=".", dir=self.layout.views))
            for file in manifest.files:
                # Relative, so that the whole store can be moved.
                (temporary / file.file_name).symlink_to(Path("..", "..", "blobs", self.layout.blob(file.digest).name))
            try:
                temporary.rename(view)
            except OSError:
                for link in temporary.iterdir():
                    link.unlink()
                temporary.rmdir()
                if not view.is_dir():  # else another process was faster, with the same links
                    raise

    def _source_of(self, name: ModelName) -> Source:
        sources = all_sources() if self._sources is None else self._sources
        for source in sources:
            if source.claims(name):
                return source
        raise ModelNotFound(_no_source(name))

    def _manifest_path(self, name: ModelName) -> Path:
        return manifest_path(self.layout.manifests, name)

    @property
    def _lock(self) -> Path:
        return self.layout.locks / "store.lock"


def _untagged(name: ModelName) -> str:
    return str(replace(name, tag=""))


def _no_source(name: ModelName) -> str:
    if Path(name.name).exists():
        return f"{name} is not a model that Quire knows. For the file or folder of that name here, write ./{name.name}"
    return (
        f"There is no model {name}. Try {DEFAULT_MODEL}, a repository of the model hub (hf.co/organisation/name), "
        "or the path of a GGUF file."
    )
