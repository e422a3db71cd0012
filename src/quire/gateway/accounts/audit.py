"""The audit log: a JSON line for each request, with its key, upstreams, tokens and cost. It has no text of clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from quire.config import BadSetting


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One request."""

    time: float  # seconds since 1970, when it arrived
    request_id: str
    key: str
    method: str
    path: str
    model: str
    route: str  # the alias and its rule, if it named one
    upstreams: Sequence[str]  # that were tried, in order; the last one answered
    status: int
    error: str
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    money: float
    num_resumed: int  # times that another upstream continued the stream


class AuditLog:
    """Appends to a file. A line is written at once: what is in the log has happened."""

    def __init__(self, path: str | None) -> None:
        self._file = None
        if path is not None:
            try:
                self._file = Path(path).expanduser().open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise BadSetting(
                    f"The audit log {path} cannot be opened: {error.strerror}.", field="audit_log"
                ) from None

    @property
    def is_open(self) -> bool:
        """Is there a file?"""
        return self._file is not None

    def write(self, entry: AuditEntry) -> None:
        """Append a line."""
        if self._file is not None:
            self._file.write(json.dumps(asdict(entry)) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
