"""Large files over several connections: nothing is fetched twice, even if the process is killed in between."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from quire.store.downloads import ranges
from quire.store.downloads.http import RemoteFile
from quire.store.downloads.ranges import PartialFile, download_in_ranges, progress_file
from quire.store.errors import DiskFull, ModelNotFound, Unreachable
from quire.store.source import Progress, no_progress
from tests.store.hub import place_of, publish
from tests.store.server import Behaviour, serving, span_of

pytestmark = pytest.mark.pure

CONTENT = random.Random(3).randbytes(500_000)  # 7 whole pieces of 64 KB, and some


@pytest.fixture
def get(server, tmp_path, small_pieces) -> Callable[..., bytes]:
    server.files["/file"] = CONTENT

    def run(progress: Progress = no_progress) -> bytes:
        with httpx.Client() as client:
            address = RemoteFile(f"{server.url}/file", "the file", client)
            download_in_ranges(address, tmp_path / "part", len(CONTENT), progress)
        assert not progress_file(tmp_path / "part").exists()
        return (tmp_path / "part").read_bytes()

    return run


def spans(server: Behaviour) -> list[tuple[int, int]]:
    return sorted(span_of(each or "bytes=0-", len(CONTENT)) for each in server.ranges_of("/file"))


def test_a_large_file_is_fetched_in_pieces_without_gaps(get, server):
    seen = []
    assert get(lambda what, done, total: seen.append((done, total))) == CONTENT
    starts, ends = zip(*spans(server), strict=True)
    assert starts == tuple(range(0, len(CONTENT), 1 << 16)) and ends == (*starts[1:], len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_several_connections_are_open_at_once(get, server):
    server.stall = 1000

    def hear(what: str, done: int, total: int | None) -> None:
        if not server.go_on.is_set() and len(server.requests) == ranges.CONNECTIONS:
            assert done <= ranges.CONNECTIONS * server.stall, "no connection has received more than its first bytes"
            server.go_on.set()

    assert get(hear) == CONTENT and server.go_on.is_set()


def test_a_small_file_is_fetched_over_one_connection(get, server, monkeypatch):
    monkeypatch.setattr("quire.store.downloads.ranges.PARALLEL_FROM", len(CONTENT) + 1)
    assert get() == CONTENT and server.ranges_of("/file") == [None]


def test_a_broken_piece_is_resumed(get, server):
    server.drops = [10_000]
    assert get() == CONTENT
    assert sum(end - start for start, end in spans(server)) == len(CONTENT) + (1 << 16) - 10_000
    assert any(start % (1 << 16) == 10_000 for start, _ in spans(server))


def test_a_temporary_error_is_retried(get, server):
    server.failures = [503, 429, 500]
    assert get() == CONTENT


def test_what_was_fetched_is_kept_when_the_server_keeps_failing(get, server, tmp_path):
    server.drops = [1 << 16, 1 << 16, 20_000] + [0] * 100
    with pytest.raises(Unreachable, match=r"0\.\d MB are kept: the same command resumes from there"):
        get()
    server.drops, server.requests = [], []
    assert get() == CONTENT
    assert sum(end - start for start, end in spans(server)) == len(CONTENT) - (2 << 16) - 20_000


@pytest.mark.parametrize("code, kind", [(404, ModelNotFound), (403, Unreachable)])
def test_a_refused_request_ends_all_pieces(get, server, code, kind):
    server.failures = [code] * 100
    with pytest.raises(kind, match=f"HTTP {code}"):
        get()
    assert len(server.requests) <= ranges.CONNECTIONS


def test_a_server_without_ranges_sends_the_whole_file(get, server):
    server.ranges = False
    assert get() == CONTENT


def test_a_download_over_one_connection_is_continued_in_pieces(get, server, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT[:200_000])
    assert get() == CONTENT
    assert spans(server)[0][0] == 200_000


def test_a_complete_file_is_not_requested_again(get, server, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT)
    assert get() == CONTENT and server.requests == []


@pytest.mark.parametrize("note", [b"", b"rubbish", b"\xff" * 80, bytes(80)])
def test_a_progress_file_of_another_download_is_ignored(get, tmp_path, note):
    (tmp_path / "part").write_bytes(b"rubbish")
    progress_file(tmp_path / "part").write_bytes(note)
    assert get() == CONTENT


def test_a_progress_file_without_its_download_is_ignored(get, tmp_path):
    pieces = PartialFile(tmp_path / "part", len(CONTENT))
    pieces.write(0, CONTENT[: 1 << 16])
    pieces.close()
    (tmp_path / "part").unlink()
    assert get() == CONTENT


def test_a_progress_that_raises_ends_the_download(get, server):
    def tired(what: str, done: int, total: int | None) -> None:
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(tired)
    before = len(server.requests)
    time.sleep(0.1)
    assert len(server.requests) == before


def test_a_disk_that_fills_up_is_reported_and_what_was_fetched_is_kept(server, small_disk, small_pieces, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1 << 40))  # it fills up later
    server.files["/file"] = CONTENT
    with httpx.Client() as client, pytest.raises(DiskFull, match=r"The disk of .* is full"):
        address = RemoteFile(f"{server.url}/file", "the file", client)
        download_in_ranges(address, small_disk / "part", len(CONTENT), no_progress)
    assert progress_file(small_disk / "part").exists()


def test_too_little_disk_space_is_reported_before_the_first_byte(get, server, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1 << 20))
    with pytest.raises(DiskFull, match="are needed and"):
        get()
    assert server.requests == []


def test_a_file_size_limit_of_the_system_is_reported(server, tmp_path):
    server.files["/file"] = CONTENT
    script = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        import httpx
        from quire.store.downloads import ranges
        from quire.store.downloads.http import RemoteFile
        from quire.store.errors import DiskFull
        ranges.PIECE, ranges.PARALLEL_FROM = 1 << 16, 1 << 18
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            address = RemoteFile(sys.argv[1], "the file", httpx.Client())
            ranges.download_in_ranges(address, Path(sys.argv[2]), 500_000, lambda *_: None)
        except DiskFull as error:
            print(error)
    """)
    command = [sys.executable, "-c", script, f"{server.url}/file", str(tmp_path / "part")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert "larger than the system allows" in done.stdout and "ulimit -f" in done.stdout


PULLER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from quire.store.downloads import ranges
    from quire.store.sources.huggingface import HuggingFace
    from quire.store.store import Store
    ranges.PIECE, ranges.PARALLEL_FROM = 1 << 16, 1 << 18
    store = Store(Path(sys.argv[1]), [HuggingFace(sys.argv[2])])
    print(store.pull("hf.co/org/toy").files[0].digest)
""")


def test_a_killed_pull_resumes_without_fetching_finished_pieces_again(server, tmp_path):
    publish(server, "org/toy", {"toy-Q4_0.gguf": CONTENT})
    place, num_finished, stalled_at = place_of(CONTENT), 4, 30_000
    server.stall, server.stall_from = stalled_at, num_finished << 16
    command = [sys.executable, "-c", PULLER, str(tmp_path), server.url]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 100
    expected = (num_finished << 16) + 4 * stalled_at
    while noted(tmp_path) < expected:
        assert child.poll() is None and time.monotonic() < deadline, child.stderr.read()
        time.sleep(0.02)
    child.kill()
    child.communicate(timeout=100)
    server.stall, server.requests = None, []
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == hashlib.sha256(CONTENT).hexdigest()
    requested = sorted(span_of(each, len(CONTENT)) for each in server.ranges_of(place))
    assert [start for start, _ in requested] == [(n << 16) + stalled_at for n in range(num_finished, 8)]
    assert list((tmp_path / "partial").iterdir()) == []


def noted(home: Path) -> int:
    """How many bytes the note of an unfinished download promises."""
    for note in (home / "partial").glob("*.ranges"):
        raw = note.read_bytes()
        return sum(int.from_bytes(raw[at : at + 8], "little") for at in range(16, len(raw), 8))
    return 0


def test_a_proxy_of_the_environment_is_used(tmp_path, small_pieces, monkeypatch, no_proxy):
    with serving() as proxy:
        proxy.files["http://files.invalid/file"] = CONTENT  # a proxy is asked for whole addresses
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with httpx.Client() as client:
            address = RemoteFile("http://files.invalid/file", "the file", client)
            download_in_ranges(address, tmp_path / "part", len(CONTENT), no_progress)
        assert (tmp_path / "part").read_bytes() == CONTENT and len(proxy.requests) == 8
