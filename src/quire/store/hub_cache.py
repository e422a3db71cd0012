"""The cache of the model hub's own library: what transformers, vLLM and `hf download` have fetched.

models--<organisation>--<repository>/refs/main                    the commit of the newest fetch
                                     /snapshots/<commit>/<file>   a link to a blob
                                     /blobs/<sha256, or git's id of a small file>
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .errors import BadName, StoreError
from .found import Found, FoundFile
from .hub_files import PART, Choice, choose_files, gguf_models
from .manifest import DIGEST
from .names import DEFAULT_TAG, HUB, ModelName, parse_name
from .parts import GGUF, INDEX
from .source import Offer

KEEPER = "the hub's cache"
PREFIX, JOINT = "models--", "--"


@dataclass(frozen=True, slots=True)
class HubCache:
    """One such folder; it need not be there."""

    folder: Path

    def find(self, name: ModelName) -> Found | None:
        """A repository of the hub, as far as it was fetched: of GGUF files those that are there may be chosen."""
        if name.kind != "hub":
            return None
        repository = self.folder / f"{PREFIX}{name.name.replace('/', JOINT)}"
        snapshot = _snapshot(repository)
        try:
            files = _files(snapshot) if snapshot is not None else []
            choice = choose_files(name, [file for file in files if _has_all_parts(file, files)])
        except (OSError, StoreError):
            return None
        if snapshot is None or not _is_whole(snapshot, choice):
            return None
        is_gguf = choice.format == "gguf"
        about = Offer(
            source=f"{KEEPER} in {repository}",
            in_place=snapshot / choice.files[0] if is_gguf else snapshot,
            format=choice.format,
            quantization=choice.quantization,
        )
        found = tuple(_file(choice.role(file), snapshot / file) for file in choice.files)
        return Found(name, KEEPER, repository, found, about, "`hf cache rm`")

    def all(self) -> Iterator[Found]:
        """Every repository; of one with GGUF files, each quantization that is there."""
        for repository in sorted(self.folder.glob(f"{PREFIX}*")):
            organisation, joint, word = repository.name.removeprefix(PREFIX).partition(JOINT)
            snapshot = _snapshot(repository)
            if not joint or snapshot is None:
                continue
            with suppress(BadName, OSError):
                for tag in gguf_models(_files(snapshot)) or [DEFAULT_TAG]:
                    if found := self.find(parse_name(f"{HUB}/{organisation}/{word}:{tag}")):
                        yield found

    def blob(self, digest: str) -> Path | None:
        """The file with this sha256, of any repository."""
        return next((path for path in self.folder.glob(f"{PREFIX}*/blobs/{digest}") if path.is_file()), None)


def _snapshot(repository: Path) -> Path | None:
    """The files of the newest fetch. None: there are none."""
    with suppress(OSError):
        commit = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        if commit and PurePosixPath(commit).name == commit and (repository / "snapshots" / commit).is_dir():
            return repository / "snapshots" / commit
    with suppress(OSError, ValueError):  # fetched by a revision that is no branch
        return max((repository / "snapshots").iterdir(), key=lambda each: each.stat().st_mtime)
    return None


def _files(snapshot: Path) -> list[str]:
    return sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())


def _has_all_parts(file: str, files: list[str]) -> bool:
    """Of one that is no part of a split GGUF file, yes."""
    stem = file.removesuffix(GGUF)
    if not file.endswith(GGUF) or not PART.search(stem):
        return True
    first, total = PART.sub("", stem), stem[-5:]
    return all(f"{first}-{number:05}-of-{total}{GGUF}" in files for number in range(1, int(total) + 1))


def _is_whole(snapshot: Path, choice: Choice) -> bool:
    """Is every shard there that the index names?"""
    if INDEX not in choice.files:
        return True
    try:
        shards = set(json.loads((snapshot / INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return shards <= set(choice.files)


def _file(role: str, path: Path) -> FoundFile:
    digest = path.resolve().name
    return FoundFile(role, path.name, path, digest if DIGEST.fullmatch(digest) else "")
