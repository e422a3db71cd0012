"""The files that make up a model: their roles, and the files of a new model that are not in the store yet."""

from __future__ import annotations

import re
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
SPLIT = re.compile(r"-(\d+)-of-(\d+)$")  # at the end of the stem of a split file
SIDE_FILES = {  # files of a checkpoint beside its weights, and their roles
    "config.json": "config",
    "generation_config.json": "config",
    "tokenizer.json": "tokenizer",
    "tokenizer_config.json": "tokenizer",
    "tokenizer.model": "tokenizer",
    "tiktoken.model": "tokenizer",
    "special_tokens_map.json": "tokenizer",
    "added_tokens.json": "tokenizer",
    "vocab.json": "tokenizer",
    "merges.txt": "tokenizer",
    "chat_template.jinja": "tokenizer",
    "chat_template.json": "tokenizer",
    **dict.fromkeys(("source.spm", "target.spm", "target_vocab.json"), "tokenizer"),  # Marian
    **dict.fromkeys(("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json",
                     "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"), "config"),
    "preprocessor_config.json": "config",  # speech
    "README.md": "readme",  # says of some rerankers what they are
}  # fmt: skip
# Files of a module of sentence-transformers, such as 1_Pooling/config.json; in the store 1_Pooling.config.json.
MODULE = re.compile(r"(\d+_\w+)[/.](config\.json|model\.safetensors)")


def side_role(path: str) -> str | None:
    """The role of a checkpoint's file, by its path there. None: it is weights, or not part of the model."""
    if MODULE.fullmatch(path):
        return "module"
    return SIDE_FILES.get(path) or ("tokenizer" if name_of_template(path) else None)


def flat_path(path: str) -> str:
    """The name of a checkpoint's file in the store, which has no subfolders; other paths are unchanged."""
    found = MODULE.fullmatch(path)
    return f"{found[1]}.{found[2]}" if found else flat_name(path)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file of a model that is being created: bytes, or a file of the user, used in place if possible."""

    role: str
    file_name: str
    content: bytes | Path


def files_at(path: Path) -> tuple[NewFile, ...]:
    """The files of the model at a path: a GGUF file, all parts of a split one, or a checkpoint folder."""
    if path.is_dir():
        return _files_of_folder(path)
    if not path.is_file():
        raise ModelNotFound(f"There is no file or folder {path}: check the path.")
    names = part_names(path.name)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise StoreError(
            f"{path.name} is one of {len(names)} parts, and {missing[0]} is missing: put it into the same folder."
        )
    return tuple(NewFile("weights", name, path.with_name(name)) for name in names)


def part_names(file_name: str) -> list[str]:
    """The names of all parts of a split file (model-00001-of-00003.gguf), or the name itself if it is not split."""
    stem, _, suffix = file_name.rpartition(".")
    match = SPLIT.search(stem)
    if match is None:
        return [file_name]
    start, width, total = stem[: match.start()], len(match[1]), match[2]
    return [f"{start}-{number:0{width}}-of-{total}.{suffix}" for number in range(1, int(total) + 1)]


def _files_of_folder(folder: Path) -> tuple[NewFile, ...]:
    names = sorted(each.name for each in folder.iterdir() if each.is_file())
    weights = [name for name in names if (name.endswith(SAFETENSORS) and not side_role(name)) or name == INDEX]
    if not weights or "config.json" not in names:
        raise StoreError(
            f"{folder} is not a checkpoint: it has no {SAFETENSORS} files with a config.json. Give the path of a "
            "folder that has them, or of a GGUF file."
        )
    inner = (*folder.glob(f"{MORE}/*.jinja"), *folder.glob("[0-9]*/*"))
    paths = sorted(each.relative_to(folder).as_posix() for each in inner)
    side = [path for path in (*names, *paths) if side_role(path)]
    return tuple(NewFile(side_role(path) or "weights", flat_path(path), folder / path) for path in (*weights, *side))


def with_view_names(files: Sequence[StoredFile]) -> list[StoredFile]:
    """The files under the names that readers expect: those of a preset are fixed."""
    return with_unique_names([replace(file, file_name=FILES.get(file.role, file.file_name)) for file in files])


def with_unique_names(files: Sequence[StoredFile]) -> list[StoredFile]:
    """The files, with a number added to a name that an earlier file has."""
    by_name: dict[str, StoredFile] = {}
    for file in files:
        name, stem, suffix, count = file.file_name, Path(file.file_name).stem, Path(file.file_name).suffix, 1
        while name in by_name:
            count += 1
            name = f"{stem}-{count}{suffix}"
        by_name[name] = replace(file, file_name=name)
    return list(by_name.values())


def format_of(files: tuple[StoredFile, ...]) -> str:
    """The container format of a model's weights, by their file names."""
    weights = [file.file_name for file in files if file.role == "weights"]
    return "gguf" if weights and all(name.lower().endswith(GGUF) for name in weights) else "safetensors"
