"""Read traces of requests: one JSON object a line, or vLLM's log.

    {"time": 0.5, "path": "/v1/chat/completions", "body": {...}, "usage": {...}}         OpenAI bodies with times
    {"messages": [...], "timestamp": 1731672000.5}                                       a bare body
    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}   a batch file: no times
    {"time": ..., "marks": ["…"], "usage": {...}}                                        Quire's request log
    {"logger": "quire.access", "prompt_tokens": 7, ...}                                  Quire's log in JSON
    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}    lengths and hashed blocks
    INFO 04-14 17:12:57 [logger.py:39] Received request …: prompt: '…', params: …        vLLM's log

What a line does not contain is None.
"""

from __future__ import annotations

import base64
import binascii
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.report.vllm_log import read_vllm_lines
from quire.types.errors import InvalidRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMES = ("time", "timestamp", "ts", "created")
MILLISECONDS_FROM = 1e11  # a number of seconds since 1970 is less than this until the year 5138
HASHED_BLOCK = 512  # tokens of one of `hash_ids`
CONSTRAINTS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "grammar",
    "regex",
)


class BadTrace(InvalidRequest):
    """A file is not a trace. The message describes the accepted formats."""

    code = "bad_trace"


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A recorded request. Its prompt is in `tokens`, `text` or `body`, from the most to the least exact."""

    time: float | None  # seconds; in a `Trace`, since its first request
    path: str = CHAT
    body: Mapping[str, Any] | None = None  # as it was sent
    text: str | None = None  # the whole prompt
    tokens: array[int] | None = None  # of the prompt, or its marks
    has_marks: bool = False  # `tokens` are marks: hashes of a token and all tokens before it
    model: str = ""
    tenant: str = ""  # prefixes are shared only within a tenant
    session: str | None = None
    num_prompt: int | None = None
    num_output: int | None = None
    num_cached: int | None = None
    max_tokens: int | None = None
    form: str | None = None  # the constraint on the answer, by the name of its API field
    seconds: float | None = None  # from arrival to end
    first_token: float | None = None  # seconds from arrival
    queue_seconds: float = 0.0
    status: int = 200


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival."""

    requests: tuple[TracedRequest, ...]
    name: str
    kinds: Mapping[str, int]  # number of lines of each format
    num_skipped: int = 0  # lines without a request
    has_times: bool = True

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return (self.requests[-1].time or 0.0) if self.requests else 0.0


