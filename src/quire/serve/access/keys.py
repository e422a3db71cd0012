"""API keys: who may ask, and within which limits. A key itself is never stored, only its SHA-256.

    [[key]]                        # quire key makes a secret and these lines
    name = "alice"
    sha256 = "9f86d081884c7d65…"
    requests_per_minute = 60

A secret has 256 random bits, so one round of hashing is enough: nothing is to be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from quire.config import BadSetting, ServeConfig
from quire.serve.errors import Unauthorized
from quire.types.request import CacheKey

PREFIX = "quire-"
POSITIVE = ("weight", "requests_per_minute", "tokens_per_minute", "max_concurrent", "max_n")


@dataclass(frozen=True, slots=True)
class Key:
    """Someone who may ask. The one without a name stands for everybody, where no keys are asked for."""

    name: str = ""
    sha256: str = ""
    priority: int | None = None  # the most urgent that it may ask for (lower is served first)
    weight: float = 1.0  # of its fair share
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None  # of prompts and answers together
    max_concurrent: int | None = None
    max_n: int | None = None
    salt: str | None = None  # keys with equal ones share cached prefixes; None: its own
    admin: bool = False  # may see and change what belongs to all: settings, the cache as a whole, metrics if so set

    def cache_key(self, salt: str) -> CacheKey:
        """Under which its prefixes are cached: apart from those of others, and of its own with another salt."""
        own = self.name if self.salt is None else self.salt
        return CacheKey(salt=f"{own}/{salt}" if own or salt else "")


EVERYBODY = Key(salt="", admin=True)


class Keys:
    """All keys of a server. Without any, everybody may ask."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def find(self, secret: str | None) -> Key:
        """Whose secret this is. Takes equally long whichever it is, and whether there is one."""
        if not self._keys:
            return EVERYBODY
        if not secret:
            raise Unauthorized("An API key is needed: send the header Authorization: Bearer KEY, or x-api-key: KEY.")
        digest = hash_of(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        if found is None:
            raise Unauthorized("The API key is not one that this server knows.")
        return found


def read_keys(config: ServeConfig) -> Keys:
    """Those of the file, and those that are given as they are."""
    given = [secret for part in (config.api_key or "").split(",") if (secret := part.strip())]
    plain = [Key(f"key-{place}", hash_of(secret), admin=True) for place, secret in enumerate(given, 1)]
    keys = [*plain, *(_of_file(Path(config.api_keys).expanduser()) if config.api_keys else ())]
    for what in ("name", "sha256"):
        said = [getattr(key, what) for key in keys]
        twice = next((value for value in said if said.count(value) > 1), None)
        if twice is not None:
            raise BadSetting(f"Two API keys have the same {what}: {twice}.", field="api_keys")
    return Keys(keys)


def hash_of(secret: str) -> str:
    """As it is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_key(name: str) -> tuple[str, Key]:
    """A secret, and the key that it opens."""
    secret = PREFIX + secrets.token_urlsafe(32)
    return secret, Key(name, hash_of(secret))


def secret_of(authorization: str | None, api_key: str | None) -> str | None:
    """What the headers of a request say."""
    scheme, _, rest = (authorization or "").partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else api_key


def _of_file(path: Path) -> list[Key]:
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSetting(f"The file of API keys {path} cannot be read: {error}", field="api_keys") from None
    tables = said.pop("key", [])
    if said or not isinstance(tables, list) or not tables:
        raise BadSetting(f"The file of API keys {path} must hold tables [[key]], and nothing else.", field="api_keys")
    return [_key(table, path, place) for place, table in enumerate(tables, 1)]


def _key(table: Mapping[str, Any], path: Path, place: int) -> Key:
    hints = get_type_hints(Key)
    made = Key()
    for name, value in table.items():
        kinds = get_args(hints.get(name)) or (hints.get(name),)
        fits = isinstance(value, float | int if float in kinds else kinds if name in hints else ())
        if not fits or (isinstance(value, bool) and bool not in kinds):
            known = ", ".join(each.name for each in fields(Key))
            raise BadSetting(
                f"{name} = {value!r} of key {place} in {path} cannot be: there are {known}.", field="api_keys"
            )
        made = replace(made, **{name: value})
    if not made.name or len(made.sha256) != 64 or not set(made.sha256.lower()) <= set("0123456789abcdef"):
        raise BadSetting(f"Key {place} in {path} needs a name and a sha256 of 64 hex digits.", field="api_keys")
    for name in POSITIVE:
        value = getattr(made, name)
        if value is not None and not 0 < value < float("inf"):
            raise BadSetting(f"{name} of key {place} in {path} must be a positive number.", field="api_keys")
    return replace(made, sha256=made.sha256.lower())
