"""HTTP into a file, going on where an earlier attempt stopped, in this process or in one before it.

A small file, or one of unknown size, comes over one connection (here); a large one over several (ranges.py). The part
that is there is trusted until the whole is hashed: the store does that, and starts anew if it was wrong.
"""

from __future__ import annotations

import functools
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from .errors import ModelNotFound, Unreachable, writing
from .room import check_room
from .source import Progress

MAX_FRUITLESS = 4  # attempts in a row that brought nothing
MAX_ATTEMPTS = 40  # in all, so that a server that drops every connection cannot hold us for ever
RETRY_SECONDS = 0.25
TIMEOUT = httpx.Timeout(30.0)
HTTP_OK, HTTP_PARTIAL, HTTP_GONE_RANGE = 200, 206, 416


@dataclass(frozen=True, slots=True)
class Address:
    """What to get, and how to speak to who has it."""

    url: str
    what: str  # for the progress bar
    client: httpx.Client
    headers: Mapping[str, str] = field(default_factory=dict)


def http_client(auth: httpx.Auth | None = None) -> httpx.Client:
    """With the proxies and the certificates of the environment."""
    return httpx.Client(timeout=TIMEOUT, verify=_certificates(), auth=auth)


@functools.cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reading them takes longer than fetching a small file


class Interrupted(Exception):
    """The connection broke or the server had a moment of weakness: worth another attempt."""


def download(address: Address, into: Path, size: int | None, progress: Progress) -> None:
    """Bring all bytes of `address` into the file `into`. What is there is kept whenever this fails."""

    def attempt() -> None:
        if size is not None and size_of(into) == size:
            progress(address.what, size, size)
        else:
            _attempt(address, into, size, progress)

    insist(attempt, lambda: size_of(into), lambda error: gave_up(address, size_of(into), error))


def insist(attempt: Callable[[], None], done: Callable[[], int], failure: Callable[[Exception], Exception]) -> None:
    """Call `attempt` until it ends well, as long as `done` grows now and then; else raise what `failure` says."""
    fruitless = 0
    for number in range(MAX_ATTEMPTS):
        before = done()
        try:
            attempt()
            return
        except (Interrupted, httpx.TransportError) as error:
            fruitless = 0 if done() > before else fruitless + 1
            if fruitless >= MAX_FRUITLESS or number + 1 == MAX_ATTEMPTS:
                raise failure(error) from error
            time.sleep(RETRY_SECONDS * 2**fruitless)


@contextmanager
def asking(address: Address, start: int, end: int | None = None) -> Iterator[tuple[httpx.Response, int | None]]:
    """The answer to a request for these bytes (all from `start` on without an `end`), and the size of the whole file
    if the server says it. A server without ranges answers with the whole; one that has no such bytes, with 416."""
    # Ranges count the bytes on the wire, so nobody may compress them on the way.
    headers = {**address.headers, "Accept-Encoding": "identity"}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
    with address.client.stream("GET", address.url, headers=headers, follow_redirects=True) as answer:
        yield answer, _judge(address, answer, start)


def gave_up(address: Address, kept: int, error: Exception) -> Unreachable:
    """What to tell the user when no further attempt is made."""
    host = httpx.URL(address.url).host
    going_on = f" {kept / 1e6:,.1f} MB are kept: the same command goes on from there." if kept else ""
    reason = str(error) or type(error).__name__
    return Unreachable(
        f"The download of {address.what} from {host} stopped ({reason}): check the network and try again.{going_on}"
    )


def size_of(path: Path) -> int:
    """Of a file; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def _attempt(address: Address, into: Path, size: int | None, progress: Progress) -> None:
    have = size_of(into)
    if size is not None and have > size:  # not a part of this file
        into.unlink()
        have = 0
    with asking(address, have) as (answer, total):
        if answer.status_code == HTTP_GONE_RANGE:
            if total == have:
                return
            into.unlink()
            raise Interrupted("the part on disk does not belong to this file")
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
        raise Interrupted(f"{start:,} of {expected:,} bytes came")


def _judge(address: Address, answer: httpx.Response, start: int) -> int | None:
    """The size of the whole file, if the server says it. Raises when there is no file to be had."""
    code = answer.status_code
    if code in (HTTP_PARTIAL, HTTP_GONE_RANGE):
        span, _, whole = answer.headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
        if code == HTTP_PARTIAL and not span.startswith(f"{start}-"):
            raise Interrupted(f"the server sent {span or 'an unnamed range'} instead of {start}-")
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
        raise Interrupted(f"HTTP {code}")
    raise Unreachable(f"{host} answers HTTP {code} to a request for {address.what}: try again later.")
