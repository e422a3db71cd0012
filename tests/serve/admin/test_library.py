"""The life of a model, driven by Ollama's client: created, shown, used, copied, deleted; and which keys may do that."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from quire.serve.access.keys import new_key
from quire.store.model_files import files_at
from quire.store.store import Store
from tests.store.docker_registry import running_registry
from tests.weights.file_bytes import gguf_bytes

ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")

pytestmark = pytest.mark.e2e

NOWHERE = "http://127.0.0.1:9"  # a registry that does not answer
SMALL = (
    "--port",
    "0",
    "--registry",
    NOWHERE,
    "--max-context",
    "512",
    "--max-rows",
    "8",
    "--num-blocks",
    "200",
    "--log-level",
    "warning",
)
START_SECONDS = 60
QUESTION = [{"role": "user", "content": "Who are you?"}]
PIRATE = "You are a pirate. Every answer begins with Arrr."
GREEDY = {"temperature": 0.0, "num_predict": 12}
CHATML = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"


def quire(home: Path, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quire", *map(str, arguments)]
    environment = os.environ | {"QUIRE_HOME": str(home)}
    return subprocess.run(
        command, env=environment, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


@contextmanager
def serving(home: Path, *arguments: object) -> Iterator[str]:
    """A server of every model in the store; its URL."""
    command = [sys.executable, "-m", "quire", "serve", *SMALL, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=os.environ | {"QUIRE_HOME": str(home)}, stderr=said, stdout=said)
        try:
            yield _url(process, said)
        finally:
            process.terminate()
            process.wait(60)


def _url(process: subprocess.Popen[bytes], said: IO[str]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while True:
        said.seek(0)
        for line in said.readlines():
            if line.startswith("Listening at ") and line.endswith("\n"):
                return line.split()[-1]
        assert process.poll() is None and time.monotonic() < deadline, "it did not start"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def home(tmp_path_factory, model_file) -> Path:
    """A store with the real model in it."""
    return _with_base(tmp_path_factory.mktemp("library"), model_file)


def _with_base(folder: Path, model_file: Path) -> Path:
    """The model is called `base`, and was put there by `quire create`."""
    done = quire(folder, "create", "base", "-f", "-", stdin=f"FROM {model_file}\nLICENSE Apache-2.0\n")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def url(home, request) -> Iterator[str]:
    """A server of the store; with several fronts where a test is parametrized so."""
    with serving(home, "--fronts", getattr(request, "param", 1)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with ollama.Client(host=url, timeout=120) as made:
        yield made


def names(client) -> set[str]:
    return {model.model.removesuffix(":latest") for model in client.list().models}


@pytest.mark.parametrize("url", [1, 2], indirect=True, ids=["1-front", "2-fronts"])
def test_a_model_is_created_shown_used_copied_and_deleted(client, url):
    made = client.create(model="pirate", from_="base", system=PIRATE, parameters=GREEDY, license="MIT")
    assert made.status == "success" and {"base", "pirate"} <= names(client)

    shown = client.show("pirate")
    assert shown.license == "Apache-2.0\n\nMIT"
    assert dict(line.split() for line in shown.parameters.splitlines()) == {"temperature": "0", "num_predict": "12"}
    assert f"SYSTEM {PIRATE}\n" in shown.modelfile and "FROM pirate:latest\n" in shown.modelfile

    said = client.chat("pirate", QUESTION).message.content
    explicit = [{"role": "system", "content": PIRATE}, *QUESTION]
    assert said == client.chat("base", explicit, options=GREEDY).message.content
    assert said != client.chat("base", QUESTION, options=GREEDY).message.content
    assert said == client.generate("pirate", QUESTION[0]["content"]).response
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as other:
        assert said == other.chat.completions.create(model="pirate", messages=QUESTION).choices[0].message.content
    # What a request says goes before what the model has.
    longer = client.chat("pirate", QUESTION, options={"num_predict": 3})
    assert longer.eval_count == 3 and said.startswith(longer.message.content)
    assert client.chat("pirate", [{"role": "system", "content": ""}, *QUESTION]).message.content != said

    assert client.copy("pirate", "corsair").status == "success"
    assert client.delete("pirate").status == "success"
    assert "pirate" not in names(client) and "corsair" in names(client)
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("pirate", QUESTION)
    assert caught.value.status_code == 404
    assert client.chat("corsair", QUESTION).message.content == said
    client.delete("corsair")


def test_a_go_template_renders_like_the_models_own(client):
    client.create(model="go", from_="base", template=CHATML, parameters=GREEDY, system="Be brief.")
    assert client.show("go").template == CHATML
    talk = [*QUESTION, {"role": "assistant", "content": "Me."}, {"role": "user", "content": "Really?"}]
    explicit = [{"role": "system", "content": "Be brief."}, *talk]
    assert client.chat("go", talk).message.content == client.chat("base", explicit, options=GREEDY).message.content
    client.delete("go")


def test_messages_of_the_model_come_before_the_talk(client):
    examples = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    client.create(model="taught", from_="base", messages=examples, parameters=GREEDY, system="Count.")
    explicit = [{"role": "system", "content": "Count."}, *examples, *QUESTION]
    assert (
        client.chat("taught", QUESTION).message.content == client.chat("base", explicit, options=GREEDY).message.content
    )
    client.delete("taught")


def test_creating_a_model_again_under_its_name_replaces_it(client):
    for system in ("You are a cat. Say miau.", PIRATE):
        client.create(model="again", from_="base", system=system, parameters=GREEDY)
        explicit = [{"role": "system", "content": system}, *QUESTION]
        told = client.chat("base", explicit, options=GREEDY).message.content
        assert client.chat("again", QUESTION).message.content == told
    client.delete("again")


def test_a_model_is_made_of_a_file_that_is_sent(client, model_file, url):
    digest = client.create_blob(model_file)
    assert httpx.head(f"{url}/api/blobs/{digest}", trust_env=False).status_code == 200
    steps = list(client.create(model="sent", files={"m.gguf": digest}, parameters=GREEDY, stream=True))
    assert steps[-1].status == "success" and len(steps) > 1
    assert (
        client.chat("sent", QUESTION).message.content == client.chat("base", QUESTION, options=GREEDY).message.content
    )
    client.delete("sent")


def test_a_model_goes_to_a_registry_and_comes_back_with_its_preset(tmp_path, model_file):
    home = tmp_path / "home"
    with running_registry(tmp_path) as registry, serving(_with_base(home, model_file)) as url:
        name = f"http://{registry.host}/tests/pirate:v1"
        with ollama.Client(host=url, timeout=120) as client:
            client.create(model=name, from_="base", system=PIRATE, template=CHATML, parameters=GREEDY)
            said = client.chat(name, QUESTION).message.content
            assert client.push(name).status == "success"
            client.delete("base")
            client.delete(name)  # and with it the last of its blobs
            steps = list(client.pull(name, stream=True))
            assert steps[0].status == "pulling manifest" and steps[-1].status == "success"
            assert any(step.digest and step.completed for step in steps)
            assert client.show(name).template == CHATML and f"SYSTEM {PIRATE}\n" in client.show(name).modelfile
            assert client.chat(name, QUESTION).message.content == said


def test_wrong_requests_are_refused_with_a_sentence(client, url):
    for wrong, status, said in (
        ({"model": "x", "from": "nobody"}, 502, "127.0.0.1"),
        ({"model": "x", "from": "/etc/passwd"}, 400, "path"),
        ({"model": "/tmp/x", "from": "base"}, 400, "name"),
        ({"model": "x", "from": "base", "template": "{{ if }}"}, 400, "template"),
        ({"model": "x", "from": "base", "adapters": {"a": "sha256:" + "0" * 64}}, 400, "LoRA"),
        ({"model": "x", "files": {"a.gguf": "sha256:" + "0" * 64}}, 400, "upload it first"),
    ):
        for stream in (True, False):
            answer = httpx.post(f"{url}/api/create", json=wrong | {"stream": stream}, trust_env=False, timeout=60)
            error = json.loads(answer.text.splitlines()[-1])["error"]
            assert said in error and answer.status_code == status, answer.text
    wrong_blob = httpx.post(f"{url}/api/blobs/sha256:{'0' * 64}", content=b"GGUF", trust_env=False)
    assert wrong_blob.status_code == 400 and "checksum" in wrong_blob.json()["error"]
    assert httpx.head(f"{url}/api/blobs/sha256:{'0' * 64}", trust_env=False).status_code == 404
    assert httpx.post(f"{url}/api/blobs/md5:1", content=b"", trust_env=False).status_code == 400
    wrong_verb = httpx.put(f"{url}/api/blobs/sha256:{'0' * 64}", trust_env=False)
    assert wrong_verb.status_code == 405 and wrong_verb.headers["allow"] == "HEAD, POST"
    for verb in (client.delete, client.show):
        with pytest.raises(ollama.ResponseError) as caught:
            verb("nobody")
        assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="not in the store"):
        client.copy("nobody", "somebody")
    assert "x" not in names(client)


def test_only_admins_may_change_models(home, tmp_path):
    secrets = {}
    lines = []
    for name in ("admin", "guest"):
        secrets[name], key = new_key(name)
        lines += ["[[key]]", f'name = "{name}"', f'sha256 = "{key.sha256}"', f"admin = {str(name == 'admin').lower()}"]
    (tmp_path / "keys.toml").write_text("\n".join(lines))
    digest = hashlib.sha256(b"x").hexdigest()
    with serving(home, "--api-keys", tmp_path / "keys.toml") as url:
        head = {name: {"authorization": f"Bearer {secret}"} for name, secret in secrets.items()}
        for method, path, body in (
            ("POST", "/api/create", {"model": "x", "from": "base", "stream": False}),
            ("POST", "/api/copy", {"source": "x", "destination": "y"}),
            ("DELETE", "/api/delete", {"model": "y"}),
            ("POST", f"/api/blobs/sha256:{digest}", None),
            ("HEAD", f"/api/blobs/sha256:{digest}", None),
        ):
            sent = {"content": b"x"} if body is None else {"json": body}
            for name, status in (("guest", {403}), ("admin", {200, 201})):
                answer = httpx.request(method, url + path, **sent, headers=head[name], trust_env=False, timeout=60)
                assert answer.status_code in status, (method, path, name, answer.text)
        httpx.request("DELETE", f"{url}/api/delete", json={"model": "x"}, headers=head["admin"], trust_env=False)


def test_the_command_line_makes_shows_copies_and_removes(home, tmp_path):
    (tmp_path / "Modelfile").write_text(
        f'FROM base\nSYSTEM """{PIRATE}"""\nPARAMETER temperature 0\nPARAMETER num_predict 5'
    )
    made = quire(home, "create", "cli", "-f", tmp_path / "Modelfile")
    assert made.returncode == 0 and made.stdout.startswith("created cli:latest"), made.stderr
    assert quire(home, "show", "cli", "--system").stdout == PIRATE + "\n"
    assert quire(home, "show", "cli", "--license").stdout == "Apache-2.0\n"
    assert "im_start" in quire(home, "show", "cli", "--template").stdout
    assert quire(home, "show", "cli", "--parameters").stdout.split() == ["num_predict", "5", "temperature", "0"]
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in quire(home, "show", "cli").stdout.splitlines())
    assert facts["sampling defaults"] == "max_tokens 5, temperature 0 (Modelfile)" and facts["system"] == PIRATE
    again = quire(home, "create", "cli2", "-f", "-", stdin=quire(home, "show", "cli", "--modelfile").stdout)
    assert again.returncode == 0 and quire(home, "show", "cli2", "--system").stdout == PIRATE + "\n"
    said = quire(home, "run", "cli", "Who are you?")
    explicit = quire(home, "run", "base", "Who are you?", "--system", PIRATE, "--temperature", "0", "--max-tokens", "5")
    assert said.returncode == 0 and said.stdout == explicit.stdout != "", said.stderr
    assert quire(home, "cp", "cli", "cli3").returncode == 0
    assert quire(home, "rm", "cli", "cli2", "cli3").returncode == 0
    assert "cli" not in quire(home, "list").stdout


def unsupported(folder: Path) -> Path:
    """A GGUF file that is sound, of a model that cannot be run."""
    path = folder / "strange.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": (8, "rwkv9")}))
    return path


def test_a_file_that_cannot_be_run_makes_no_model(home, tmp_path):
    done = quire(home, "create", "x", "-f", "-", stdin=f"FROM {unsupported(tmp_path)}\n")
    assert done.returncode == 1 and "architecture rwkv9 is not supported. Supported in gguf files are: " in done.stderr
    (tmp_path / "cut.gguf").write_bytes(b"GGUF and no more")
    done = quire(home, "create", "x", "-f", "-", stdin=f"FROM {tmp_path / 'cut.gguf'}\n")
    assert done.returncode == 1 and done.stderr.startswith("error: cut.gguf: ")
    assert "x:latest" not in quire(home, "list").stdout


def test_a_file_that_was_sent_and_cannot_be_run_makes_no_model(client, tmp_path):
    digest = client.create_blob(unsupported(tmp_path))
    with pytest.raises(ollama.ResponseError, match="The architecture rwkv9 is not supported"):
        client.create(model="x", files={"strange.gguf": digest})
    assert "x" not in names(client)


def test_a_model_that_cannot_be_run_is_no_base(home, tmp_path):
    Store(home).create("strange", files_at(unsupported(tmp_path)))  # as a pull would bring it
    done = quire(home, "create", "x", "-f", "-", stdin="FROM strange\nSYSTEM Hello\n")
    assert done.returncode == 1 and "rwkv9 is not supported" in done.stderr
    assert quire(home, "rm", "strange").returncode == 0 and "x:latest" not in quire(home, "list").stdout


def test_a_wrong_modelfile_is_an_error_with_its_line(home):
    done = quire(home, "create", "x", "-f", "-", stdin="FROM base\n\nPARAMETER warmth 3\n")
    assert done.returncode == 1 and done.stderr.startswith("error: Line 3 of the Modelfile: There is no parameter")
    done = quire(home, "create", "x", "-f", "-", stdin="FROM base\nADAPTER ./lora.gguf\n")
    assert done.returncode == 1 and "LoRA" in done.stderr
    assert "x:latest" not in quire(home, "list").stdout
