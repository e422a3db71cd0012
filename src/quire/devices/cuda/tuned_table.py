"""The fastest tiles on a GPU, on disk: a JSON file for each GPU, torch, triton and source of our kernels.

It is written to a temporary name and renamed, so it is complete or absent. A damaged or foreign file is ignored, and
logged once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton

from quire.devices._triton import stream

from .tiles import BUCKETS, KINDS, ProductKey, TileChoice

logger = logging.getLogger(__name__)

KERNELS = (stream.__file__,)  # sources whose change invalidates the table
LIBRARY = "library"


class InvalidTable(Exception):
    """The file is not a valid table for this GPU. The message says why."""


@dataclass(frozen=True, slots=True)
class TuningTarget:
    """Everything that the fastest tile depends on, apart from the product."""

    gpu: str
    torch: str
    triton: str
    kernels: str

    @classmethod
    def here(cls, gpu: str) -> TuningTarget:
        """Return the target for a GPU of this name and the installed packages."""
        return cls(gpu, str(torch.__version__), triton.__version__, _digest())


@cache
def _digest() -> str:
    texts = (Path(each).read_bytes() for each in KERNELS)
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class TunedTable:
    """The table of one GPU. Several processes may read it and add to it at once."""

    folder: Path
    made_for: TuningTarget

    @property
    def path(self) -> Path:
        """The file, whether or not it exists."""
        words = (self.made_for.gpu, "torch", self.made_for.torch, "triton", self.made_for.triton, self.made_for.kernels)
        return self.folder / (re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).lower() + ".json")

    def read(self) -> dict[ProductKey, TileChoice]:
        """Return the choices in the file. Never fails."""
        try:
            return self._parse(json.loads(self.path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError, InvalidTable) as error:
            logger.warning("the tuned products in %s are not used: %s", self.path, error)
            return {}

    def add(self, found: Mapping[ProductKey, TileChoice]) -> None:
        """Add or replace choices. An error of the disk is logged."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._lock():
                self._write(self.read() | dict(found))
        except OSError as error:
            logger.warning("the tuned products are not kept in %s: %s", self.folder, error.strerror or error)

    def _parse(self, content: Any) -> dict[ProductKey, TileChoice]:
        if not isinstance(content, dict) or content.get("made_for") != asdict(self.made_for):
            raise InvalidTable("it was made for another GPU or other kernels, or is not a table")
        products = content.get("products")
        if not isinstance(products, list):
            raise InvalidTable("it has no products")
        return dict(map(_read_one, products))

    def _write(self, products: Mapping[ProductKey, TileChoice]) -> None:
        listed = [_as_json(key, products[key]) for key in sorted(products)]
        content = {"made_for": asdict(self.made_for), "products": listed}
        handle, part = tempfile.mkstemp(".part", dir=self.folder)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(handle)
            Path(part).replace(self.path)
        except BaseException:
            Path(part).unlink()
            raise

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock out other writers, so that their additions are not lost."""
        with self.path.with_suffix(".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _as_json(key: ProductKey, choice: TileChoice) -> dict[str, Any]:
    kind = next((name for name, each in KINDS.items() if type(choice) is each), LIBRARY)
    return key._asdict() | {"by": kind} | ({} if choice is None else {"tile": choice._asdict()})


def _read_one(entry: Any) -> tuple[ProductKey, TileChoice]:
    """Return a product and its choice. Raises InvalidTable unless the kernel supports it."""
    try:
        key = ProductKey(*(entry[name] for name in ProductKey._fields))
        choice = None if entry["by"] == LIBRARY else KINDS[entry["by"]](**entry["tile"])
        is_right = key.tokens in BUCKETS and (choice is None or key.supports(choice))
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidTable(f"{entry!r:.100} is not a product") from error
    if not is_right:
        raise InvalidTable(f"{entry!r:.200} is not supported by the kernel")
    return key, choice
