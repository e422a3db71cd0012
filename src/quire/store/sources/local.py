"""A path on this disk: used where it is, never copied."""

from __future__ import annotations

from pathlib import Path

from quire.store.errors import ModelNotFound
from quire.store.names import ModelName
from quire.store.source import Offer, Progress, Wanted


class Local:
    """Files and folders of the user."""

    def claims(self, name: ModelName) -> bool:
        """Every path."""
        return name.kind == "path"

    def offer(self, name: ModelName) -> Offer:
        """The file or folder itself. What is in it, the readers of weights will judge."""
        if not name.path.exists():
            raise ModelNotFound(f"There is no file or folder {name.name}: check the path.")
        return Offer(source="local", in_place=name.path)

    def fetch(self, wanted: Wanted, partial: Path, progress: Progress) -> None:
        """Never asked: an offer in place has no files to bring."""
        raise AssertionError("a local model is used in place")


SOURCE = Local()
