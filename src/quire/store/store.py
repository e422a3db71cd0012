"""The models that this machine has, by name: pull, create, find, resolve, list, show, copy, remove, push.

A pull holds the store's lock together with others, a removal alone: so garbage is never collected under a pull whose
manifest is not written yet. It is collected after a removal, and when a name has come to stand for other files. Readers
need no lock: a manifest and a blob are there whole or not at all.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path

from quire.config import Config, home_folder
from quire.text.sampling_defaults import GENERATION_CONFIG
from quire.types.errors import InvalidRequest

from .blobs import Blobs
from .crew import Crew
from .errors import DamagedModel, ModelNotFound, Unreachable, writing
from .layout import Layout, write_whole
from .locks import locked, try_locked
from .manifest import DIGEST, Manifest, StoredFile, manifest_path, read_manifest
from .names import OLLAMA, ModelName, parse_name
from .parts import Part, as_viewed, format_of, named_apart
from .room import check_room
from .source import Offer, Progress, Source, all_sources, silent

DEFAULT_MODEL = "smollm2:135m"
MADE_HERE = Offer("made here")
FILES_AT_ONCE = 4  # that come at the same time, of one model

logger = logging.getLogger(__name__)


class Store:
    """One folder of models. It has no state of its own: another process may change the folder at any time."""

    def __init__(self, home: Path, sources: Sequence[Source] | None = None, registry: str = OLLAMA) -> None:
        self.layout = Layout(home)
        self.registry = registry  # of names that say none
        self._blobs = Blobs(self.layout)
        self._sources = sources

    def pull(self, text: str, progress: Progress = silent) -> Manifest:
        """Fetch a model, or bring it up to date; every file that is there already is checked, and mended if damaged."""
        name = parse_name(text)
        if name.kind == "path":
            raise InvalidRequest(f"{text} is a path: it is used where it is, there is nothing to pull.", field="model")
        source, asked = self._source_of(name)
        self.layout.make()
        before = self._digests(name)
        with locked(self._lock, shared=True, waiting=lambda: progress("waiting: a model is being removed", 0, None)):
            offer = self._offer(source, asked, name)
            progress(self._announcement(name, offer), 0, None)
            check_room(self.layout.blobs, sum(map(self._blobs.missing, offer.files)))
            crew = Crew(progress)
            brought = [partial(self._blobs.bring, source, wanted, crew.progress) for wanted in offer.files]
            manifest = self._write(name, offer, crew.run(brought, FILES_AT_ONCE))
        if before - self._digests(name):
            self._collect()
        return manifest

    def offer(self, text: str) -> Offer:
        """What a pull of this name would bring."""
        name = parse_name(text)
        source, asked = self._source_of(name)
        return self._offer(source, asked, name)

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
            files = [part if isinstance(part, StoredFile) else self._blobs.take(part, progress) for part in parts]
            for file in files:
                self._check(file, name)
            if not any(file.role == "weights" for file in files):
                raise InvalidRequest(f"{name} needs weights: a GGUF file, a checkpoint folder, or another model.")
            manifest = self._write(name, about, named_apart(files))
        if before - self._digests(name):
            self._collect()
        return manifest

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
        return self.layout.blob(file.digest).read_bytes()

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
            offer = self._source_of(name)[0].offer(name)
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
        name = self._own_name(target)
        self.layout.make()
        with locked(self._lock, shared=True):
            manifest = replace(self.show(source), name=_untagged(name), tag=name.tag)
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
        with locked(self._lock, shared=True):
            return int(sender.push(manifest, name.at(self.registry), self._blobs, progress))

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

    def _offer(self, source: Source, asked: ModelName, name: ModelName) -> Offer:
        """What the source has; of a name that nobody but the registry may know, how else it could be meant."""
        try:
            return source.offer(asked)
        except ModelNotFound as error:
            if asked == name:
                raise
            raise ModelNotFound(_no_source(name, f" on {asked.host}")) from error
        except Unreachable as error:
            if asked == name:
                raise
            raise Unreachable(f"{name} is not here, and {error.public}") from error

    def _announcement(self, name: ModelName, offer: Offer) -> str:
        """What a pull is going to do, before it does it."""
        num_files = f"{len(offer.files)} files" if len(offer.files) > 1 else offer.files[0].file_name
        total = sum(wanted.size or 0 for wanted in offer.files)
        missing = sum(map(self._blobs.missing, offer.files))
        here = "" if missing == total else f", {missing / 1e6:,.1f} MB of it to fetch"
        return f"{name}: {num_files}, {total / 1e6:,.1f} MB from {offer.source}{here}"

    def _write(self, name: ModelName, offer: Offer, files: Sequence[StoredFile]) -> Manifest:
        manifest = Manifest(
            name=_untagged(name),
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
            cure = "put it back as it was, or make the model again" if made else f"mend it with `quire pull {name}`"
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
            return self._blobs.collect(keep, {manifest.identity for manifest in manifests})

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

    def _make_view(self, view: Path, manifest: Manifest) -> None:
        with writing(self.layout.views):
            temporary = Path(tempfile.mkdtemp(prefix=".", dir=self.layout.views))
            for file in as_viewed(manifest.files):
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

    def _source_of(self, name: ModelName) -> tuple[Source, ModelName]:
        """Who has the model, and what to ask for there: a name that nobody claims as it is belongs to the registry."""
        sources = all_sources() if self._sources is None else self._sources
        for asked in (name, name.at(self.registry)):
            for source in sources:
                if source.claims(asked):
                    return source, asked
        raise ModelNotFound(_no_source(name))

    def _manifest_path(self, name: ModelName) -> Path:
        return manifest_path(self.layout.manifests, name)

    @property
    def _lock(self) -> Path:
        return self.layout.locks / "store.lock"


def _untagged(name: ModelName) -> str:
    return str(replace(name, tag=""))


def open_store(config: Config) -> Store:
    """The store that the settings say."""
    return Store(home_folder(config), registry=config.store.registry)


def _no_source(name: ModelName, place: str = "") -> str:
    if Path(name.name).exists():
        return f"{name} is not a model that Quire knows. For the file or folder of that name here, write ./{name.name}"
    repository = name.name if "/" in name.name else "organisation/name"
    return (
        f"There is no model {name}{place}. Try {DEFAULT_MODEL}, a repository of the model hub (hf.co/{repository}), "
        "or the path of a GGUF file."
    )
