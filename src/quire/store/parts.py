"""Models that are made here: of bytes, of the user's own files, and of files that are in the store already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quire.text.preset import FILES
from quire.text.template_files import MORE, flat_name, name_of_template

from .errors import ModelNotFound, StoreError
from .manifest import StoredFile

GGUF = ".gguf"
SAFETENSORS = ".safetensors"
INDEX = "model.safetensors.index.json"
SIDE_FILES = {  # what belongs to a checkpoint beside its weights
    "config.json": "config",
    "generation_config.json": "config",
    "tokenizer.json": "tokenizer",
    "tokenizer_config.json": "tokenizer",
    "tokenizer.model": "tokenizer",
    "special_tokens_map.json": "tokenizer",
    "added_tokens.json": "tokenizer",
    "vocab.json": "tokenizer",
    "merges.txt": "tokenizer",
    "chat_template.jinja": "tokenizer",
    "chat_template.json": "tokenizer",
}


def side_role(path: str) -> str | None:
    """What a file of a checkpoint is for, by its path there. None: it does not belong beside weights."""
    return SIDE_FILES.get(path) or ("tokenizer" if name_of_template(path) else None)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a model to be made: a file of the user (used in place where that can be), or bytes."""

    role: str
    file_name: str
    content: bytes | Path


def parts_of(path: Path) -> tuple[Part, ...]:
    """What a GGUF file (with the other parts of a split one) or a checkpoint folder consists of."""
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise ModelNotFound(f"There is no file or folder {path}: check the path.")
    head, split, total = path.stem.rpartition("-of-")
    first, _, number = head.rpartition("-")
    if split and number.isdigit() and total.isdigit():
        names = [f"{first}-{each:0{len(number)}}-of-{total}{path.suffix}" for each in range(1, int(total) + 1)]
        missing = [name for name in names if not path.with_name(name).is_file()]
        if missing:
            raise StoreError(
                f"{path.name} is one of {int(total)} files, and {missing[0]} is not beside it: bring it too."
            )
        return tuple(Part("weights", name, path.with_name(name)) for name in names)
    return (Part("weights", path.name, path),)


def _of_folder(folder: Path) -> tuple[Part, ...]:
    names = sorted(each.name for each in folder.iterdir() if each.is_file())
    weights = [name for name in names if name.endswith(SAFETENSORS) or name == INDEX]
    if not weights or "config.json" not in names:
        raise StoreError(
            f"{folder} is no checkpoint: it has no {SAFETENSORS} files with a config.json. Give the path of a GGUF "
            "file, or of a folder that has them."
        )
    paths = sorted(each.relative_to(folder).as_posix() for each in folder.glob(f"{MORE}/*.jinja"))
    side = [path for path in (*names, *paths) if side_role(path)]
    return tuple(Part(side_role(path) or "weights", flat_name(path), folder / path) for path in (*weights, *side))


def as_viewed(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Under the names that whoever opens the model looks for: those of a preset are fixed."""
    return named_apart([replace(file, file_name=FILES.get(file.role, file.file_name)) for file in files])


def named_apart(files: Sequence[StoredFile]) -> list[StoredFile]:
    """The same files; one whose name is taken by an earlier one gets a number."""
    named: dict[str, StoredFile] = {}
    for file in files:
        name, stem, suffix, count = file.file_name, Path(file.file_name).stem, Path(file.file_name).suffix, 1
        while name in named:
            count += 1
            name = f"{stem}-{count}{suffix}"
        named[name] = replace(file, file_name=name)
    return list(named.values())


def format_of(files: tuple[StoredFile, ...]) -> str:
    """The container of a model's weights, by their names."""
    weights = [file.file_name for file in files if file.role == "weights"]
    return "gguf" if weights and all(name.lower().endswith(GGUF) for name in weights) else "safetensors"
