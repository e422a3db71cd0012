"""Downloads that break and are resumed."""

import errno

import httpx
import pytest

from quire.store.disk_space import check_disk_space
from quire.store.downloads import http as module
from quire.store.downloads.http import RemoteFile, download
from quire.store.errors import DiskFull, ModelNotFound, Unreachable, Unwritable
from quire.store.source import no_progress

pytestmark = pytest.mark.pure

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def get(server, tmp_path):
    """Download the server's file to tmp_path / "part"."""
    server.files["/file"] = CONTENT
    target = tmp_path / "part"

    def run(progress=no_progress, size=None):
        with httpx.Client() as client:
            download(RemoteFile(f"{server.url}/file", "the file", client), target, size, progress)
        return target.read_bytes()

    return run


def test_a_file_is_fetched_completely_with_progress(get):
    seen = []
    assert get(lambda what, done, total: seen.append((done, total))) == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_dropped_connection_is_resumed_where_it_broke(get, server):
    server.drops = [300_000, 200_000]
    assert get() == CONTENT
    assert server.ranges_of("/file") == [None, "bytes=300000-", "bytes=500000-"]


def test_another_process_resumes_the_download(get, server, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT[:700_000])
    assert get() == CONTENT
    assert server.ranges_of("/file") == ["bytes=700000-"]


def test_a_complete_file_is_not_requested_again(get, server, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT)
    assert get(size=len(CONTENT)) == CONTENT and server.requests == []
    assert get() == CONTENT and server.ranges_of("/file") == [f"bytes={len(CONTENT)}-"]


def test_a_partial_file_that_is_too_long_is_discarded(get, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT + b"more")
    assert get() == CONTENT
    (tmp_path / "part").write_bytes(CONTENT + b"more")
    assert get(size=len(CONTENT)) == CONTENT


def test_a_server_without_ranges_sends_the_whole_file_again(get, server):
    server.ranges, server.drops = False, [300_000]
    assert get() == CONTENT


def test_a_temporary_error_is_retried(get, server):
    server.failures = [503, 429]
    assert get() == CONTENT


def test_what_was_fetched_is_kept_when_the_server_keeps_failing(get, server, tmp_path):
    server.drops, server.failures = [300_000], []
    server.files["/file"] = CONTENT
    server.drops += [0] * 10
    with pytest.raises(Unreachable, match=r"0\.3 MB are kept: the same command resumes"):
        get()
    assert (tmp_path / "part").read_bytes() == CONTENT[:300_000]
    assert len(server.requests) == 1 + module.MAX_FAILURES_IN_A_ROW
    server.drops = []
    assert get() == CONTENT


def test_a_server_that_sends_one_byte_per_attempt_is_given_up(get, server):
    server.drops = [10] * 1000
    with pytest.raises(Unreachable):
        get()
    assert len(server.requests) == module.MAX_ATTEMPTS


@pytest.mark.parametrize("code, kind", [(404, ModelNotFound), (403, Unreachable), (418, Unreachable)])
def test_a_refused_request_is_not_retried(get, server, code, kind):
    server.failures = [code]
    with pytest.raises(kind, match=f"HTTP {code}"):
        get()
    assert len(server.requests) == 1


def test_an_unreachable_host_is_an_error_with_its_name(tmp_path, server):
    with httpx.Client() as client, pytest.raises(Unreachable, match=r"from 127\.0\.0\.1 stopped"):
        download(RemoteFile("http://127.0.0.1:1/file", "the file", client), tmp_path / "part", None, no_progress)


def test_too_little_disk_space_is_reported_before_the_first_byte(get, server, monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 20 << 20})())
    assert get() == CONTENT
    (tmp_path / "part").unlink()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1 << 20})())
    with pytest.raises(DiskFull, match="1 MB are needed and 1 MB are free"):
        get()
    assert not (tmp_path / "part").exists()
    with pytest.raises(DiskFull, match="QUIRE_HOME"):
        check_disk_space(tmp_path, 1 << 60)


def test_an_unwritable_folder_is_reported(get, monkeypatch):
    def refuse(*args, **named):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(Unwritable, match="Read-only file system"):
        get()
