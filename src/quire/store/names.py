"""How a user says which model. The text alone decides; the disk is not asked, so a name means the same everywhere.

    model  = path | hub | stored
    path   = begins with / ./ ../ ~ or a drive (C:), or contains a backslash, or ends in .gguf or .safetensors
    hub    = [ "https://" ] ( "hf.co/" | "huggingface.co/" ) word "/" word [ ":" tag ]     a repository of the model hub
    stored = word [ ":" tag ]                                                 a name in the store; the tag is "latest"
    word   = up to 96 of letters, digits, "_", "-", "."; begins and ends with a letter, a digit or "_"; no ".." inside
    tag    = like word; of a hub name it says which quantization: Q4_K_M

Stored words are made lower-case, so that two names never differ by case alone, which some file systems cannot tell
apart. The hub's words keep theirs: the hub tells them apart. A tag is compared as it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import BadName

DEFAULT_TAG = "latest"
MODEL_SUFFIXES = (".gguf", ".safetensors")
HUB = "hf.co"
HUB_HOSTS = (f"{HUB}/", "huggingface.co/")
MAX_WORD = 96
WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
PATH_START = re.compile(r"[/~]|\.\.?(?:/|$)|[A-Za-z]:[\\/]")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name. `str` gives the spelling that parses back to it."""

    kind: Literal["path", "hub", "stored"]
    name: str  # a path as given; "org/repo" of the hub; a word
    tag: str = ""  # of a path: empty

    def __str__(self) -> str:
        shown = f"{HUB}/{self.name}" if self.kind == "hub" else self.name
        return f"{shown}:{self.tag}" if self.tag else shown

    @property
    def path(self) -> Path:
        """Where a path leads."""
        return Path(self.name).expanduser()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that its manifest lies in, below manifests/."""
        return (HUB, *self.name.split("/")) if self.kind == "hub" else (self.name,)


def parse_name(text: str) -> ModelName:
    """Read a name; a BadName says what is wrong with it and how it could be meant."""
    if not text or text != text.strip() or not text.isprintable():
        raise BadName(text, "it is empty, or has spaces around it or unprintable characters in it.")
    if is_path(text):
        return ModelName("path", text)
    bare = text.removeprefix("https://").removeprefix("http://")
    for host in HUB_HOSTS:
        if bare.startswith(host):
            return _hub(text, bare.removeprefix(host).rstrip("/"))
    if bare != text:
        raise BadName(text, f"of addresses, only those of the model hub are known: {HUB}/organisation/repository.")
    name, tag = _split(text)
    if "/" in name:
        raise BadName(text, f"write {HUB}/{text} for a repository of the model hub, or ./{text} for a file or folder.")
    return ModelName("stored", _word(text, name, "the name").lower(), tag)


def is_path(text: str) -> bool:
    """Is this a place on disk rather than a name?"""
    return bool(PATH_START.match(text)) or "\\" in text or _has_model_suffix(text)


def _has_model_suffix(text: str) -> bool:
    """A hub's repository may end in .gguf too, so the hub goes first."""
    at_hub = text.removeprefix("https://").startswith(HUB_HOSTS)
    return text.lower().endswith(MODEL_SUFFIXES) and not at_hub


def _hub(text: str, rest: str) -> ModelName:
    repository, tag = _split(rest, text)
    words = repository.split("/")
    if len(words) != 2:
        raise BadName(
            text, f"a repository of the model hub is written {HUB}/organisation/repository, with a :tag or without."
        )
    for word, what in zip(words, ("the organisation", "the repository"), strict=True):
        _word(text, word, what)
    return ModelName("hub", repository, tag)


def _split(text: str, whole: str | None = None) -> tuple[str, str]:
    name, colon, tag = text.partition(":")
    return name, _word(whole or text, tag, "the tag after the colon") if colon else DEFAULT_TAG


def _word(text: str, word: str, what: str) -> str:
    if not word:
        raise BadName(text, f"{what} is empty.")
    if len(word) > MAX_WORD:
        raise BadName(text, f"{what} has {len(word)} characters, at most {MAX_WORD} are allowed.")
    if not WORD.fullmatch(word) or ".." in word:
        raise BadName(text, f"{what} may have letters, digits, '_', and between them '-' and '.'.")
    return word
