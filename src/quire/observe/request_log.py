"""The request log: a line of JSON for each request that ran a model, with what `quire advise` needs and no text.

A thread computes the marks of the tokens and writes, so that no request waits. The file is opened for every line, so
that it can be rotated at any time and several processes can append to it. The secret of the marks is in a file beside
it: equal prompts are recognised across restarts, but prompts cannot be guessed from the log alone.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from quire.config import BadSetting
from quire.observe.marks import SECRET_BYTES, marks_of, name_mark
from quire.observe.record import Observer, Record

OWNER_ONLY = 0o600
SECRET_SUFFIX = ".secret"
SECONDS_DIGITS = 4


class RequestLog:
    """An observer that writes the log. `close` waits until everything is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._secret = _secret_at(path.with_name(path.name + SECRET_SUFFIX))
            os.close(self._open())
        except OSError as error:
            message = f"The request log {path} cannot be written: {error.strerror or error}."
            raise BadSetting(message, field="request_log") from None
        self._records: SimpleQueue[Record | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="quire-request-log", daemon=True)
        self._thread.start()

    def __call__(self, record: Record) -> None:
        """Log a request that has ended, if it ran a model."""
        if record.prompts:
            self._records.put(record)

    def close(self) -> None:
        """Write the remaining records."""
        self._records.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            line = json.dumps(line_of(record, self._secret), separators=(",", ":")).encode() + b"\n"
            file = self._open()
            try:
                os.write(file, line)  # one call, so that the lines of several processes are not mixed
            finally:
                os.close(file)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_ONLY)


@contextmanager
def open_request_log(path: str | None) -> Iterator[tuple[Observer, ...]]:
    """The observer that writes to this file; none without a path."""
    if path is None:
        yield ()
        return
    log = RequestLog(Path(path).expanduser().absolute())
    try:
        yield (log,)
    finally:
        log.close()


def line_of(record: Record, secret: bytes) -> dict[str, Any]:
    """The fields of a request's line. Names of tenants and sessions are marks too."""
    sampling = record.sampling
    fields: dict[str, Any] = {
        "time": round(record.at, SECONDS_DIGITS),
        "path": record.path,
        "model": record.model,
        "tenant": name_mark(record.salt, secret),
        "session": None if record.session is None else name_mark(record.session, secret),
        "status": record.status,
        "form": record.form,
        "stream": record.streams,
        "max_tokens": None if sampling is None else sampling.max_tokens,
        "n": 1 if sampling is None else sampling.n,
        "usage": {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.output_tokens,
            "cached_tokens": record.cached_tokens,
        },
        "seconds": _since_arrival(record, record.ended),
        "first_token_seconds": _since_arrival(record, record.first_token),
        "waited_seconds": round((_since_arrival(record, record.submitted) or 0.0) + record.waited, SECONDS_DIGITS),
        "marks": [base64.b64encode(marks_of(each, secret).tobytes()).decode() for each in record.prompts],
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}


def _since_arrival(record: Record, moment: float | None) -> float | None:
    return None if moment is None else round(moment - record.arrived, SECONDS_DIGITS)


def _secret_at(path: Path) -> bytes:
    """The secret in this file, which the first of several processes creates."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    if not path.exists():
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        os.write(file, secrets.token_bytes(SECRET_BYTES))
        os.close(file)
        try:
            os.link(temporary, path)  # atomic, and never replaces another process' secret
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise OSError(f"its secret {path} has {len(secret)} bytes, expected {SECRET_BYTES}")
    return secret
