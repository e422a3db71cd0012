"""The models of this machine by name: pull, create, find, resolve, list, show, copy, remove, push.

A pull holds the store's lock shared, the removal of unused files holds it exclusively: so no file is removed that a
pull needs whose manifest is not written yet. Unused files are removed after a model has been removed, or a name has got
other files. Readers need no lock: manifests and blobs are written atomically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path

from quire.config import Config, environment, home_folder
from quire.text.sampling_defaults import GENERATION_CONFIG
from quire.types.errors import InvalidRequest

from .blobs import Blobs
from .disk_space import check_disk_space
from .downloads.thread_group import ThreadGroup
from .errors import DamagedModel, ModelNotFound, explain_write_errors
from .external.folders import external_folders
from .external.model import ExternalFolder, ExternalModel
from .layout import Layout, write_atomically
from .locks import locked, try_locked
from .lookup import DEFAULT_MODEL, Lookup
from .manifest import DIGEST, Manifest, StoredFile, manifest_path, read_manifest
from .model_files import GGUF, NewFile, format_of, with_unique_names, with_view_names
from .names import OLLAMA, ModelName, parse_name
from .source import ModelOffer, Progress, Source, no_progress

__all__ = ["DEFAULT_MODEL", "Store", "open_store"]
MADE_HERE = ModelOffer("made here")
FILES_AT_ONCE = 4  # of one model, fetched at the same time

logger = logging.getLogger(__name__)


class Store:
    """One folder of models. It caches nothing: another process may change the folder at any time."""

    def __init__(
        self,
        home: Path,
        sources: Sequence[Source] | None = None,
        registry: str = OLLAMA,
        external: Sequence[ExternalFolder] = (),
    ) -> None:
        self.layout = Layout(home)
        self.registry = registry  # for names without a host
        self._lookup = Lookup(sources, registry, external, self._names)
        self._blobs = Blobs(self.layout, self._lookup.blob)

    def pull(self, text: str, progress: Progress = no_progress) -> Manifest:
        """Fetch or update a model. Files that are already there are verified, and fetched again if damaged.

        The first pull of a model that another program keeps on this disk only links to its files.
        """
        name = parse_name(text)
        if name.kind == "path":
            raise InvalidRequest(f"{text} is a path: it is used in place, so there is nothing to pull.", field="model")
        if not self._manifest_path(name).exists() and (external := self._lookup.find(name)):
            return self._link_external(external.manifest(name), name)
        self.layout.make()
        before = self._digests(name)
        with locked(self._lock, shared=True, waiting=lambda: progress("waiting for the removal of a model", 0, None)):
            source, offer = self._lookup.offer(name)
            progress(self._announcement(name, offer), 0, None)
            check_disk_space(self.layout.blobs, sum(map(self._blobs.space_needed, offer.files)))
            threads = ThreadGroup(progress)
            tasks = [partial(self._blobs.ensure, source, file, threads.progress) for file in offer.files]
            manifest = self._write(name, offer, threads.run(tasks, FILES_AT_ONCE))
        if before - self._digests(name):
            self._remove_unused()
        return manifest

    def offer(self, text: str) -> ModelOffer:
        """What a pull of this name would fetch; without files if another program keeps the model on this disk."""
        name = parse_name(text)
        if not self._manifest_path(name).exists() and (external := self._lookup.find(name)):
            return external.about
        return self._lookup.offer(name)[1]

    def create(
        self,
        text: str,
        files: Sequence[NewFile | StoredFile],
        about: ModelOffer = MADE_HERE,
        progress: Progress = no_progress,
    ) -> Manifest:
        """Create a model from bytes, from the user's files, and from files of stored models.

        A file on the store's own file system is used in place, and must stay there unchanged. `about` has facts for the
        manifest; its files are ignored.
        """
        name = self._new_name(text)
        self.layout.make()
        before = self._digests(name)
        with locked(self._lock, shared=True):
            self._blobs.link([file for file in files if isinstance(file, StoredFile)])
            stored = [file if isinstance(file, StoredFile) else self._blobs.add_file(file, progress) for file in files]
            for each in stored:
                self._check(each, name)
            if not any(each.role == "weights" for each in stored):
                raise InvalidRequest(f"{name} needs weights: a GGUF file, a checkpoint folder, or another model.")
            manifest = self._write(name, about, with_unique_names(stored))
        if before - self._digests(name):
            self._remove_unused()
        return manifest

    def check_files(self, files: Sequence[NewFile | StoredFile], check: Callable[[Path], None]) -> None:
        """Call `check` with the path of a temporary model of these files."""
        paths = {
            file.file_name: self._blobs.path_of(file) if isinstance(file, StoredFile) else file.content
            for file in files
        }
        with tempfile.TemporaryDirectory(prefix="quire-") as folder:
            for name, path in paths.items():
                if isinstance(path, Path):
                    Path(folder, name).symlink_to(path.absolute())
            weights = sorted(file.file_name for file in files if file.role == "weights")
            is_gguf = bool(weights) and all(name.lower().endswith(GGUF) for name in weights)
            check(Path(folder, weights[0]) if is_gguf else Path(folder))

    def add_blob(self, chunks: Iterable[bytes], digest: str | None = None) -> StoredFile:
        """Store bytes for a model that is created later. The removal of a model before that removes them too."""
        self.layout.make()
        with locked(self._lock, shared=True):
            actual, size = self._blobs.add(chunks, digest)
        return StoredFile("weights", actual, size, f"{actual[:12]}.gguf")

    def find_blob(self, digest: str) -> StoredFile | None:
        """The file with this digest (64 hex digits), if the store has it."""
        blob = self.layout.blob(digest)
        if not DIGEST.fullmatch(digest) or not blob.is_file():
            return None
        return StoredFile("weights", digest, blob.stat().st_size, f"{digest[:12]}.gguf")

    def read(self, file: StoredFile) -> bytes:
        """The content of a small file: a template, parameters, a licence."""
        self._check(file, None)
        return self._blobs.path_of(file).read_bytes()

    def find(self, text: str) -> Path | None:
        """What to open for this name: a file or a checkpoint folder. None: the model is not on this machine."""
        name = parse_name(text)
        if name.kind == "path":
            return name.path if name.path.exists() else None
        if stored := self._stored_name(name):
            return self._view(read_manifest(self._manifest_path(stored)), stored)
        external = self._lookup.find(name)
        return None if external is None else self._external_view(external)

    def resolve(self, text: str, progress: Progress = no_progress) -> Path:
        """What to open for this name. The model is pulled first if it is not on this machine."""
        path = self.find(text)
        if path is not None:
            return path
        name = parse_name(text)
        if name.kind == "path":
            _, offer = self._lookup.offer(name)
            assert offer.in_place is not None, "a path is always used in place"
            return offer.in_place
        return self._view(self.pull(text, progress), name)

    def show(self, text: str) -> Manifest:
        """The manifest of a model of the store, or of one that another program keeps."""
        name = parse_name(text)
        if stored := self._stored_name(name):
            return read_manifest(self._manifest_path(stored))
        if name.kind != "path" and (external := self._lookup.find(name)):
            return external.manifest(name)
        hint = "" if name.kind == "path" else self._lookup.hint(str(name), ())
        raise ModelNotFound(f"{text} is not in the store: `quire list` shows what is, `quire pull` adds to it.{hint}")

    def external_models(self) -> list[ExternalModel]:
        """Models that other programs keep on this disk, without those that have a name in the store."""
        stored = self._names()
        return [model for model in self._lookup.all() if str(model.name) not in stored]

    def list(self) -> list[Manifest]:
        """All models, by name. One with a damaged manifest is left out and logged."""
        manifests = []
        for path in sorted(self.layout.manifests.rglob("*.json")):
            try:
                manifests.append(read_manifest(path))
            except DamagedModel as error:
                logger.warning("%s", error)
        return manifests

    def copy(self, source: str, target: str) -> Manifest:
        """Give a model a second name. No file is copied."""
        name = self._new_name(target)
        self.layout.make()
        with locked(self._lock, shared=True):
            manifest = replace(self.show(source), name=name.untagged, tag=name.tag)
            self._blobs.link(manifest.files)
            write_atomically(self._manifest_path(name), manifest.to_json())
        return manifest

    def push(self, text: str, progress: Progress = no_progress) -> int:
        """Push a model to the registry in its name. Returns the number of bytes sent."""
        manifest, name = self.show(text), parse_name(text)
        for file in manifest.files:
            self._check(file, name)
        if name.kind == "hub":
            raise InvalidRequest(
                f"{text} is a name of the hub: `quire cp` it to a name with a registry, and push that."
            )
        sender = import_module("quire.store.registries.push")  # late, because it loads an HTTP client
        self.layout.make()
        with locked(self._lock, shared=True):
            self._blobs.link(manifest.files)
            return int(sender.push_model(manifest, name.at(self.registry), self._blobs, progress))

    def remove(self, text: str) -> int:
        """Remove a name, and the files that no other name needs. Returns the number of bytes freed."""
        name = parse_name(text)
        path = self._manifest_path(name)
        if name.kind == "path" or not path.exists():
            raise ModelNotFound(f"{text} is not in the store: {self._why_not_removed(name)}")
        with explain_write_errors(path.parent):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: other tags of this name are left
            for folder in path.parents[: len(name.folders)]:
                folder.rmdir()
        return self._remove_unused()

    def _why_not_removed(self, name: ModelName) -> str:
        if name.kind != "path" and (external := self._lookup.find(name)):
            return f"{external.program} keeps it in {external.folder}, and {external.remove_hint} removes it there."
        return f"`quire list` shows what is.{'' if name.kind == 'path' else self._lookup.hint(str(name), ())}"

    def _names(self) -> Sequence[str]:
        return [f"{manifest.name}:{manifest.tag}" for manifest in self.list()]

    def _stored_name(self, name: ModelName) -> ModelName | None:
        """The name that has a manifest: this one, or what it means if it has no host."""
        names = () if name.kind == "path" else (name, *(each.at(self.registry) for each in name.meanings))
        return next((each for each in names if self._manifest_path(each).exists()), None)

    def _link_external(self, manifest: Manifest, name: ModelName) -> Manifest:
        """Write a manifest of files that another program keeps."""
        self.layout.make()
        with locked(self._lock, shared=True):
            self._blobs.link(manifest.files)
            write_atomically(self._manifest_path(name), manifest.to_json())
        return manifest

    def _digests(self, name: ModelName) -> set[str]:
        """The digests of a name's files; none if it is new or its manifest is damaged."""
        with suppress(FileNotFoundError, DamagedModel):
            return {file.digest for file in read_manifest(self._manifest_path(name)).files}
        return set()

    def _new_name(self, text: str) -> ModelName:
        """Parse a name that a user gives to a model: not one of the hub, and not a path."""
        name = parse_name(text)
        if name.kind not in ("stored", "registry"):
            raise InvalidRequest(
                f"{text} cannot be the name of a copy or of a new model: write name or name:tag.", field="model"
            )
        return name

    def _announcement(self, name: ModelName, offer: ModelOffer) -> str:
        """The message at the start of a pull: files, size and source."""
        num_files = f"{len(offer.files)} files" if len(offer.files) > 1 else offer.files[0].file_name
        total = sum(file.size or 0 for file in offer.files)
        missing = sum(map(self._blobs.bytes_missing, offer.files))
        rest = "" if missing == total else f", {missing / 1e6:,.1f} MB of it to fetch"
        return f"{name}: {num_files}, {total / 1e6:,.1f} MB from {offer.source}{rest}"

    def _write(self, name: ModelName, offer: ModelOffer, files: Sequence[StoredFile]) -> Manifest:
        manifest = Manifest(
            name=name.untagged,
            tag=name.tag,
            files=tuple(files),
            source=offer.source,
            fetched=datetime.now(UTC).isoformat(timespec="seconds"),
            format=offer.format or format_of(tuple(files)),
            quantization=offer.quantization,
            licence=offer.licence,
            num_parameters=offer.num_parameters,
            sampling=dict(offer.sampling),
        )
        manifest.check()
        write_atomically(self._manifest_path(name), manifest.to_json())
        return manifest

    def _check(self, file: StoredFile, name: ModelName | None) -> None:
        if problem := self._blobs.problem(file):
            what = f"{file.file_name} of {name}" if name else file.file_name
            is_linked = file.origin or name is None
            restore = "restore the file, or create the model again; if it was pulled, pull it again"
            advice = restore if is_linked else f"repair it with `quire pull {name}`"
            raise DamagedModel(f"{what} {problem}: {advice}.")

    def _remove_unused(self) -> int:
        self.layout.make()
        with try_locked(self._lock) as is_exclusive:
            if not is_exclusive:
                logger.info("A model is being pulled: unused files stay until the next removal.")
                return 0
            try:
                manifests = [read_manifest(path) for path in self.layout.manifests.rglob("*.json")]
            except DamagedModel as error:  # its files are unknown, so nothing may be removed
                logger.warning("No file was removed. %s", error)
                return 0
            keep = {file.digest for manifest in manifests for file in manifest.files}
            views = {manifest.identity for manifest in manifests} | {
                _view_name(model) for model in self._lookup.all() if model.about.in_place is None
            }
            return self._blobs.remove_unused(keep, views)

    def _view(self, manifest: Manifest, name: ModelName) -> Path:
        """A folder of links to the model's files under their names; for a GGUF model, its first file there."""
        for file in manifest.files:
            self._check(file, name)
        view = self.layout.views / manifest.identity
        if not view.is_dir():
            self._make_view(view, manifest)
        if manifest.sampling and not (view / GENERATION_CONFIG).exists():
            write_atomically(view / GENERATION_CONFIG, json.dumps(dict(manifest.sampling)))
        if manifest.format == "gguf":
            return view / min(file.file_name for file in manifest.files if file.role == "weights")
        return view

    def _external_view(self, model: ExternalModel) -> Path:
        """What to open of another program's model: its own files, or links to them under names that readers expect."""
        if model.about.in_place is not None:
            return model.about.in_place
        manifest = model.manifest(model.name)
        view = self.layout.views / _view_name(model)
        if not view.is_dir():
            self.layout.make()
            self._make_view(view, manifest, is_external=True)
        return view / min(file.file_name for file in manifest.files if file.role == "weights")

    def _make_view(self, view: Path, manifest: Manifest, is_external: bool = False) -> None:
        with explain_write_errors(self.layout.views):
            temporary = Path(tempfile.mkdtemp(prefix=".", dir=self.layout.views))
            for file in with_view_names(manifest.files):
                # Relative, so that the whole store can be moved.
                blob = Path("..", "..", "blobs", self.layout.blob(file.digest).name)
                (temporary / file.file_name).symlink_to(file.origin if is_external else blob)
            try:
                temporary.rename(view)
            except OSError:
                for link in temporary.iterdir():
                    link.unlink()
                temporary.rmdir()
                if not view.is_dir():  # else another process was faster, with the same links
                    raise

    def _manifest_path(self, name: ModelName) -> Path:
        return manifest_path(self.layout.manifests, name)

    @property
    def _lock(self) -> Path:
        return self.layout.locks / "store.lock"


def open_store(config: Config) -> Store:
    """The store of these settings."""
    return Store(home_folder(config), registry=config.store.registry, external=external_folders(environment()))


def _view_name(model: ExternalModel) -> str:
    """The folder name for links to an external model's files; it differs from those of views of blobs."""
    paths = sorted((file.file_name, str(file.path)) for file in model.files)
    return hashlib.sha256(json.dumps(paths).encode()).hexdigest()
