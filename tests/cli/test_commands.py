"""The commands around the store, and what every command does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from quire import __version__
from quire.config import ServeConfig, settings
from quire.serve.access.keys import read_keys
from tests.cli.conftest import install_default
from tests.store.folders import hub_model, ollama_model

pytestmark = pytest.mark.pure


def test_models_are_listed_shown_copied_and_removed(quire):
    assert quire("list").stdout.split() == ["NAME", "SIZE", "FORMAT", "FETCHED"]
    install_default(quire)
    done = quire("cp", "smollm2:135m", "mine")
    assert (done.returncode, done.stdout) == (0, "smollm2:135m is now mine:latest too\n")
    lines = quire("ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "mine:latest", "smollm2:135m"]
    assert quire("rm", "smollm2:135m").stdout == "removed smollm2:135m, 0.0 MB freed\n"
    assert quire("list").stdout.splitlines()[1].startswith("mine:latest  0.0 MB  gguf")


def test_models_of_other_programs_are_listed_with_where_they_are(quire, tmp_path, monkeypatch):
    install_default(quire)
    ollama, hub = tmp_path / "ollama models", tmp_path / "hub"
    ollama_model(ollama, "library/llama3.2", "1b", [("model", b"GGUF" + bytes(2_000_000))])
    snapshot = hub_model(hub, "org/repo", {"toy-Q8_0.gguf": b"GGUF" + bytes(3_000_000)})
    monkeypatch.setenv("OLLAMA_MODELS", str(ollama))
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert len(quire("list").stdout.splitlines()) == 2
    head, own, *others = quire("list", "--all").stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "FORMAT", "FETCHED", "WHERE"]
    assert own.startswith("smollm2:135m ") and own.endswith(f"the store, {quire.folder / 'home'}")
    assert [line.split()[:5] for line in others] == [
        ["hf.co/org/repo:Q8_0", "3.0", "MB", "gguf", "Q8_0"],
        ["llama3.2:1b", "2.0", "MB", "gguf", "Q4_K_M"],
    ]
    assert others[0].endswith(f"the hub's cache, {snapshot.parents[1]}") and others[1].endswith(f"Ollama, {ollama}")
    assert "`ollama rm llama3.2:1b` removes it there" in quire("rm", "llama3.2:1b").stderr
    assert quire("pull", "llama3.2:1b").returncode == 0
    assert [line.split()[0] for line in quire("list").stdout.splitlines()[1:]] == ["llama3.2:1b", "smollm2:135m"]


def test_a_typo_is_told_what_was_meant(quire):
    done = quire("run", "smolm2:135m", "hi")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("Did you mean smollm2:135m?")


@pytest.mark.parametrize("command", [("rm", "nothing"), ("show", "nothing"), ("cp", "nothing", "mine")])
def test_what_is_not_there_is_an_error(quire, command):
    done = quire(*command)
    assert done.returncode == 1 and done.stderr.startswith("error: nothing is not in the store: see `quire list`")


def test_show_tells_the_sampling_defaults_and_where_they_are_from(quire, model_file):
    (quire.folder / "model.gguf").symlink_to(model_file)
    (quire.folder / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 20}')
    (quire.folder / "preset.params.json").write_text('{"top_k": 5}')
    told = quire("show", str(quire.folder / "model.gguf")).stdout
    assert "sampling defaults  temperature 0.3 (generation_config.json); top_k 5 (Modelfile)\n" in told


def test_a_flag_of_vllm_is_answered_with_ours(quire):
    done = quire("serve", "toy", "--max-model-len", "4096")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "error: --max-model-len is vLLM's. Use `--max-context`.",
    )


def test_a_truncated_file_is_named_by_show(quire):
    done = quire("show", quire.model)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "error: toy.gguf: it ends inside its header. The file is not complete: download it again.",
    )


def test_a_truncated_model_of_the_store_is_told_how_to_be_mended(quire):
    install_default(quire)
    (blob,) = (quire.folder / "home" / "blobs").iterdir()
    blob.write_bytes(b"GG")
    done = quire("run", "smollm2:135m", "hi")
    assert done.returncode == 1
    assert "x.gguf of smollm2:135m has 2 bytes instead of 4: mend it with `quire pull smollm2:135m`." in done.stderr


def test_pull_says_what_it_cannot(quire):
    done = quire("pull", "unheard-of")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: unheard-of:latest is not here, and 127.0.0.1:1 cannot be reached (")
    assert "check the network and the proxy, or use what is here (`quire list`) or the path of a model." in done.stderr
    done = quire("pull", quire.model)
    assert done.returncode == 1 and "there is nothing to pull" in done.stderr


def test_a_home_can_be_given_as_a_flag(quire, tmp_path):
    assert quire("list", "--home", str(tmp_path / "other")).returncode == 0
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_command(quire, flag):
    done = quire(flag)
    assert done.returncode == 0
    for name in ("run", "serve", "key", "pull", "push", "list", "show", "cp", "rm"):
        assert f" {name} " in done.stdout


@pytest.mark.parametrize("command, without", [("run", {"serve", "grammar"}), ("serve", set())])
def test_help_has_a_flag_for_every_setting_that_concerns_the_command(quire, command, without):
    shown = quire(command, "--help").stdout
    assert [each.flag for each in settings() if each.section not in without and each.flag not in shown] == []


def test_a_key_is_made_with_a_secret_that_opens_it(quire, tmp_path):
    done = quire("key", 'a "friend"')
    path = tmp_path / "keys.toml"
    path.write_text(done.stdout)
    secret = done.stderr.split()[-1]
    assert read_keys(ServeConfig(api_keys=str(path))).find(secret).name == 'a "friend"' and secret not in done.stdout


def test_the_version_is_answered_without_importing_anything(quire):
    script = "import sys; from quire.cli.main import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=quire.environment, capture_output=True, text=True, check=True, timeout=100
    )
    said, modules = done.stdout.splitlines()
    assert said == f"quire {__version__}"
    assert {"typer", "rich", "httpx", "numpy", "huggingface_hub"} & set(modules.split()) == set()


def test_help_imports_no_http_client_and_no_engine(quire):
    script = "import sys; from quire.cli.main import main; main(['run', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=quire.environment, capture_output=True, text=True, check=True, timeout=100
    )
    modules = set(done.stdout.splitlines()[-1].split())
    assert {"httpx", "numpy", "huggingface_hub", "torch", "transformers", "tokenizers"} & modules == set()


@pytest.mark.parametrize("command", [["list"], ["cp", "smollm2:135m", "mine"], ["rm", "smollm2:135m"]])
def test_what_stays_at_home_imports_no_http_client(quire, command):
    install_default(quire)
    script = f"import sys; from quire.cli.main import main; print(main({command!r})); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=quire.environment, capture_output=True, text=True, check=True, timeout=100
    )
    code, modules = done.stdout.splitlines()[-2:]
    assert code == "0" and {"httpx", "huggingface_hub", "ssl"} & set(modules.split()) == set()


def test_logs_are_written_as_the_settings_say(quire):
    script = """
import contextlib, logging
from quire.cli.main import main
with contextlib.suppress(SystemExit):
    main(["run", "no-such-file.gguf", "hi", "--log-format", "json", "--log-level", "error"])
logging.getLogger("quire.cache").warning("not this")
logging.getLogger("quire.cache").error("but this")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=quire.environment, capture_output=True, text=True, check=True, timeout=100
    )
    assert "not this" not in done.stderr
    said = json.loads(done.stderr.splitlines()[-1])
    assert (said["level"], said["message"]) == ("error", "but this")
