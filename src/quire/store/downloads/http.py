"""Download a file over one HTTP connection, resuming what an earlier attempt or process left.

Large files are fetched over several connections (ranges.py). What is already on the disk is trusted here; the store
verifies the checksum of the whole file, and fetches it again if that is wrong.
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

from quire.store.disk_space import check_disk_space
from quire.store.errors import ModelNotFound, Unreachable, explain_write_errors
from quire.store.source import Progress

MAX_FAILURES_IN_A_ROW = 4  # attempts that fetched nothing
MAX_ATTEMPTS = 40  # in total, so that a server that drops every connection cannot keep us for ever
RETRY_SECONDS = 0.25
TIMEOUT = httpx.Timeout(30.0)
HTTP_OK, HTTP_PARTIAL, HTTP_RANGE_NOT_SATISFIABLE = 200, 206, 416


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server, and the client to fetch it with."""

    url: str
    label: str  # for the progress bar
    client: httpx.Client
    headers: Mapping[str, str] = field(default_factory=dict)


def http_client(auth: httpx.Auth | None = None) -> httpx.Client:
    """A client with the proxies and the certificates of the environment."""
    return httpx.Client(timeout=TIMEOUT, verify=_certificates(), auth=auth)


@functools.cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # cached: reading them takes longer than fetching a small file


class Interrupted(Exception):
    """A broken connection or a temporary error of the server: worth another attempt."""


def download(remote: RemoteFile, into: Path, size: int | None, progress: Progress) -> None:
    """Download to the file `into`. If this fails, what was fetched is kept."""

    def attempt() -> None:
        if size is not None and file_size(into) == size:
            progress(remote.label, size, size)
        else:
            _attempt(remote, into, size, progress)

    retry(attempt, lambda: file_size(into), lambda error: download_failed(remote, file_size(into), error))


def retry(attempt: Callable[[], None], done: Callable[[], int], failure: Callable[[Exception], Exception]) -> None:
    """Call `attempt` until it succeeds. Give up when `done` has not grown for several attempts: raise `failure`."""
    failures = 0
    for number in range(MAX_ATTEMPTS):
        before = done()
        try:
            attempt()
            return
        except (Interrupted, httpx.TransportError) as error:
            failures = 0 if done() > before else failures + 1
            if failures >= MAX_FAILURES_IN_A_ROW or number + 1 == MAX_ATTEMPTS:
                raise failure(error) from error
            time.sleep(RETRY_SECONDS * 2**failures)


@contextmanager
def open_range(remote: RemoteFile, start: int, end: int | None = None) -> Iterator[tuple[httpx.Response, int | None]]:
    """Request these bytes (without `end`, all from `start`): the response, and the size of the whole file if known.

    A server without ranges answers with the whole file, one whose file ends before `start` with status 416.
    """
    # Ranges count bytes on the wire, so the content must not be compressed.
    headers = {**remote.headers, "Accept-Encoding": "identity"}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
    with remote.client.stream("GET", remote.url, headers=headers, follow_redirects=True) as response:
        yield response, _total_size(remote, response, start)


def download_failed(remote: RemoteFile, kept: int, error: Exception) -> Unreachable:
    """The error for the user when no further attempt is made."""
    host = httpx.URL(remote.url).host
    resume = f" {kept / 1e6:,.1f} MB are kept: the same command resumes from there." if kept else ""
    reason = str(error) or type(error).__name__
    return Unreachable(
        f"The download of {remote.label} from {host} stopped ({reason}): check the network and try again.{resume}"
    )


def file_size(path: Path) -> int:
    """Bytes of a file; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def _attempt(remote: RemoteFile, into: Path, size: int | None, progress: Progress) -> None:
    have = file_size(into)
    if size is not None and have > size:  # of another file
        into.unlink()
        have = 0
    with open_range(remote, have) as (response, total):
        if response.status_code == HTTP_RANGE_NOT_SATISFIABLE:
            if total == have:
                return
            into.unlink()
            raise Interrupted("the partial file on disk belongs to another file")
        is_resumed = response.status_code == HTTP_PARTIAL
        start = have if is_resumed else 0
        if total is not None:
            check_disk_space(into.parent, total - start)
        with explain_write_errors(into.parent), into.open("ab" if is_resumed else "wb") as file:
            for chunk in response.iter_raw():  # no chunk size: it would hold back bytes that a break then loses
                file.write(chunk)
                start += len(chunk)
                progress(remote.label, start, size or total)
    expected = size if size is not None else total
    if expected is not None and start != expected:
        raise Interrupted(f"received {start:,} of {expected:,} bytes")


def _total_size(remote: RemoteFile, response: httpx.Response, start: int) -> int | None:
    """The size of the whole file, if the server states it. Raises if the response is an error."""
    code = response.status_code
    if code in (HTTP_PARTIAL, HTTP_RANGE_NOT_SATISFIABLE):
        span, _, whole = response.headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
        if code == HTTP_PARTIAL and not span.startswith(f"{start}-"):
            raise Interrupted(f"the server sent {span or 'an unnamed range'} instead of {start}-")
        return int(whole) if whole.isdigit() else None
    if code == HTTP_OK:
        length = response.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else None
    host = response.url.host
    if code in (401, 403):
        raise Unreachable(f"{host} refuses {remote.label} (HTTP {code}): check that you are logged in and have access.")
    if code in (404, 410):
        raise ModelNotFound(f"{host} does not have {remote.label} (HTTP {code}): check the name.")
    if code in (408, 425, 429) or code >= 500:
        raise Interrupted(f"HTTP {code}")
    raise Unreachable(f"{host} answers HTTP {code} to a request for {remote.label}: try again later.")
