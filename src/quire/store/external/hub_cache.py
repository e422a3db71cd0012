"""The cache of huggingface_hub: models that transformers, vLLM and `hf download` have fetched.

models--<organisation>--<repository>/refs/main                    the commit of the latest download
                                     /snapshots/<commit>/<file>   a link to a blob
                                     /blobs/<sha256, or git's id of a small file>
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quire.store.errors import BadName, StoreError
from quire.store.external.model import ExternalFile, ExternalModel
from quire.store.hub_files import HubModelFiles, choose_files, gguf_models
from quire.store.manifest import DIGEST
from quire.store.model_files import GGUF, INDEX, flat_path, part_names
from quire.store.names import DEFAULT_TAG, HUB, ModelName, parse_name
from quire.store.source import ModelOffer

PROGRAM = "the hub's cache"
PREFIX, JOINT = "models--", "--"


@dataclass(frozen=True, slots=True)
class HubCache:
    """One such folder; it need not exist."""

    folder: Path

    def find(self, name: ModelName) -> ExternalModel | None:
        """A repository of the hub, if all files of the model were fetched; of its GGUF models, one that is there."""
        if name.kind != "hub":
            return None
        repository = self.folder / f"{PREFIX}{name.name.replace('/', JOINT)}"
        snapshot = _snapshot(repository)
        try:
            files = _files(snapshot) if snapshot is not None else []
            model = choose_files(name, [file for file in files if _has_all_parts(file, files)])
        except (OSError, StoreError):
            return None
        if snapshot is None or not _is_complete(snapshot, model):
            return None
        is_gguf = model.format == "gguf"
        about = ModelOffer(
            source=f"{PROGRAM} in {repository}",
            in_place=snapshot / model.files[0] if is_gguf else snapshot,
            format=model.format,
            quantization=model.quantization,
        )
        found = tuple(_file(model.role(file), flat_path(file), snapshot / file) for file in model.files)
        return ExternalModel(name, PROGRAM, repository, found, about, "`hf cache rm`")

    def all(self) -> Iterator[ExternalModel]:
        """Every repository; for one with GGUF files, every quantization that is there."""
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
        """The file with this sha256, in any repository."""
        return next((path for path in self.folder.glob(f"{PREFIX}*/blobs/{digest}") if path.is_file()), None)


def _snapshot(repository: Path) -> Path | None:
    """The folder of the latest download. None: there is none."""
    with suppress(OSError):
        commit = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        if commit and PurePosixPath(commit).name == commit and (repository / "snapshots" / commit).is_dir():
            return repository / "snapshots" / commit
    with suppress(OSError, ValueError):  # fetched by commit, without a branch
        return max((repository / "snapshots").iterdir(), key=lambda each: each.stat().st_mtime)
    return None


def _files(snapshot: Path) -> list[str]:
    return sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())


def _has_all_parts(file: str, files: list[str]) -> bool:
    """Are all parts of this split GGUF file there? True for a file that is not split."""
    return not file.endswith(GGUF) or all(part in files for part in part_names(file))


def _is_complete(snapshot: Path, model: HubModelFiles) -> bool:
    """Are all shards there that the index names?"""
    if INDEX not in model.files:
        return True
    try:
        shards = set(json.loads((snapshot / INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return shards <= set(model.files)


def _file(role: str, flat: str, path: Path) -> ExternalFile:
    digest = path.resolve().name
    return ExternalFile(role, PurePosixPath(flat).name, path, digest if DIGEST.fullmatch(digest) else "")
