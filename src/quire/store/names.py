"""How a user says which model. The text alone decides; the disk is not asked, so a name means the same everywhere.

    model    = path | hub | registry | stored
    path     = begins with / ./ ../ ~ or a drive (C:), or contains a backslash, or ends in .gguf or .safetensors
    hub      = [ scheme ] ( "hf.co/" | "huggingface.co/" ) word "/" word [ ":" tag ]      a repository of the model hub
    registry = [ scheme ] host "/" [ word "/" ] word [ ":" tag ] | word "/" word [ ":" tag ]   of Ollama's kind, or OCI
    stored   = word [ ":" tag ]                                                 a name in the store; the tag is "latest"
    scheme   = "https://" | "http://"
    host     = word [ ":" port ]; without a scheme it has a dot or a port, or it is "localhost"
    word     = up to 96 of letters, digits, "_", "-", "."; begins and ends with a letter, a digit or "_"; no ".." inside
    tag      = like word; of a hub name it says which quantization: Q4_K_M

Where a model comes from if it is not in the store:

    ./toy.gguf                          nowhere: a path is used where it is
    hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0     the model hub
    smollm2:135m                        the package index, for the few names in our own list
    llama3.2:1b                         any other name: the registry that is set (ollama.com), as library/llama3.2
    Qwen/Qwen3-0.6B                     the model hub; if it has no such repository, the registry that is set, in the
                                        name space "Qwen"
    ollama.com/library/llama3.2         that registry (registry.ollama.ai is the same one), whatever is set
    localhost:5000/me/toy               that registry; plain HTTP only on this machine, or where http:// is written

A name with a host is another name in the store than one without, because a setting decides about the latter; what they
have in common is stored once all the same. A host without a name space (localhost:5000/toy) means "library" too.

Stored words and hosts are made lower-case, so that two names never differ by case alone, which some file systems cannot
tell apart. The words of hubs and registries keep theirs: those tell them apart. A tag is compared as it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .errors import BadName

DEFAULT_TAG = "latest"
DEFAULT_NAMESPACE = "library"
MODEL_SUFFIXES = (".gguf", ".safetensors")
HUB = "hf.co"
HUB_HOSTS = (f"{HUB}/", "huggingface.co/")
OLLAMA = "ollama.com"
OLLAMA_HOSTS = (OLLAMA, "www.ollama.com", "registry.ollama.ai")
LOCAL_HOSTS = ("localhost", "127.0.0.1")
MAX_WORD = 96
WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
PATH_START = re.compile(r"[/~]|\.\.?(?:/|$)|[A-Za-z]:[\\/]")
SCHEME = re.compile(r"https?://")
PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name. `str` gives the spelling that parses back to it."""

    kind: Literal["path", "hub", "registry", "stored"]
    name: str  # a path as given; "org/repo" of the hub; "space/word" of a registry; a word
    tag: str = ""  # of a path: empty
    host: str = ""  # of a registry, with its scheme where that is not the implied one; empty: the one that is set

    def __str__(self) -> str:
        shown = "/".join(filter(None, (HUB if self.kind == "hub" else self.host, self.name)))
        return f"{shown}:{self.tag}" if self.tag else shown

    @property
    def address(self) -> str:
        """Of its registry, scheme included."""
        return self.host if SCHEME.match(self.host) else f"{implied_scheme(self.host)}{self.host}"

    @property
    def path(self) -> Path:
        """Where a path leads."""
        return Path(self.name).expanduser()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that its manifest lies in, below manifests/. No word has a "+", so no two names share one."""
        if self.kind == "stored":
            return (self.name,)
        first = HUB if self.kind == "hub" else self.host.replace("://", "+").replace(":", "+") or "+"
        return (first, *self.name.split("/"))

    @property
    def untagged(self) -> str:
        """Its spelling without the tag."""
        return str(replace(self, tag=""))

    @property
    def meanings(self) -> tuple[ModelName, ...]:
        """Itself; of org/repo, which says no host, the hub's repository before it."""
        if self.kind == "registry" and not self.host:
            return ModelName("hub", self.name, self.tag), self
        return (self,)

    def at(self, registry: str) -> ModelName:
        """The same model, of this registry (a host, with a scheme or without) if it says none itself."""
        if self.host or self.kind not in ("stored", "registry"):
            return self
        name = self.name if "/" in self.name else f"{DEFAULT_NAMESPACE}/{self.name}"
        scheme, host = _scheme(registry.rstrip("/"))
        return ModelName("registry", name, self.tag, _host(registry, scheme, host))


