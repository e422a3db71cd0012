"""Several names for one file: they share an engine, and each has its own preset."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.serve.residency.roster import weights_identity, weights_path
from tests.serve.admin.test_library import PIRATE, QUESTION, _with_base, quire, serving
from tests.store.folders import ollama_model

ollama = pytest.importorskip("ollama")

pytestmark = pytest.mark.e2e

SHORT = {"temperature": 0, "num_predict": 12}


@pytest.fixture
def home(tmp_path_factory, model_file) -> Path:
    folder = _with_base(tmp_path_factory.mktemp("same"), model_file)
    made = quire(folder, "create", "pirate", "-f", "-", stdin=f"FROM base\nSYSTEM {PIRATE}\nPARAMETER top_k 7\n")
    assert made.returncode == 0 and quire(folder, "cp", "base", "twin").returncode == 0
    return folder


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["1-front", "2-fronts"])
def url(home, request) -> Iterator[str]:
    with serving(home, "--fronts", request.param) as url:
        yield url


@pytest.fixture
def client(url) -> Iterator[Any]:
    with ollama.Client(host=url, timeout=120) as made:
        yield made


def say(client: Any, model: str) -> str:
    return client.chat(model, QUESTION, options=SHORT).message.content


def props(url: str) -> dict[str, Any]:
    return httpx.get(f"{url}/props", trust_env=False).json()


def running(url: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in httpx.get(f"{url}/api/ps", trust_env=False).json()["models"]}


def test_names_of_one_file_have_one_engine_and_texts_of_their_own(client, url, home):
    plain, as_pirate, again = say(client, "base"), say(client, "pirate"), say(client, "twin")
    assert plain == again != as_pirate
    assert client.show("pirate").parameters.split() == ["top_k", "7"] and not client.show("base").parameters
    memory = props(url)["memory"]
    assert memory["num_loads"] == 1 and list(memory["taken_bytes"]) == ["base, pirate, twin"]
    assert [(name, each["shares_with"]) for name, each in sorted(running(url).items())] == [
        ("base", ""),
        ("pirate", "base"),
        ("twin", "base"),
    ]
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    assert [f'quire_requests_waiting{{model="{name}"}}' in text for name in ("base", "twin")] == [True, False]

    # A name that is removed leaves the engine to the others, and is told of no more.
    client.delete("base")
    assert say(client, "twin") == plain and say(client, "pirate") == as_pirate
    assert set(props(url)["models"]) == {"pirate", "twin"} and props(url)["memory"]["num_loads"] == 1
    assert set(running(url)) == {"pirate", "twin"}

    # The same if another process removes it; and the last one takes the engine with it.
    assert quire(home, "rm", "twin").returncode == 0
    assert set(props(url)["models"]) == {"pirate"} and set(running(url)) == {"pirate"}
    client.delete("pirate")
    assert props(url)["models"] == {} and running(url) == {}
    assert quire(home, "list").stdout.count("\n") == 1


def test_used_memory_is_reported_beside_the_allowed_memory(model_file, tmp_path):
    with serving(_with_base(tmp_path / "home", model_file)) as url, ollama.Client(host=url, timeout=120) as client:
        say(client, "base")
        first = running(url)["base"]
        assert 0 < first["size_used"] < first["size"]
        client.chat("base", [{"role": "user", "content": "count " * 100}], options=SHORT)
        second = running(url)["base"]
        assert first["size_used"] < second["size_used"] < second["size"] == first["size"]
        assert first["size"] == props(url)["memory"]["taken_bytes"]["base"]


def test_the_same_path_under_two_names_is_one_engine(model_file, tmp_path):
    with serving(tmp_path / "home", f"a={model_file}", f"b={model_file}", "--only") as url:
        for name in ("a", "b"):
            body = {"model": name, "prompt": "Once", "max_tokens": 2}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False).status_code == 200
        assert props(url)["memory"]["num_loads"] == 1


def test_a_model_that_ollama_keeps_is_served_by_its_name(model_file, tmp_path, monkeypatch):
    layers = [("model", model_file.read_bytes()), ("params", b'{"num_predict": 3}')]
    ollama_model(tmp_path / "ollama", "library/kept", "1b", layers)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    with serving(_with_base(tmp_path / "home", model_file)) as url, ollama.Client(host=url, timeout=120) as client:
        assert [each.model for each in client.list().models] == ["base"]
        assert client.chat("kept:1b", QUESTION).eval_count == 3
        assert {each.model for each in client.list().models} == {"base", "kept:1b"} and set(running(url)) == {"kept:1b"}
        with pytest.raises(ollama.ResponseError, match=r"Did you mean kept:1b\?"):
            client.chat("kept:2b", QUESTION)
    assert not [
        path for path in (tmp_path / "home" / "blobs").iterdir() if not path.is_symlink() and path.stat().st_size > 1e6
    ]


@pytest.mark.pure
def test_weights_are_the_same_if_their_files_are(tmp_path):
    first, second, other = (tmp_path / name for name in ("a", "b", "c"))
    for folder in (first, second, other):
        folder.mkdir()
    (tmp_path / "blob").write_bytes(b"GGUF")
    for folder in (first, second):
        (folder / "toy.gguf").symlink_to(tmp_path / "blob")
    (second / "preset.system").write_text("Be brief.")
    shutil.copy2(tmp_path / "blob", other / "toy.gguf")
    one, two, three = (weights_identity(folder / "toy.gguf") for folder in (first, second, other))
    assert one == two != three
    assert weights_path(first / "toy.gguf") == (tmp_path / "blob").resolve()
    (tmp_path / "blob").write_bytes(b"GGUF changed")
    assert weights_identity(first / "toy.gguf") != one


@pytest.mark.pure
def test_a_folder_is_the_same_without_its_preset_and_with_all_its_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = weights_identity(tmp_path)
    (tmp_path / "preset.template").write_text("x")
    assert weights_identity(tmp_path) == before and weights_path(tmp_path) == tmp_path
    (tmp_path / "tokenizer.json").write_text("{}")
    assert weights_identity(tmp_path) != before
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    split = tmp_path / "m-00001-of-00002.gguf"
    before = weights_identity(split)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"GGUF2")
    assert weights_identity(split) != before and weights_path(split) == split
