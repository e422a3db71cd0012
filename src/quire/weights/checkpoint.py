"""A model on disk: a GGUF file (or its parts), a safetensors file, or a folder with config.json and safetensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any, Literal

from .container import Container, Tensor
from .errors import CheckpointNotFound, CorruptCheckpoint, UnsupportedCheckpoint
from .gguf import MAGIC, read_gguf
from .judged_answers import with_answers
from .mapped_file import MappedFile, map_file, read_text
from .safetensors import parse_object, read_safetensors
from .sentence_modules import SentenceModule, read_modules

CONFIG, GENERATION, ALIGNMENT = "config.json", "generation_config.json", "alignment_heads"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
GGUF_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
LFS_POINTER = b"version https://git-lfs"

FILE_FACTS = Struct("<QqQ")
NUM_SAMPLES, SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model's weights and what the files say about them."""

    path: Path  # as the user specified it
    container: Literal["gguf", "safetensors", "dummy"]  # dummy: config.json alone; the model gets random weights
    metadata: Mapping[str, Any]  # GGUF: the file's keys, arrays as tuples; else config.json, {} if there is none
    tensors: Mapping[str, Tensor]
    files: tuple[Container, ...]
    modules: tuple[SentenceModule, ...] = ()  # of a sentence-transformers folder; their tensors are their own

    def release_pages(self) -> None:
        """Release the files' pages from memory, once a device holds its own copy of the weights."""
        for part in self.files:
            part.file.release_pages()

    def digest(self, with_times: bool = True) -> str:
        """Return a cache key for anything derived from these weights, in milliseconds: 64 hex digits.

        It covers, for every file, the size, the modification time, the whole header and 64 samples of 4 KB; and
        config.json. The header alone does not distinguish a model from its fine-tune, the samples do; the time detects
        an edit between samples. File and folder names are not included. It is not collision-resistant against an
        attacker. `with_times`: False leaves the times out, so that copies on two machines have the same digest.
        """
        state = hashlib.sha256(b"quire checkpoint 1")
        for part in self.files:
            file, start = part.file, part.header_bytes
            state.update(FILE_FACTS.pack(file.num_bytes, file.modified_ns if with_times else 0, start))
            state.update(file.buffer[:start])
            stride = max(SAMPLE_BYTES, (file.num_bytes - start) // NUM_SAMPLES)
            for offset in range(start, file.num_bytes, stride):
                state.update(file.buffer[offset : offset + SAMPLE_BYTES])
        if self.container != "gguf":
            said = (self.metadata, *((each.kind, each.config) for each in self.modules))
            state.update(repr(said if self.modules else self.metadata).encode("utf-8", "backslashreplace"))
        return state.hexdigest()


def open_checkpoint(path: str | Path, load_format: str = "auto") -> Checkpoint:
    """Open the file or folder at `path`. Reads headers only; every error is a CheckpointError.

    "dummy": only config.json is read; `models` makes random tensors for it.
    """
    path = Path(path)
    if load_format == "dummy":
        config = path / CONFIG if path.is_dir() else path.parent / CONFIG
        return Checkpoint(path, "dummy", _read_config(config), {}, ())
    if path.is_dir():
        return with_answers(_with_modules(_open_folder(path), read_modules(path)))
    file = map_file(path)
    if _is_gguf(file):
        return with_answers(_open_gguf(path, file))
    if _is_safetensors(file):
        config = path.parent / CONFIG
        found = _read_config(config) if config.is_file() else {}
        return with_answers(_safetensors(path, read_safetensors(file), found))
    raise _unknown_file(file)


def _with_modules(model: Checkpoint, modules: tuple[SentenceModule, ...]) -> Checkpoint:
    """The checkpoint with the modules that follow the model."""
    files = tuple(each.file for each in modules if each.file is not None)
    return replace(model, files=model.files + files, modules=modules)


def _is_gguf(file: MappedFile) -> bool:
    return file.buffer[:4] == MAGIC


def _is_safetensors(file: MappedFile) -> bool:
    """Recognize the file by its name, or, in a content-addressed store, by the brace that opens the header."""
    return (file.path.suffix == ".safetensors" and not _is_pointer(file)) or file.buffer[8:10] == b'{"'


def _is_pointer(file: MappedFile) -> bool:
    return file.buffer[: len(LFS_POINTER)] == LFS_POINTER


def _unknown_file(file: MappedFile) -> CorruptCheckpoint | UnsupportedCheckpoint:
    if _is_pointer(file):
        advice = "Fetch the file itself (`git lfs pull`), or download it again."
        return CorruptCheckpoint(file.path, "it is a Git LFS pointer, not the model", advice)
    if file.path.suffix == ".gguf":
        return CorruptCheckpoint(file.path, "it does not begin with the letters GGUF")
    advice = "Quire reads GGUF files and safetensors: get the model in one of them, or convert it."
    return UnsupportedCheckpoint(file.path, "it is neither GGUF nor safetensors", advice)


def _open_gguf(path: Path, file: MappedFile) -> Checkpoint:
    first = read_gguf(file)
    num_parts = first.metadata.get("split.count", 1)
    if not isinstance(num_parts, int):
        raise CorruptCheckpoint(path, "the metadata key 'split.count' is not a number")
    parts = (first,) if num_parts in (0, 1) else _read_parts(first, num_parts)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise CorruptCheckpoint(part.file.path, f"tensor {name!r} is in another part too")
            tensors[name] = tensor
    return Checkpoint(path, "gguf", parts[0].metadata, tensors, parts)


def _read_parts(one: Container, num_parts: int) -> tuple[Container, ...]:
    """All parts of a split model, in order. The first one has the metadata."""
    path = one.file.path
    match = GGUF_PART.fullmatch(path.name)
    if match is None or int(match["count"]) != num_parts:
        advice = "Give all parts the names that they were published with: NAME-00001-of-00003.gguf, and so on."
        raise CorruptCheckpoint(
            path, f"it is a part of a model in {num_parts} files, and its name does not say so", advice
        )
    siblings = [
        path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf") for number in range(1, num_parts + 1)
    ]
    for sibling in siblings:
        if not sibling.exists():
            raise CheckpointNotFound(
                sibling, "this part of the model is missing", "Download all parts into one folder."
            )
    return tuple(one if sibling == path else read_gguf(map_file(sibling)) for sibling in siblings)


def _open_folder(folder: Path) -> Checkpoint:
    if not (folder / CONFIG).is_file():
        raise CheckpointNotFound(folder, f"this folder has no {CONFIG}", _suggestion(folder))
    config = _read_config(folder / CONFIG)
    if config.get("model_type") == "whisper" and (folder / GENERATION).is_file():
        heads = _read_config(folder / GENERATION).get(ALIGNMENT)  # a fact about the weights, which is stored there
        config |= {} if heads is None else {ALIGNMENT: heads}
    if (folder / INDEX).is_file():
        return _open_shards(folder, config)
    candidates = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if len(candidates) == 1:
        return _safetensors(folder, read_safetensors(map_file(candidates[0])), config)
    problem = f"this folder has neither {SINGLE} nor {INDEX}"
    raise CheckpointNotFound(folder, problem, _suggestion(folder))


def _open_shards(folder: Path, config: dict[str, Any]) -> Checkpoint:
    index = folder / INDEX
    weight_map = parse_object(index, read_text(index), "the index").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CorruptCheckpoint(index, "it has no valid weight_map")
    shards: dict[str, Container] = {}
    for name in sorted(set(weight_map.values())):
        # The index is untrusted: it may only name files in this folder.
        if not name or Path(name).name != name or "\0" in name:
            raise CorruptCheckpoint(index, f"it names the file {name!r}, which is not in this folder")
        if not (folder / name).is_file():
            raise CheckpointNotFound(folder / name, f"this file, named in {INDEX}, is missing", "Download it again.")
        shards[name] = read_safetensors(map_file(folder / name))
    tensors: dict[str, Tensor] = {}
    for name, shard in weight_map.items():
        if name not in shards[shard].tensors:
            advice = "The files are not of one version: download all of them again."
            raise CorruptCheckpoint(folder / shard, f"tensor {name!r}, listed in {INDEX}, is not in it", advice)
        tensors[name] = shards[shard].tensors[name]
    return Checkpoint(folder, "safetensors", config, tensors, tuple(shards.values()))


def _safetensors(path: Path, part: Container, config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(path, "safetensors", config, part.tensors, (part,))


def _read_config(path: Path) -> dict[str, Any]:
    return parse_object(path, read_text(path), "the file")


def _suggestion(folder: Path) -> str:
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if files:
        return f"Give the path of a file in it: {', '.join(files[:5])}."
    return "Give a folder with config.json and safetensors files, or a GGUF file."
