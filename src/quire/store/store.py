"""The models that this machine has, by name: pull, create, find, resolve, list, show, copy, remove, push.

A pull holds the store's lock together with others, a removal alone: so garbage is never collected under a pull whose
manifest is not written yet. It is collected after a removal, and when a name has come to stand for other files. Readers
need no lock: a manifest and a blob are there whole or not at all.
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
from .crew import Crew
from .errors import DamagedModel, ModelNotFound, writing
from .found import Found, Place
from .layout import Layout, write_whole
from .locks import locked, try_locked
from .lookup import DEFAULT_MODEL, Lookup
from .manifest import DIGEST, Manifest, StoredFile, manifest_path, read_manifest
from .names import OLLAMA, ModelName, parse_name
from .parts import GGUF, Part, as_viewed, format_of, named_apart
from .places import known_places
from .room import check_room
from .source import Offer, Progress, Source, silent

__all__ = ["DEFAULT_MODEL", "Store", "open_store"]
MADE_HERE = Offer("made here")
FILES_AT_ONCE = 4  # that come at the same time, of one model

logger = logging.getLogger(__name__)


class Store:
    """One folder of models. It has no state of its own: another process may change the folder at any time."""

    def __init__(
        self,
        home: Path,
        sources: Sequence[Source] | None = None,
        registry: str = OLLAMA,
        places: Sequence[Place] = (),
    ) -> None:
        self.layout = Layout(home)
        self.registry = registry  # of names that say none
        self._lookup = Lookup(sources, registry, places, self._names)
        self._blobs = Blobs(self.layout, self._lookup.blob)

    def pull(self, text: str, progress: Progress = silent) -> Manifest:
        """Fetch a model, or bring it up to date; every file that is there already is checked, and mended if damaged.

        One that another program keeps on this disk is referred to instead, the first time.
        """
        name = parse_name(text)
        if name.kind == "path":
            raise InvalidRequest(f"{text} is a path: it is used where it is, there is nothing to pull.", field="model")
        if not self._manifest_path(name).exists() and (found := self._lookup.find(name)):
            return self._refer(found.manifest(name), name)
        self.layout.make()
        before = self._digests(name)
        with locked(self._lock, shared=True, waiting=lambda: progress("waiting: a model is being removed", 0, None)):
            source, offer = self._lookup.offer(name)
            progress(self._announcement(name, offer), 0, None)
            check_room(self.layout.blobs, sum(map(self._blobs.room_for, offer.files)))
            crew = Crew(progress)
            brought = [partial(self._blobs.bring, source, wanted, crew.progress) for wanted in offer.files]
            manifest = self._write(name, offer, crew.run(brought, FILES_AT_ONCE))
        if before - self._digests(name):
            self._collect()
        return manifest

    def offer(self, text: str) -> Offer:
        """What a pull of this name would bring; without files if another program keeps it on this disk."""
        name = parse_name(text)
        if not self._manifest_path(name).exists() and (found := self._lookup.find(name)):
            return found.about
        return self._lookup.offer(name)[1]

    def create(
        self, text: str, parts: Sequence[Part | StoredFile], about: Offer = MADE_HERE, progress: Progress = silent
    ) -> Manifest:
        """Make a model of bytes, of the user's files, and of files of models that are in the store.

        A file on the store's own file system is used where it lies; it must then stay there, unchanged. `about` says
        what is known about the model; its files are not looked at.
        """
        name = self._own_name(text)
        self.layout.make()
        before = self._digests(name)
        with locked(self._lock, shared=True):
            self._blobs.link([part for part in parts if isinstance(part, StoredFile)])
            files = [part if isinstance(part, StoredFile) else self._blobs.take(part, progress) for part in parts]
            for file in files:
                self._check(file, name)
            if not any(file.role == "weights" for file in files):
                raise InvalidRequest(f"{name} needs weights: a GGUF file, a checkpoint folder, or another model.")
            manifest = self._write(name, about, named_apart(files))
        if before - self._digests(name):
            self._collect()
        return manifest

    def try_out(self, parts: Sequence[Part | StoredFile], check: Callable[[Path], None]) -> None:
        """Call `check` with the path of a model of these parts, which is there as long as that takes."""
        paths = {
            part.file_name: self._blobs.path_of(part) if isinstance(part, StoredFile) else part.content
            for part in parts
        }
        with tempfile.TemporaryDirectory(prefix="quire-") as folder:
            for name, path in paths.items():
                if isinstance(path, Path):
                    Path(folder, name).symlink_to(path.absolute())
            weights = sorted(part.file_name for part in parts if part.role == "weights")
            is_gguf = bool(weights) and all(name.lower().endswith(GGUF) for name in weights)
            check(Path(folder, weights[0]) if is_gguf else Path(folder))

    def add_blob(self, chunks: Iterable[bytes], digest: str | None = None) -> StoredFile:
        """Store bytes for a model that is made later; a removal before that takes them away again."""
        self.layout.make()
        with locked(self._lock, shared=True):
            found, size = self._blobs.add(chunks, digest)
        return StoredFile("weights", found, size, f"{found[:12]}.gguf")

    def find_blob(self, digest: str) -> StoredFile | None:
        """The file with this digest (64 hex digits), if some model or `add_blob` brought it."""
        blob = self.layout.blob(digest)
        if not DIGEST.fullmatch(digest) or not blob.is_file():
            return None
        return StoredFile("weights", digest, blob.stat().st_size, f"{digest[:12]}.gguf")

    def read(self, file: StoredFile) -> bytes:
        """All bytes of a small file: a template, parameters, a licence."""
        self._check(file, None)
        return self._blobs.path_of(file).read_bytes()

    def find(self, text: str) -> Path | None:
        """What to open for this name: a file or a checkpoint folder. None: it is not here, a pull may bring it."""
        name = parse_name(text)
        if name.kind == "path":
            return name.path if name.path.exists() else None
        if stored := self._stored(name):
            return self._view(read_manifest(self._manifest_path(stored)), stored)
        found = self._lookup.find(name)
        return None if found is None else self._view_of(found)

    def resolve(self, text: str, progress: Progress = silent) -> Path:
        """What to open for this name, pulled first if it is not here."""
        found = self.find(text)
        if found is not None:
            return found
        name = parse_name(text)
        if name.kind == "path":
            _, offer = self._lookup.offer(name)
            assert offer.in_place is not None, "a path is always used in place"
            return offer.in_place
        return self._view(self.pull(text, progress), name)

    def show(self, text: str) -> Manifest:
        """What is known about a model of the store, or of another program's folder."""
        name = parse_name(text)
        if stored := self._stored(name):
            return read_manifest(self._manifest_path(stored))
        if name.kind != "path" and (found := self._lookup.find(name)):
            return found.manifest(name)
        hint = "" if name.kind == "path" else self._lookup.hint(str(name), ())
        raise ModelNotFound(
            f"{text} is not in the store: see `quire list` for what is, and `quire pull` to add to it.{hint}"
        )

    def elsewhere(self) -> list[Found]:
        """Models of other programs on this disk, used where they lie; without those that the store refers to."""
        mine = self._names()
        return [found for found in self._lookup.all() if str(found.name) not in mine]

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
        name = self._own_name(target)
        self.layout.make()
        with locked(self._lock, shared=True):
            manifest = replace(self.show(source), name=name.untagged, tag=name.tag)
            self._blobs.link(manifest.files)
            write_whole(self._manifest_path(name), manifest.to_json())
        return manifest

    def push(self, text: str, progress: Progress = silent) -> int:
        """Send a model to the registry that its name says; how many bytes that one did not have."""
        manifest, name = self.show(text), parse_name(text)
        for file in manifest.files:
            self._check(file, name)
        if name.kind == "hub":
            raise InvalidRequest(f"{text} is the hub's: `quire cp` it to a name of a registry, and push that.")
        sender = import_module("quire.store.push")  # here, because it is the only way out that needs an HTTP client
        self.layout.make()
        with locked(self._lock, shared=True):
            self._blobs.link(manifest.files)
            return int(sender.push(manifest, name.at(self.registry), self._blobs, progress))

    def remove(self, text: str) -> int:
        """Forget a name, and remove the files that no other name needs. Bytes freed."""
        name = parse_name(text)
        path = self._manifest_path(name)
        if name.kind == "path" or not path.exists():
            raise ModelNotFound(f"{text} is not in the store: {self._why_not_removed(name)}")
        with writing(path.parent):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: other tags of this name are left
            for folder in path.parents[: len(name.folders)]:
                folder.rmdir()
        return self._collect()

    def _why_not_removed(self, name: ModelName) -> str:
        if name.kind != "path" and (found := self._lookup.find(name)):
            return f"{found.keeper} keeps it in {found.folder}, and {found.remove_hint} removes it there."
        return f"see `quire list` for what is.{'' if name.kind == 'path' else self._lookup.hint(str(name), ())}"

    def _names(self) -> Sequence[str]:
        return [f"{manifest.name}:{manifest.tag}" for manifest in self.list()]

    def _stored(self, name: ModelName) -> ModelName | None:
        """The name that has a manifest: as it is said, or as it is meant if it says no host."""
        spellings = () if name.kind == "path" else (name, *(each.at(self.registry) for each in name.meanings))
        return next((each for each in spellings if self._manifest_path(each).exists()), None)

    def _refer(self, manifest: Manifest, name: ModelName) -> Manifest:
        """Write a manifest of files that lie elsewhere on this disk."""
        self.layout.make()
        with locked(self._lock, shared=True):
            self._blobs.link(manifest.files)
            write_whole(self._manifest_path(name), manifest.to_json())
        return manifest

    def _digests(self, name: ModelName) -> set[str]:
        """Of the files that a name stands for; none if it is new, or if nobody can tell."""
        with suppress(FileNotFoundError, DamagedModel):
            return {file.digest for file in read_manifest(self._manifest_path(name)).files}
        return set()

    def _own_name(self, text: str) -> ModelName:
        """A name that the user may give: the hub's are the hub's, and a path is no name."""
        name = parse_name(text)
        if name.kind not in ("stored", "registry"):
            raise InvalidRequest(
                f"{text} cannot be the name of a copy or of a model made here: write name or name:tag.", field="model"
            )
        return name

    def _announcement(self, name: ModelName, offer: Offer) -> str:
        """What a pull is going to do, before it does it."""
        num_files = f"{len(offer.files)} files" if len(offer.files) > 1 else offer.files[0].file_name
        total = sum(wanted.size or 0 for wanted in offer.files)
        missing = sum(map(self._blobs.missing, offer.files))
        here = "" if missing == total else f", {missing / 1e6:,.1f} MB of it to fetch"
        return f"{name}: {num_files}, {total / 1e6:,.1f} MB from {offer.source}{here}"

    def _write(self, name: ModelName, offer: Offer, files: Sequence[StoredFile]) -> Manifest:
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
        write_whole(self._manifest_path(name), manifest.to_json())
        return manifest

    def _check(self, file: StoredFile, name: ModelName | None) -> None:
        if problem := self._blobs.problem_of(file):
            what = f"{file.file_name} of {name}" if name else file.file_name
            made = file.origin or name is None
            again = "put it back as it was, or make the model again; if it was pulled, pull it again"
            cure = again if made else f"mend it with `quire pull {name}`"
            raise DamagedModel(f"{what} {problem}: {cure}.")

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
            views = {manifest.identity for manifest in manifests} | {
                _view_name(found) for found in self._lookup.all() if found.about.in_place is None
            }
            return self._blobs.collect(keep, views)

    def _view(self, manifest: Manifest, name: ModelName) -> Path:
        """A folder with the model's files under their own names; of a GGUF model, its first file in there."""
        for file in manifest.files:
            self._check(file, name)
        view = self.layout.views / manifest.identity
        if not view.is_dir():
            self._make_view(view, manifest)
        if manifest.sampling and not (view / GENERATION_CONFIG).exists():
            write_whole(view / GENERATION_CONFIG, json.dumps(dict(manifest.sampling)))
        if manifest.format == "gguf":
            return view / min(file.file_name for file in manifest.files if file.role == "weights")
        return view

    def _view_of(self, found: Found) -> Path:
        """What to open of another program's model: its own files, or links to them under names that readers know."""
        if found.about.in_place is not None:
            return found.about.in_place
        manifest = found.manifest(found.name)
        view = self.layout.views / _view_name(found)
        if not view.is_dir():
            self.layout.make()
            self._make_view(view, manifest, is_own=False)
        return view / min(file.file_name for file in manifest.files if file.role == "weights")

    def _make_view(self, view: Path, manifest: Manifest, is_own: bool = True) -> None:
        with writing(self.layout.views):
            temporary = Path(tempfile.mkdtemp(prefix=".", dir=self.layout.views))
            for file in as_viewed(manifest.files):
                # Relative, so that the whole store can be moved.
                own = Path("..", "..", "blobs", self.layout.blob(file.digest).name)
                (temporary / file.file_name).symlink_to(own if is_own else file.origin)
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
    """The store that the settings say."""
    return Store(home_folder(config), registry=config.store.registry, places=known_places(environment()))


def _view_name(found: Found) -> str:
    """Of links to files that are not the store's: never the name of a view of the store's own blobs."""
    paths = sorted((file.file_name, str(file.path)) for file in found.files)
    return hashlib.sha256(json.dumps(paths).encode()).hexdigest()
