"""Traces of requests, read from whatever has them: one JSON object a line, or vLLM's log.

    {"time": 0.5, "path": "/v1/chat/completions", "body": {...}, "usage": {...}}         OpenAI bodies with times
    {"messages": [...], "timestamp": 1731672000.5}                                       a bare body
    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}   a batch file: no times
    {"time": ..., "marks": ["…"], "usage": {...}}                                        Quire's request log
    {"logger": "quire.access", "prompt_tokens": 7, ...}                                  Quire's log in JSON
    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}    lengths and hashed blocks
    INFO 04-14 17:12:57 [logger.py:39] Received request …: prompt: '…', params: …        vLLM's log

What a line does not say stays None: whoever reads the trace decides what to make of that.
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
HASHED_BLOCK = 512  # tokens that one of `hash_ids` stands for
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
    """A file is not a trace. The message says what would be one."""

    code = "bad_trace"


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of the past. `tokens`, `text` and `body` say what its prompt was, from exact to vague."""

    time: float | None  # seconds; in a `Trace`, since its first request
    path: str = CHAT
    body: Mapping[str, Any] | None = None  # as it was sent
    text: str | None = None  # the whole prompt
    tokens: array[int] | None = None  # the prompt's, or marks that stand for them
    has_marks: bool = False  # each of `tokens` stands for itself and all before it
    model: str = ""
    tenant: str = ""  # prefixes are shared within one
    session: str | None = None
    num_prompt: int | None = None
    num_output: int | None = None
    num_cached: int | None = None
    max_tokens: int | None = None
    form: str | None = None  # that the answer had to have
    seconds: float | None = None  # from its arrival to its end
    first_token: float | None = None  # seconds from its arrival
    waited: float = 0.0  # seconds in a queue, as its server told
    status: int = 200


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival."""

    requests: tuple[TracedRequest, ...]
    name: str
    kinds: Mapping[str, int]  # of its lines
    num_skipped: int = 0  # lines that tell of no request
    has_times: bool = True

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return (self.requests[-1].time or 0.0) if self.requests else 0.0


def read_trace(path: Path) -> Trace:
    """The requests in a file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadTrace(f"The trace {path} cannot be read: {error.strerror}.", field="trace") from None
    return trace_of(lines, path.name)


def trace_of(lines: Iterable[str], name: str) -> Trace:
    """The requests that these lines tell of. Raises BadTrace if that is none."""
    kept = [line for line in lines if line.strip()]
    plain: list[str] = []
    found: list[TracedRequest] = []
    kinds: Counter[str] = Counter()
    for line in kept:
        said = _json(line)
        if said is None:
            plain.append(line)
            continue
        kind, requests = _told_by(said)
        found += requests
        kinds[kind] += bool(requests)
    of_vllm = [TracedRequest(**facts) for facts in read_vllm_lines(plain)]
    kinds["vllm"] += len(of_vllm)
    if not (found or of_vllm):
        raise BadTrace(
            f"{name} has no request in {len(kept)} lines. A trace is JSON, one request a line: an OpenAI body, or an "
            'object with "body" and "time"; or the request log of Quire (--request-log) or of vLLM.',
            field="trace",
        )
    requests = _in_order([*found, *of_vllm])
    has_times = any(request.time for request in requests)
    return Trace(tuple(requests), name, +kinds, len(kept) - kinds.total(), has_times)


