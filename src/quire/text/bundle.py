"""A model's text side as bytes: the files and the metadata that `ModelText` is made from.

A gateway gets it from a server and encodes prompts exactly as that server does. Equal bytes make equal tokens, so the
digest of the bytes says whether the tokens that a gateway sends can be used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from quire.text.checkpoint_files import CONFIG, GENERATION, SOURCE_PIECES, TIKTOKEN, TOKENIZER, VOCAB
from quire.text.errors import UnsupportedTokenizer
from quire.text.preset import FILES
from quire.text.template_files import DEFAULT_FILE, LEGACY_FILE, MORE

OF_FOLDER = (
    *(TOKENIZER, TIKTOKEN, CONFIG, "config.json", "special_tokens_map.json", "added_tokens.json"),
    *(DEFAULT_FILE, LEGACY_FILE, SOURCE_PIECES, VOCAB),
)
TEMPLATES = ("chat_template.*.jinja", f"{MORE}/*.jinja")
OF_GGUF = ("tokenizer.", "general.")  # how the keys of its metadata begin that text needs


@dataclass(frozen=True, slots=True)
class TextBundle:
    """What `ModelText.from_files` takes."""

    is_gguf: bool
    uses_defaults: bool
    eos_ids: list[int]
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def write_files(self, folder: Path) -> None:
        """Write the files into a folder, from which `ModelText.from_files` reads them."""
        for name, content in self.files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise UnsupportedTokenizer(f"A file of a model's text has the name {name!r}, which is not allowed.")
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def pack_text(
    folder: Path, metadata: Mapping[str, Any], eos_ids: Sequence[int], *, is_gguf: bool, uses_defaults: bool
) -> bytes:
    """The bundle of a model as bytes. The arguments are those of `ModelText.from_files`."""
    kept = {key: metadata[key] for key in sorted(metadata) if is_gguf and key.startswith(OF_GGUF)}
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(_files(folder, is_gguf))}
    bundle = TextBundle(is_gguf, uses_defaults, sorted(eos_ids), kept, files)
    try:
        return msgspec.msgpack.encode(bundle)
    except (UnicodeEncodeError, TypeError) as error:
        raise UnsupportedTokenizer(f"The model's vocabulary cannot be sent to a gateway: {error}") from None


def read_bundle(data: bytes) -> TextBundle:
    """The bundle that these bytes hold."""
    try:
        return msgspec.msgpack.decode(data, type=TextBundle)
    except msgspec.MsgspecError as error:
        raise UnsupportedTokenizer(f"The text side of the model cannot be read: {error}") from None


def bundle_digest(data: bytes) -> str:
    """32 hex digits."""
    return hashlib.sha256(data).hexdigest()[:32]


def _files(folder: Path, is_gguf: bool) -> Iterator[Path]:
    for name in (*FILES.values(), GENERATION, *(() if is_gguf else OF_FOLDER)):
        if (folder / name).is_file():
            yield folder / name
    for pattern in () if is_gguf else TEMPLATES:
        yield from folder.glob(pattern)
