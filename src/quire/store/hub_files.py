"""Which files of a hub repository belong to a model: one quantization in GGUF, or else the safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from .errors import ModelNotFound, StoreError
from .model_files import GGUF, INDEX, side_role
from .names import DEFAULT_TAG, HUB, ModelName

# Without a tag, the first of these that the repository has: good quality for the size, and fast everywhere.
PREFERRED = ("Q4_K_M", "Q4_0", "Q5_K_M", "Q4_1", "Q4_K_S", "IQ4_NL", "Q8_0", "Q6_K", "MXFP4", "BF16", "F16", "F32")
QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:I?Q|TQ)\d[A-Z0-9_]*|MXFP4(?:_[A-Z0-9]+)*|BF16|FP?16|FP?32)(?=[-./]|$)", re.IGNORECASE
)
PART = re.compile(r"-\d{5}-of-\d{5}$")
SHARD = re.compile(r"model(?:-\d{5}-of-\d{5})?\.safetensors")


class HubModelFiles(NamedTuple):
    """The files of one model, in order, by their paths in the repository."""

    format: str  # gguf or safetensors
    files: tuple[str, ...]
    quantization: str = ""  # of GGUF: as in the file name

    def role(self, file: str) -> str:
        """The role of one of these files."""
        return "weights" if self.format == "gguf" else side_role(file) or "weights"


def choose_files(name: ModelName, files: Sequence[str]) -> HubModelFiles:
    """The files of the model that the tag selects. If there is none, the error lists the tags that there are."""
    by_tag = gguf_models(files)
    if not by_tag:
        return HubModelFiles("safetensors", _safetensors(name, files))
    if name.tag == DEFAULT_TAG:
        tag = next((each for each in PREFERRED if each in by_tag), next(iter(by_tag)))
    elif (tag := name.tag.upper()) not in by_tag:
        raise ModelNotFound(f"{HUB}/{name.name} has no tag {name.tag}: choose one of {', '.join(sorted(by_tag))}.")
    return HubModelFiles("gguf", by_tag[tag], tag)


def gguf_models(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The GGUF models of a repository by tag; the parts of a split one in order."""
    models: dict[tuple[str, str], list[str]] = {}  # by (quantization, name without the part number)
    for file in sorted(files):
        if file.endswith(GGUF) and "mmproj" not in file.lower():
            models.setdefault((quantization_of(file), PART.sub("", file.removesuffix(GGUF))), []).append(file)
    by_tag: dict[str, tuple[str, ...]] = {}
    for (quantization, stem), parts in models.items():
        by_tag.setdefault(quantization or PurePosixPath(stem).name.upper(), tuple(parts))
    return by_tag


def quantization_of(file_name: str) -> str:
    """The number format in a GGUF file's name, in capitals; empty if there is none."""
    matches = QUANTIZATION.findall(PART.sub("", file_name.removesuffix(GGUF)))
    last = matches[-1].upper() if matches else ""
    return {"FP16": "F16", "FP32": "F32"}.get(last, last)


def _safetensors(name: ModelName, files: Sequence[str]) -> tuple[str, ...]:
    if name.tag != DEFAULT_TAG:
        raise ModelNotFound(f"{HUB}/{name.name} has no GGUF files, so it has no tag {name.tag}: leave the tag out.")
    shards = sorted(each for each in files if SHARD.fullmatch(each))
    if not shards or "config.json" not in files:
        raise StoreError(
            f"{HUB}/{name.name} has neither GGUF files nor model.safetensors with config.json: "
            "choose a repository with the model in one of these formats."
        )
    if INDEX in files:
        shards = [INDEX, *(each for each in shards if each != "model.safetensors")]
    return (*shards, *(path for path in files if side_role(path)))
