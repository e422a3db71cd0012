"""The commands of the store, and what all commands have in common."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quire import __version__
from quire.cli.commands import serve
from quire.config import Config, ServeConfig, load, settings
from quire.serve.access.keys import read_keys
from quire.store.store import Store
from tests.cli.conftest import store_default_model
from tests.store.folders import hub_model, ollama_model

pytestmark = pytest.mark.pure


def test_models_are_listed_shown_copied_and_removed(quire):
    assert quire("list").stdout.split() == ["NAME", "SIZE", "FORMAT", "FETCHED"]
    store_default_model(quire)
    done = quire("cp", "smollm2:135m", "mine")
    assert (done.returncode, done.stdout) == (0, "copied smollm2:135m to mine:latest\n")
    lines = quire("ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "mine:latest", "smollm2:135m"]
    assert quire("rm", "smollm2:135m").stdout == "removed smollm2:135m, 0.0 MB freed\n"
    assert quire("list").stdout.splitlines()[1].startswith("mine:latest  0.0 MB  gguf")


def test_models_of_other_programs_are_listed_with_their_folders(quire, tmp_path, monkeypatch):
    store_default_model(quire)
    ollama, hub = tmp_path / "ollama models", tmp_path / "hub"
    ollama_model(ollama, "library/llama3.2", "1b", [("model", b"GGUF" + bytes(2_000_000))])
    snapshot = hub_model(hub, "org/repo", {"toy-Q8_0.gguf": b"GGUF" + bytes(3_000_000)})
    monkeypatch.setenv("OLLAMA_MODELS", str(ollama))
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert len(quire("list").stdout.splitlines()) == 2
    head, stored, *others = quire("list", "--all").stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "FORMAT", "FETCHED", "WHERE"]
    assert stored.startswith("smollm2:135m ") and stored.endswith(f"the store, {quire.folder / 'home'}")
    assert [line.split()[:5] for line in others] == [
        ["hf.co/org/repo:Q8_0", "3.0", "MB", "gguf", "Q8_0"],
        ["llama3.2:1b", "2.0", "MB", "gguf", "Q4_K_M"],
    ]
    assert others[0].endswith(f"the hub's cache, {snapshot.parents[1]}") and others[1].endswith(f"Ollama, {ollama}")
    assert "`ollama rm llama3.2:1b` removes it there" in quire("rm", "llama3.2:1b").stderr
    assert quire("pull", "llama3.2:1b").returncode == 0
    assert [line.split()[0] for line in quire("list").stdout.splitlines()[1:]] == ["llama3.2:1b", "smollm2:135m"]


def test_a_typo_gets_a_suggestion(quire):
    done = quire("run", "smolm2:135m", "hi")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("Did you mean smollm2:135m?")


@pytest.mark.parametrize("command", [("rm", "nothing"), ("show", "nothing"), ("cp", "nothing", "mine")])
def test_a_missing_model_is_an_error(quire, command):
    done = quire(*command)
    assert done.returncode == 1 and done.stderr.startswith("error: nothing is not in the store: `quire list` shows")


def test_show_prints_the_sampling_defaults_and_their_sources(quire, model_file):
    (quire.folder / "model.gguf").symlink_to(model_file)
    (quire.folder / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 20}')
    (quire.folder / "preset.params.json").write_text('{"top_k": 5}')
    output = quire("show", str(quire.folder / "model.gguf")).stdout
    assert "sampling defaults  temperature 0.3 (generation_config.json); top_k 5 (Modelfile)\n" in output


def test_a_flag_of_vllm_names_its_equivalent(quire):
    done = quire("serve", "toy", "--max-model-len", "4096")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "error: --max-model-len is vLLM's. Use `--max-context`.",
    )


def test_show_names_a_truncated_file(quire):
    done = quire("show", quire.model)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "error: toy.gguf: it ends inside its header. The file is not complete: download it again.",
    )


def test_a_truncated_stored_model_is_an_error_with_the_repair_command(quire):
    store_default_model(quire)
    (blob,) = (quire.folder / "home" / "blobs").iterdir()
    blob.write_bytes(b"GG")
    done = quire("run", "smollm2:135m", "hi")
    assert done.returncode == 1
    assert "x.gguf of smollm2:135m has 2 bytes, expected 4: repair it with `quire pull smollm2:135m`." in done.stderr


def test_a_failed_pull_is_an_error_with_the_next_step(quire):
    done = quire("pull", "unheard-of")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: unheard-of:latest is not here, and 127.0.0.1:1 cannot be reached (")
    assert "check the network and the proxy, or use a model that is here (`quire list`)." in done.stderr
    done = quire("pull", quire.model)
    assert done.returncode == 1 and "there is nothing to pull" in done.stderr


def test_a_missing_draft_model_of_a_server_is_an_error_of_one_line(quire):
    done = quire("serve", "--port", "0", "--draft", "unheard-of", quire.model)
    error, imported = done.stderr.splitlines()  # the last line is the stand-in's
    assert done.returncode == 1 and imported in ("", "numpy")
    assert error.startswith("error: unheard-of:latest is not here, and 127.0.0.1:1 cannot be reached (")


def test_a_server_looks_its_draft_model_up_in_the_store(quire):
    store_default_model(quire)
    store = Store(quire.folder / "home")
    config = serve._with_draft(load({"draft": "smollm2:135m"}, {}), store, None)
    assert config.speculation.draft == str(store.find("smollm2:135m"))
    assert Path(config.speculation.draft).read_bytes() == b"GGUF"
    assert serve._with_draft(Config(), store, None) == Config()


def test_the_home_folder_can_be_set_by_a_flag(quire, tmp_path):
    assert quire("list", "--home", str(tmp_path / "other")).returncode == 0
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_command(quire, flag):
    done = quire(flag)
    assert done.returncode == 0
    for name in ("run", "serve", "key", "pull", "push", "list", "show", "cp", "rm"):
        assert f" {name} " in done.stdout


@pytest.mark.parametrize(
    "command, without",
    [("run", {"serve", "grammar", "embedding", "gateway", "join", "transfer"}), ("serve", {"gateway"})],
)
def test_help_has_a_flag_for_every_setting_of_the_command(quire, command, without):
    shown = quire(command, "--help").stdout
    assert [each.flag for each in settings() if each.section not in without and each.flag not in shown] == []


def test_the_printed_secret_matches_the_new_key(quire, tmp_path):
    done = quire("key", 'a "friend"')
    path = tmp_path / "keys.toml"
    path.write_text(done.stdout)
    secret = done.stderr.split()[-1]
    assert read_keys(ServeConfig(api_keys=str(path))).find(secret).name == 'a "friend"' and secret not in done.stdout


def test_version_imports_nothing_heavy(quire):
    script = "import sys; from quire.cli.main import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=quire.environment, capture_output=True, text=True, check=True, timeout=100
    )
    version, modules = done.stdout.splitlines()
    assert version == f"quire {__version__}"
    assert {"typer", "rich", "httpx", "numpy", "huggingface_hub"} & set(modules.split()) == set()


def test_help_imports_no_http_client_and_no_engine(quire):
    script = "import sys; from quire.cli.main import main; main(['run', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=quire.environment, capture_output=True, text=True, check=True, timeout=100
    )
    modules = set(done.stdout.splitlines()[-1].split())
    assert {"httpx", "numpy", "huggingface_hub", "torch", "transformers", "tokenizers"} & modules == set()


@pytest.mark.parametrize("command", [["list"], ["cp", "smollm2:135m", "mine"], ["rm", "smollm2:135m"]])
def test_store_commands_import_no_http_client(quire, command):
    store_default_model(quire)
    script = f"import sys; from quire.cli.main import main; print(main({command!r})); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=quire.environment, capture_output=True, text=True, check=True, timeout=100
    )
    code, modules = done.stdout.splitlines()[-2:]
    assert code == "0" and {"httpx", "huggingface_hub", "ssl"} & set(modules.split()) == set()


def test_logs_follow_the_settings(quire):
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
    record = json.loads(done.stderr.splitlines()[-1])
    assert (record["level"], record["message"]) == ("error", "but this")