def read_trace(path: Path) -> Trace:
    """Read a file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadTrace(f"The trace {path} cannot be read: {error.strerror}.", field="trace") from None
    return parse_trace(lines, path.name)


def parse_trace(lines: Iterable[str], name: str) -> Trace:
    """Parse the lines of a trace. Raise BadTrace if there is no request."""
    lines = [line for line in lines if line.strip()]
    plain_lines: list[str] = []
    found: list[TracedRequest] = []
    kinds: Counter[str] = Counter()
    for line in lines:
        record = _json(line)
        if record is None:
            plain_lines.append(line)
            continue
        kind, requests = _parse_record(record)
        found += requests
        kinds[kind] += bool(requests)
    vllm_requests = [TracedRequest(**fields) for fields in read_vllm_lines(plain_lines)]
    kinds["vllm"] += len(vllm_requests)
    if not (found or vllm_requests):
        raise BadTrace(
            f"{name} has no request in {len(lines)} lines. A trace is JSON, one request a line: an OpenAI body, or an "
            'object with "body" and "time"; or the request log of Quire (--request-log) or of vLLM.',
            field="trace",
        )
    requests = _sort_by_time([*found, *vllm_requests])
    has_times = any(request.time for request in requests)
    return Trace(tuple(requests), name, +kinds, len(lines) - kinds.total(), has_times)


def _json(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _sort_by_time(requests: Sequence[TracedRequest]) -> list[TracedRequest]:
    """Sort by arrival and make the first time 0. Requests without a time get time 0."""
    times = [request.time for request in requests if request.time is not None]
    start = min(times, default=0.0)
    shifted = [replace(each, time=0.0 if each.time is None else each.time - start) for each in requests]
    return sorted(shifted, key=lambda each: each.time or 0.0)


def _parse_record(record: dict[str, Any]) -> tuple[str, list[TracedRequest]]:
    """Return the format of a line and its requests."""
    if "marks" in record:
        return "quire", list(_from_request_log(record))
    if isinstance(record.get("body"), dict):
        return "bodies", [_from_body(record["body"], record)]
    if record.get("logger") == "quire.access":
        return "access", [_from_access_log(record)] if record.get("prompt_tokens") else []
    if "input_length" in record:
        return "lengths", [_from_lengths(record)]
    if any(name in record for name in ("messages", "prompt", "input")):
        return "bodies", [_from_body(record, {name: record[name] for name in (*TIMES, "usage") if name in record})]
    return "other", []


def _from_body(body: dict[str, Any], envelope: Mapping[str, Any]) -> TracedRequest:
    usage = envelope.get("usage") or {}
    path = envelope.get("path") or envelope.get("url") or (CHAT if "messages" in body else COMPLETIONS)
    return TracedRequest(
        _time(envelope),
        path,
        {name: value for name, value in body.items() if name not in (*TIMES, "usage")},
        model=str(body.get("model") or ""),
        tenant=str(body.get("cache_salt") or ""),
        num_prompt=_count(usage.get("prompt_tokens")),
        num_output=_count(usage.get("completion_tokens")),
        num_cached=_count(usage.get("cached_tokens")),
        max_tokens=_count(body.get("max_completion_tokens") or body.get("max_tokens")),
        form=_form(body),
        seconds=envelope.get("seconds"),
        first_token=envelope.get("first_token_seconds"),
        status=int(envelope.get("status") or 200),
    )


def _form(body: Mapping[str, Any]) -> str | None:
    """Return the constraint on the answer, by the name of its API field."""
    format = body.get("response_format") or {}
    if isinstance(format, dict) and format.get("type") not in (None, "text"):
        return str(format["type"])
    choice = body.get("tool_choice")
    if body.get("tools") and (isinstance(choice, dict) or choice == "required"):
        return "tool"
    return next((name for name in CONSTRAINTS if body.get(name)), None)


def _from_request_log(record: Mapping[str, Any]) -> Iterator[TracedRequest]:
    """Yield a request for each prompt of a line. Their outputs are assumed to be equally long."""
    usage = record.get("usage") or {}
    num_output = _count(usage.get("completion_tokens"))
    cached = _count(usage.get("cached_tokens"))
    for marks in record["marks"]:
        tokens = array("I")
        try:
            tokens.frombytes(base64.b64decode(marks, validate=True))
        except (binascii.Error, ValueError, TypeError):
            continue
        yield TracedRequest(
            _time(record),
            str(record.get("path") or CHAT),
            tokens=tokens,
            has_marks=True,
            model=str(record.get("model") or ""),
            tenant=str(record.get("tenant") or ""),
            session=record.get("session"),
            num_prompt=len(tokens),
            num_output=None if num_output is None else num_output // len(record["marks"]),
            num_cached=None if cached is None else cached // len(record["marks"]),
            max_tokens=_count(record.get("max_tokens")),
            form=record.get("form"),
            seconds=record.get("seconds"),
            first_token=record.get("first_token_seconds"),
            queue_seconds=float(record.get("waited_seconds") or 0.0),
            status=int(record.get("status") or 0),
        )


def _from_access_log(record: Mapping[str, Any]) -> TracedRequest:
    """Parse a line of the access log. Its time is the end of the request; the prompt is there only if it was logged."""
    seconds = float(record.get("seconds") or 0.0)
    ended = _time(record)
    return TracedRequest(
        None if ended is None else ended - seconds,
        str(record.get("path") or CHAT),
        text=record.get("prompt"),
        model=str(record.get("model") or ""),
        tenant=str(record.get("key") or ""),
        num_prompt=_count(record["prompt_tokens"]),
        num_output=_count(record.get("output_tokens")),
        num_cached=_count(record.get("cached_tokens", 0)),
        form=record.get("form"),
        seconds=seconds,
        first_token=record.get("first_token_seconds"),
        queue_seconds=float(record.get("waited") or 0.0),
        status=record["status"] if isinstance(record.get("status"), int) else 0,
    )


def _from_lengths(record: Mapping[str, Any]) -> TracedRequest:
    """Parse lengths and hashed blocks. A block's hash covers all tokens before it too, as marks do."""
    count = int(record["input_length"])
    marks = [
        (hash((block, index)) & 0xFFFFFFFF) for block in record.get("hash_ids") or () for index in range(HASHED_BLOCK)
    ][:count]
    time = record.get("timestamp")
    return TracedRequest(
        None if time is None else float(time) / 1000,
        COMPLETIONS,
        tokens=array("I", marks) if len(marks) == count else None,
        has_marks=True,
        num_prompt=count,
        num_output=_count(record.get("output_length")),
    )


def _time(record: Mapping[str, Any]) -> float | None:
    """Return the time in seconds, from seconds, milliseconds or an ISO date."""
    value = next((record[name] for name in TIMES if record.get(name) is not None), None)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            return None
    if not isinstance(value, int | float):
        return None
    return value / 1000 if value > MILLISECONDS_FROM else float(value)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
