"""The access log: one line for each request, with its id. In JSON every fact is a separate field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from logging import Logger

from quire.observe.record import Record

PROBE_PATHS = ("/health", "/ready", "/metrics")  # requested by machines every few seconds
OMITTED = (
    *("at", "arrived", "decoded", "submitted", "first_token", "ended"),  # moments; the log has durations
    *("sampling", "tracestate", "span", "prompts", "salt", "session"),
)
LOGGED = tuple(each.name for each in fields(Record) if each.name not in OMITTED)
EMPTY: tuple[object, ...] = (None, "", 0, [])
SECONDS_DIGITS = 4


def log_access(logger: Logger, record: Record) -> None:
    """Write the line of a request that has ended."""
    log = logger.debug if record.path in PROBE_PATHS and record.error is None else logger.info
    seconds = (record.ended or record.arrived) - record.arrived
    facts = {name: fact for name in LOGGED if (fact := getattr(record, name)) not in EMPTY}
    if "message" in facts:
        facts["error_message"] = facts.pop("message")  # a log record has a message already
    facts["status"] = record.status or "gone"
    facts["seconds"] = round(seconds, SECONDS_DIGITS)
    if record.first_token is not None:
        facts["first_token_seconds"] = round(record.first_token - record.arrived, SECONDS_DIGITS)
    path = record.path.encode("unicode_escape").decode()  # a line break in it would forge a line of the log
    line = f"{record.method} {path} {facts['status']} {seconds * 1e3:.0f} ms{''.join(_details(record))}"
    line += f", id {record.request_id}"
    log("%s%s", line, f"\n{record.prompt}" if record.prompt is not None else "", extra=facts)


def _details(record: Record) -> Iterator[str]:
    if record.first_token is not None:
        yield f", first token {(record.first_token - record.arrived) * 1e3:.0f} ms"
    if record.submitted is not None:
        yield f", {record.prompt_tokens}+{record.output_tokens} tokens ({record.cached_tokens} cached)"
    if record.model is not None:
        yield f", model {record.model}"
    if record.key:
        yield f", key {record.key}"
    if record.error is not None:
        yield f", {record.error}: {record.message}"
