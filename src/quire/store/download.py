"""HTTP into a file, going on where an earlier attempt stopped, in this process or in one before it.

The part that is there is trusted until the whole is hashed: the store does that, and starts anew if it was wrong.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from .errors import DiskFull, ModelNotFound, Unreachable, writing
from .source import Progress

MAX_FRUITLESS = 4  # attempts in a row that brought nothing
MAX_ATTEMPTS = 40  # in all, so that a server that drops every connection cannot hold us for ever
RETRY_SECONDS = 0.25
KEEP_FREE = 16 << 20  # of the disk: a full one breaks more than us
HTTP_OK, HTTP_PARTIAL, HTTP_GONE_RANGE = 200, 206, 416


@dataclass(frozen=True, slots=True)
class Address:
    """What to get, and how to speak to who has it."""

    url: str
    what: str  # for the progress bar
    client: httpx.Client
    headers: Mapping[str, str] = field(default_factory=dict)


class _Interrupted(Exception):
    """The connection broke or the server had a moment of weakness: worth another attempt."""


def download(address: Address, into: Path, size: int | None, progress: Progress) -> None:
    """Bring all bytes of `address` into the file `into`. What is there is kept whenever this fails."""
    fruitless = 0
    for attempt in range(MAX_ATTEMPTS):
        before = _size(into)
        if size is not None and before == size:
            progress(address.what, size, size)
            return
        try:
            _attempt(address, into, size, progress)
            return
        except (_Interrupted, httpx.TransportError) as error:
            fruitless = 0 if _size(into) > before else fruitless + 1
            if fruitless >= MAX_FRUITLESS or attempt + 1 == MAX_ATTEMPTS:
                raise _gave_up(address, into, error) from error
            time.sleep(RETRY_SECONDS * 2**fruitless)


def check_room(folder: Path, num_bytes: int) -> None:
    """Refuse before the first byte what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes + KEEP_FREE:
        raise DiskFull(
            f"{num_bytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free in {folder}: free some space, "
            "or move the store to another disk with QUIRE_HOME."
        )


def _attempt(address: Address, into: Path, size: int | None, progress: Progress) -> None:
    have = _size(into)
    if size is not None and have > size:  # not a part of this file
        into.unlink()
        have = 0
    # Ranges count the bytes on the wire, so nobody may compress them on the way.
    headers = {**address.headers, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with address.client.stream("GET", address.url, headers=headers, follow_redirects=True) as answer:
        total = _judge(address, answer, have)
        if answer.status_code == HTTP_GONE_RANGE:
            if total == have:
                return
            into.unlink()
            raise _Interrupted("the part on disk does not belong to this file")
        resumed = answer.status_code == HTTP_PARTIAL
        start = have if resumed else 0
        if total is not None:
            check_room(into.parent, total - start)
        with writing(into.parent), into.open("ab" if resumed else "wb") as file:
            for chunk in answer.iter_raw():  # as it comes: a size here would hold back what a broken connection brought
                file.write(chunk)
                start += len(chunk)
                progress(address.what, start, size or total)
    expected = size if size is not None else total
    if expected is not None and start != expected:
        raise _Interrupted(f"{start:,} of {expected:,} bytes came")


def _judge(address: Address, answer: httpx.Response, have: int) -> int | None:
    """The size of the whole file, if the server says it. Raises when there is no file to be had."""
    code = answer.status_code
    if code in (HTTP_PARTIAL, HTTP_GONE_RANGE):
        span, _, whole = answer.headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
        if code == HTTP_PARTIAL and not span.startswith(f"{have}-"):
            raise _Interrupted(f"the server sent {span or 'an unnamed range'} instead of {have}-")
        return int(whole) if whole.isdigit() else None
    if code == HTTP_OK:
        length = answer.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else None
    host = answer.url.host
    if code in (401, 403):
        raise Unreachable(f"{host} refuses {address.what} (HTTP {code}): check that you are logged in and have access.")
    if code in (404, 410):
        raise ModelNotFound(f"{host} does not have {address.what} (HTTP {code}): check the name.")
    if code in (408, 425, 429) or code >= 500:
        raise _Interrupted(f"HTTP {code}")
    raise Unreachable(f"{host} answers HTTP {code} to a request for {address.what}: try again later.")


def _gave_up(address: Address, into: Path, error: Exception) -> Unreachable:
    host = httpx.URL(address.url).host
    kept = f" {_size(into) / 1e6:,.1f} MB are kept: the same command goes on from there." if _size(into) else ""
    reason = str(error) or type(error).__name__
    return Unreachable(
        f"The download of {address.what} from {host} stopped ({reason}): check the network and try again.{kept}"
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
