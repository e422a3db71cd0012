"""What was found fastest on a GPU, on disk: a JSON file for each GPU, torch, triton and text of our kernels.

It is written beside its name and renamed, so it is whole or not there. A file that is damaged, or of something else, is
as good as none: one line of the log says so.
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

from .tiles import BUCKETS, KINDS, Choice, Key

logger = logging.getLogger(__name__)

KERNELS = (stream.__file__,)  # whose text decides what is fast
LIBRARY = "library"


class Foreign(Exception):
    """The file is not such a table, or not of this GPU. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class MadeFor:
    """All that the fastest way depends on, the product aside."""

    gpu: str
    torch: str
    triton: str
    kernels: str

    @classmethod
    def here(cls, gpu: str) -> MadeFor:
        """A GPU of this name, with what is installed."""
        return cls(gpu, str(torch.__version__), triton.__version__, _digest())


@cache
def _digest() -> str:
    texts = (Path(each).read_bytes() for each in KERNELS)
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class TunedTable:
    """The table of one GPU. Several processes may read and add to it at once."""

    folder: Path
    made_for: MadeFor

    @property
    def path(self) -> Path:
        """The file, whether it is there or not."""
        words = (self.made_for.gpu, "torch", self.made_for.torch, "triton", self.made_for.triton, self.made_for.kernels)
        return self.folder / (re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).lower() + ".json")

    def read(self) -> dict[Key, Choice]:
        """What is there. Never fails."""
        try:
            return self._parse(json.loads(self.path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError, Foreign) as error:
            logger.warning("the tuned products in %s are not used: %s", self.path, error)
            return {}

    def add(self, found: Mapping[Key, Choice]) -> None:
        """Put these beside, or in the place of, what is there. If the disk does not take them, the log says so."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._write(self.read() | dict(found))
        except OSError as error:
            logger.warning("the tuned products are not kept in %s: %s", self.folder, error.strerror or error)

    def _parse(self, content: Any) -> dict[Key, Choice]:
        if not isinstance(content, dict) or content.get("made_for") != asdict(self.made_for):
            raise Foreign("it was made for another GPU, by other kernels, or by somebody else")
        products = content.get("products")
        if not isinstance(products, list):
            raise Foreign("it has no products")
        return dict(map(_read_one, products))

    def _write(self, products: Mapping[Key, Choice]) -> None:
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
    def _alone(self) -> Iterator[None]:
        """No other process adds meanwhile: what it has added is read, and not lost."""
        with self.path.with_suffix(".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _as_json(key: Key, choice: Choice) -> dict[str, Any]:
    kind = next((name for name, each in KINDS.items() if type(choice) is each), LIBRARY)
    return key._asdict() | {"by": kind} | ({} if choice is None else {"tile": choice._asdict()})


def _read_one(entry: Any) -> tuple[Key, Choice]:
    """A product and its choice. Foreign if it is not one that the kernel multiplies rightly."""
    try:
        key = Key(*(entry[name] for name in Key._fields))
        choice = None if entry["by"] == LIBRARY else KINDS[entry["by"]](**entry["tile"])
        is_right = key.tokens in BUCKETS and (choice is None or key.suits(choice))
    except (TypeError, KeyError, ValueError) as error:
        raise Foreign(f"{entry!r:.100} is not a product") from error
    if not is_right:
        raise Foreign(f"{entry!r:.200} cannot be multiplied so")
    return key, choice
