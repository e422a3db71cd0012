"""Changes to the models of a store, for a server. They may take long: call them in a thread."""

from __future__ import annotations

from collections.abc import Iterable

from quire.store.create import (
    AdapterNotSupported,
    Check,
    base_of_blobs,
    base_of_name,
    check_preset,
    create_from_base,
    modelfile_text,
    no_check,
)
from quire.store.errors import WrongChecksum
from quire.store.names import parse_name
from quire.store.store import Store
from quire.types.errors import InvalidRequest
from quire.types.library import Change, Copy, Create, Delete, Progress, Pull, Push, Step


class StoreLibrary:
    """The library of one store. `check` raises if a model cannot be run."""

    def __init__(self, store: Store, check: Check = no_check) -> None:
        self._store = store
        self._check = check

    def modelfile(self, name: str) -> str:
        """A Modelfile that creates a model again, without paths of this machine."""
        self._refuse_path(name)
        return modelfile_text(self._store, name, shows_path=False)

    def change(self, change: Change, progress: Progress) -> None:
        """Make a change. `progress` may raise to stop it."""

        def report(what: str, done: int, total: int | None) -> None:
            progress(Step(what, done, total, digests.get(what, "")))

        digests: dict[str, str] = {}
        match change:
            case Create():
                self._create(change, progress)
            case Copy(name, target):
                self._refuse_path(name, target)
                self._store.copy(name, target)
            case Delete(name):
                self._refuse_path(name)
                self._store.remove(name)
            case Pull(name):
                self._refuse_path(name)
                progress(Step("pulling manifest"))
                digests |= {file.file_name: file.digest or "" for file in self._store.offer(name).files}
                self._store.pull(name, report)
            case Push(name):
                self._refuse_path(name)
                digests |= {file.file_name: file.digest for file in self._store.show(name).files}
                progress(Step("retrieving manifest"))
                self._store.push(name, report)

    def has_blob(self, digest: str) -> bool:
        """Is there a file with this digest (64 hex digits)?"""
        return self._store.find_blob(digest) is not None

    def add_blob(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Store a file, for a model to be created from it later."""
        try:
            self._store.add_blob(chunks, digest)
        except WrongChecksum as error:
            raise InvalidRequest(error.public, field="digest") from error

    def _create(self, change: Create, progress: Progress) -> None:
        if change.has_adapters:
            raise AdapterNotSupported
        if bool(change.base) == bool(change.files):
            raise InvalidRequest("Give one of from and files.", field="from")
        self._refuse_path(change.name)
        check_preset(change.preset)
        if change.files:
            base = base_of_blobs(self._store, change.files)
        else:
            self._refuse_path(change.base)
            base = base_of_name(self._store, change.base, lambda what, done, total: progress(Step(what, done, total)))
        progress(Step("creating the model"))
        create_from_base(self._store, change.name, base, change.preset, check=self._check)
        progress(Step("writing manifest"))

    def _refuse_path(self, *names: str) -> None:
        """Refuse paths: a server does not open files that a client names."""
        for name in names:
            if parse_name(name).kind == "path":
                raise InvalidRequest(f"{name} is a path: over HTTP, use the name of a model.", field="model")