def parse_name(text: str) -> ModelName:
    """Read a name; a BadName says what is wrong with it and how it could be meant."""
    if not text or text != text.strip() or not text.isprintable():
        raise BadName(text, "it is empty, or has spaces around it or unprintable characters in it.")
    if is_path(text):
        return ModelName("path", text)
    scheme, bare = _scheme(text)
    for host in HUB_HOSTS:
        if bare.startswith(host):
            return _hub(text, bare.removeprefix(host).rstrip("/"))
    first, slash, rest = bare.partition("/")
    if slash and (scheme or _looks_like_host(first)):
        return _registry(text, _host(text, scheme, first), rest)
    if scheme:
        raise BadName(text, "an address needs a host and a name: https://host/name.")
    if slash:
        return _registry(text, "", bare)
    name, tag = _split(text, text)
    return ModelName("stored", _word(text, name, "the name").lower(), tag)


def is_path(text: str) -> bool:
    """Is this a place on disk rather than a name?"""
    return bool(PATH_START.match(text)) or "\\" in text or _has_model_suffix(text)


def _has_model_suffix(text: str) -> bool:
    """A hub's repository may end in .gguf too, so the hub goes first; and an address is no place on disk."""
    return text.lower().endswith(MODEL_SUFFIXES) and not text.startswith(HUB_HOSTS) and not SCHEME.match(text)


def _scheme(text: str) -> tuple[str, str]:
    found = SCHEME.match(text)
    return (found[0], text[found.end() :]) if found else ("", text)


def _hub(text: str, rest: str) -> ModelName:
    repository, tag = _split(text, rest)
    words = repository.split("/")
    if len(words) != 2:
        raise BadName(
            text, f"a repository of the model hub is written {HUB}/organisation/repository, with a :tag or without."
        )
    for word, what in zip(words, ("the organisation", "the repository"), strict=True):
        _word(text, word, what)
    return ModelName("hub", repository, tag)


def _registry(text: str, host: str, rest: str) -> ModelName:
    name, tag = _split(text, rest.rstrip("/"))
    words = name.split("/")
    if name.lower().endswith(MODEL_SUFFIXES):
        raise BadName(text, "this is the address of a file: download it, then give its path.")
    if len(words) > 2:
        hint = "a registry's model is written host/space/name" if host else f"write ./{text} for a file or folder"
        raise BadName(text, f"{hint}.")
    for word, what in zip(words, ("the name space", "the name")[-len(words) :], strict=True):
        _word(text, word, what)
    return ModelName("registry", name if len(words) == 2 else f"{DEFAULT_NAMESPACE}/{name}", tag, host)


def _host(text: str, scheme: str, given: str) -> str:
    """As it is stored: lower-case, one spelling of Ollama's, and a scheme only where it says something."""
    given = given.lower()
    host, colon, port = given.partition(":")
    _word(text, host, "the host")
    if colon and not PORT.fullmatch(port):
        raise BadName(text, "the port after the host is not a number.")
    if given in OLLAMA_HOSTS:
        return OLLAMA
    return given if scheme in ("", implied_scheme(given)) and _looks_like_host(given) else f"{scheme}{given}"


def implied_scheme(host: str) -> str:
    """How a registry is spoken to when its name does not say: in the clear on this machine, with TLS elsewhere."""
    return "http://" if host.partition(":")[0] in LOCAL_HOSTS else "https://"


def _looks_like_host(word: str) -> bool:
    return "." in word or ":" in word or word == "localhost"


def _split(whole: str, text: str) -> tuple[str, str]:
    """The name and its tag; a colon before the last slash belongs to a host."""
    head, slash, last = text.rpartition("/")
    word, colon, tag = last.partition(":")
    return head + slash + word, _word(whole, tag, "the tag after the colon") if colon else DEFAULT_TAG


def _word(text: str, word: str, what: str) -> str:
    if not word:
        raise BadName(text, f"{what} is empty.")
    if len(word) > MAX_WORD:
        raise BadName(text, f"{what} has {len(word)} characters, at most {MAX_WORD} are allowed.")
    if not WORD.fullmatch(word) or ".." in word:
        raise BadName(text, f"{what} may have letters, digits, '_', and between them '-' and '.'.")
    return word
