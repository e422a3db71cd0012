"""API keys and their limits. A key itself is never stored, only its SHA-256.

    [[key]]                        # quire key makes a secret and these lines
    name = "alice"
    sha256 = "9f86d081884c7d65…"
    requests_per_minute = 60

A secret has 256 random bits and cannot be guessed, so one round of hashing is enough.
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
POSITIVE = (
    *("weight", "requests_per_minute", "tokens_per_minute", "max_concurrent", "max_n"),
    *("token_budget", "money_budget"),
)
PERIODS = ("day", "month", "total")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client of the server. A server without keys gives all clients the key without a name."""

    name: str = ""
    sha256: str = ""
    priority: int | None = None  # the most urgent priority it may request (lower is served first)
    weight: float = 1.0  # of its fair share
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None  # prompts and answers together
    max_concurrent: int | None = None
    max_n: int | None = None
    salt: str | None = None  # keys with equal salts share cached prefixes; None: the key's name
    token_budget: int | None = None  # tokens in a budget_period, at a gateway
    money_budget: float | None = None  # money in a budget_period, at a gateway with prices
    budget_period: str = "month"  # or day, or total
    admin: bool = False  # may see and change settings, the whole cache, models, and metrics if they are for admins

    def cache_key(self, salt: str) -> CacheKey:
        """The key of its cached prefixes, separate for each API key and each salt of a request."""
        own = self.name if self.salt is None else self.salt
        return CacheKey(salt=f"{own}/{salt}" if own or salt else "")


ANONYMOUS = ApiKey(salt="", admin=True)


class ApiKeys:
    """All keys of a server. If there are none, every request is allowed."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys)

    def find(self, secret: str | None) -> ApiKey:
        """The key with this secret. Takes equally long for every secret, right or wrong."""
        if not self._keys:
            return ANONYMOUS
        if not secret:
            raise Unauthorized("An API key is required: send the header Authorization: Bearer KEY, or x-api-key: KEY.")
        digest = hash_of(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        if found is None:
            raise Unauthorized("This server does not know the API key.")
        return found


def read_keys(config: ServeConfig, keeps_budgets: bool = False) -> ApiKeys:
    """The keys of the setting api_key, and those of the file. `keeps_budgets`: of a gateway, which has a ledger."""
    listed = [secret for part in (config.api_key or "").split(",") if (secret := part.strip())]
    plain = [ApiKey(f"key-{place}", hash_of(secret), admin=True) for place, secret in enumerate(listed, 1)]
    keys = [*plain, *(_read_file(Path(config.api_keys).expanduser()) if config.api_keys else ())]
    for field in ("name", "sha256"):
        values = [getattr(key, field) for key in keys]
        duplicate = next((value for value in values if values.count(value) > 1), None)
        if duplicate is not None:
            raise BadSetting(f"Two API keys have the same {field}: {duplicate}.", field="api_keys")
    limited = next((key.name for key in keys if key.token_budget is not None or key.money_budget is not None), None)
    if limited is not None and not keeps_budgets:
        raise BadSetting(
            f"The key {limited} has a budget, which only `quire gateway` keeps. Remove it from the keys of a server.",
            field="api_keys",
        )
    return ApiKeys(keys)


def hash_of(secret: str) -> str:
    """The hash that is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_key(name: str) -> tuple[str, ApiKey]:
    """A new secret, and its key."""
    secret = PREFIX + secrets.token_urlsafe(32)
    return secret, ApiKey(name, hash_of(secret))


def secret_of(authorization: str | None, api_key: str | None) -> str | None:
    """The secret in the headers of a request."""
    scheme, _, rest = (authorization or "").partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else api_key


def _read_file(path: Path) -> list[ApiKey]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSetting(f"The API key file {path} cannot be read: {error}", field="api_keys") from None
    tables = content.pop("key", [])
    if content or not isinstance(tables, list) or not tables:
        raise BadSetting(f"The API key file {path} must contain [[key]] tables and nothing else.", field="api_keys")
    return [_key(table, path, place) for place, table in enumerate(tables, 1)]


def _key(table: Mapping[str, Any], path: Path, place: int) -> ApiKey:
    hints = get_type_hints(ApiKey)
    key = ApiKey()
    for name, value in table.items():
        kinds = get_args(hints.get(name)) or (hints.get(name),)
        fits = isinstance(value, float | int if float in kinds else kinds if name in hints else ())
        if not fits or (isinstance(value, bool) and bool not in kinds):
            known = ", ".join(each.name for each in fields(ApiKey))
            raise BadSetting(
                f"{name} = {value!r} in key {place} of {path} is not valid: the fields are {known}.", field="api_keys"
            )
        key = replace(key, **{name: value})
    if not key.name or len(key.sha256) != 64 or not set(key.sha256.lower()) <= set("0123456789abcdef"):
        raise BadSetting(f"Key {place} in {path} needs a name and a sha256 of 64 hex digits.", field="api_keys")
    for name in POSITIVE:
        value = getattr(key, name)
        if value is not None and not 0 < value < float("inf"):
            raise BadSetting(f"{name} of key {place} in {path} must be a positive number.", field="api_keys")
    if key.budget_period not in PERIODS:
        raise BadSetting(f"budget_period of key {place} in {path} is none of {', '.join(PERIODS)}.", field="api_keys")
    return replace(key, sha256=key.sha256.lower())
