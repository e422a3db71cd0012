"""Reads a request's `Terms` from its fields: priority, session, cache salt, how long its prompt is kept."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from quire.serve.dialects.openai.fields import CacheOptions, Keep, Lifetime, OpenAIFields
from quire.serve.dialects.strict_json import check_depth
from quire.types.chat import Terms
from quire.types.errors import InvalidRequest

_SECONDS: dict[str, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43200.0, "24h": 86400.0}
_RANK = Terms().keep_rank


class OpenAICacheControl(Struct, forbid_unknown_fields=True):
    """Anthropic's cache mark, which several servers accept in OpenAI's messages: keep the prompt up to here."""

    type: Literal["ephemeral"]
    ttl: Lifetime | None = None


class CacheBreakpoint(Struct, forbid_unknown_fields=True):
    """OpenAI's own cache mark."""

    mode: Literal["explicit"]
    ttl: Lifetime | None = None


def read_terms(given: OpenAIFields) -> Terms:
    """The terms that the client requests; an API key may allow less."""
    if given.request_id is not None and given.rid is not None and given.request_id != given.rid:
        raise InvalidRequest("request_id and rid differ: give one of them.", field="rid")
    if given.cache_salt is not None and given.extra_key is not None and given.cache_salt != given.extra_key:
        raise InvalidRequest("cache_salt and extra_key differ: give one of them.", field="extra_key")
    check_depth(given.metadata, "metadata")
    keep, rank = _kept(given)
    return Terms(
        id=given.request_id or given.rid,
        priority=given.priority or 0,
        salt=given.cache_salt or given.extra_key or "",
        session=given.session_id or given.prompt_cache_key or None,
        timeout=given.timeout,
        keep=keep,
        keep_rank=rank,
        user=given.user or given.safety_identifier or "",
        metadata={name: _plain(value) for name, value in (given.metadata or {}).items()},
    )


def keep_seconds(control: OpenAICacheControl | None, breakpoint_: CacheBreakpoint | None = None) -> float | None:
    """Seconds that the marks keep the prompt: the longer of the two. None: no mark."""
    marks = []
    if control is not None:
        marks.append(_SECONDS[control.ttl or "5m"])
    if breakpoint_ is not None:
        marks.append(_SECONDS[breakpoint_.ttl or "30m"])
    return max(marks, default=None)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _kept(given: OpenAIFields) -> tuple[float | None, int]:
    match given.keep:
        case Keep(ttl=ttl, rank=rank):
            return ttl, rank
        case None:
            return _ttl(given.prompt_cache_options), _RANK
        case seconds:
            return seconds, _RANK


def _ttl(options: CacheOptions | None) -> float | None:
    """Seconds to keep the whole prompt. With `explicit`, only marked parts are kept."""
    if options is None or options.ttl is None or options.mode == "explicit":
        return None
    return _SECONDS[options.ttl]
