"""Paths on this disk: used in place, never copied."""

from __future__ import annotations

from pathlib import Path

from quire.store.errors import ModelNotFound
from quire.store.names import ModelName
from quire.store.source import ModelOffer, Progress, SourceFile


class Local:
    """The user's files and folders."""

    def claims(self, name: ModelName) -> bool:
        """Every path."""
        return name.kind == "path"

    def offer(self, name: ModelName) -> ModelOffer:
        """The file or folder itself. Its content is checked when the weights are read."""
        if not name.path.exists():
            raise ModelNotFound(f"There is no file or folder {name.name}: check the path.")
        return ModelOffer(source="local", in_place=name.path)

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Never called: an offer in place has no files."""
        raise AssertionError("a local model is used in place")


SOURCE = Local()