def _json(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _in_order(requests: Sequence[TracedRequest]) -> list[TracedRequest]:
    """By arrival, the first one's time being 0. Requests without a time come at the beginning, all at once."""
    times = [request.time for request in requests if request.time is not None]
    start = min(times, default=0.0)
    moved = [replace(each, time=0.0 if each.time is None else each.time - start) for each in requests]
    return sorted(moved, key=lambda each: each.time or 0.0)


def _told_by(said: dict[str, Any]) -> tuple[str, list[TracedRequest]]:
    """What kind of line it is, and the requests that it tells of."""
    if "marks" in said:
        return "quire", list(_of_request_log(said))
    if isinstance(said.get("body"), dict):
        return "bodies", [_of_body(said["body"], said)]
    if said.get("logger") == "quire.access":
        return "access", [_of_access_log(said)] if said.get("prompt_tokens") else []
    if "input_length" in said:
        return "lengths", [_of_lengths(said)]
    if any(name in said for name in ("messages", "prompt", "input")):
        return "bodies", [_of_body(said, {name: said[name] for name in (*TIMES, "usage") if name in said})]
    return "other", []


def _of_body(body: dict[str, Any], around: Mapping[str, Any]) -> TracedRequest:
    usage = around.get("usage") or {}
    path = around.get("path") or around.get("url") or (CHAT if "messages" in body else COMPLETIONS)
    return TracedRequest(
        _time(around),
        path,
        {name: value for name, value in body.items() if name not in (*TIMES, "usage")},
        model=str(body.get("model") or ""),
        tenant=str(body.get("cache_salt") or ""),
        num_prompt=_count(usage.get("prompt_tokens")),
        num_output=_count(usage.get("completion_tokens")),
        num_cached=_count(usage.get("cached_tokens")),
        max_tokens=_count(body.get("max_completion_tokens") or body.get("max_tokens")),
        form=_form(body),
        seconds=around.get("seconds"),
        first_token=around.get("first_token_seconds"),
        status=int(around.get("status") or 200),
    )


def _form(body: Mapping[str, Any]) -> str | None:
    """What the answer is held to, in the words of the APIs."""
    asked = body.get("response_format") or {}
    if isinstance(asked, dict) and asked.get("type") not in (None, "text"):
        return str(asked["type"])
    choice = body.get("tool_choice")
    if body.get("tools") and (isinstance(choice, dict) or choice == "required"):
        return "tool"
    return next((name for name in CONSTRAINTS if body.get(name)), None)


def _of_request_log(said: Mapping[str, Any]) -> Iterator[TracedRequest]:
    """A line has all prompts of a request; its outputs are taken to be equally long."""
    usage = said.get("usage") or {}
    num_output = _count(usage.get("completion_tokens"))
    cached = _count(usage.get("cached_tokens"))
    for marks in said["marks"]:
        tokens = array("I")
        try:
            tokens.frombytes(base64.b64decode(marks, validate=True))
        except (binascii.Error, ValueError, TypeError):
            continue
        yield TracedRequest(
            _time(said),
            str(said.get("path") or CHAT),
            tokens=tokens,
            has_marks=True,
            model=str(said.get("model") or ""),
            tenant=str(said.get("tenant") or ""),
            session=said.get("session"),
            num_prompt=len(tokens),
            num_output=None if num_output is None else num_output // len(said["marks"]),
            num_cached=None if cached is None else cached // len(said["marks"]),
            max_tokens=_count(said.get("max_tokens")),
            form=said.get("form"),
            seconds=said.get("seconds"),
            first_token=said.get("first_token_seconds"),
            waited=float(said.get("waited_seconds") or 0.0),
            status=int(said.get("status") or 0),
        )


def _of_access_log(said: Mapping[str, Any]) -> TracedRequest:
    """Its time is that of the end; prompts are there only if they were logged."""
    seconds = float(said.get("seconds") or 0.0)
    ended = _time(said)
    return TracedRequest(
        None if ended is None else ended - seconds,
        str(said.get("path") or CHAT),
        text=said.get("prompt"),
        model=str(said.get("model") or ""),
        tenant=str(said.get("key") or ""),
        num_prompt=_count(said["prompt_tokens"]),
        num_output=_count(said.get("output_tokens")),
        num_cached=_count(said.get("cached_tokens", 0)),
        form=said.get("form"),
        seconds=seconds,
        first_token=said.get("first_token_seconds"),
        waited=float(said.get("waited") or 0.0),
        status=said["status"] if isinstance(said.get("status"), int) else 0,
    )


def _of_lengths(said: Mapping[str, Any]) -> TracedRequest:
    """A hashed block stands for 512 tokens after all before it: so is each of these marks."""
    count = int(said["input_length"])
    marks = [
        (hash((block, place)) & 0xFFFFFFFF) for block in said.get("hash_ids") or () for place in range(HASHED_BLOCK)
    ][:count]
    time = said.get("timestamp")
    return TracedRequest(
        None if time is None else float(time) / 1000,
        COMPLETIONS,
        tokens=array("I", marks) if len(marks) == count else None,
        has_marks=True,
        num_prompt=count,
        num_output=_count(said.get("output_length")),
    )


def _time(said: Mapping[str, Any]) -> float | None:
    """Seconds, however they are written."""
    value = next((said[name] for name in TIMES if said.get(name) is not None), None)
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
