"""`quire serve` on a store, and `run`, `ps` and `stop` as its clients: real processes, the bundled model."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quire.cli.commands.ps import time_until
from tests.cli.pseudo_terminal import on_terminal
from tests.serve.residency.test_residency import TAGS, make_store

SMALL = ("--max-context", "1024", "--max-rows", "8", "--max-step-tokens", "256")


@pytest.fixture(scope="module")
def environment(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of commands next to a running server."""
    home = tmp_path_factory.mktemp("home")
    make_store(home, model_file)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    environment = kept | {"QUIRE_HOME": str(home), "QUIRE_PORT": str(port), "QUIRE_API_KEY": "secret", "TERM": "dumb"}
    server = subprocess.Popen(
        [sys.executable, "-m", "quire", "serve", *SMALL], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("Serving"):
            assert "4 stored models on request" in line
            break
    drain = threading.Thread(target=server.stderr.read)
    drain.start()
    yield environment
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    drain.join()
    server.stderr.close()


def quire(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quire", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=110, check=False, stdin=subprocess.DEVNULL
    )


def loaded(environment: dict[str, str]) -> list[str]:
    return [line.split()[0] for line in quire(environment, "ps").stdout.splitlines()[1:]]


@pytest.mark.e2e
def test_a_server_and_a_local_engine_give_the_same_answer(environment: dict[str, str]):
    flags = ("--temperature", "1", "--seed", "5", "--max-tokens", "20", "--system", "Be brief.", "--verbose")
    for more, prompt in ((), "Why is the sky blue?"), (("--raw",), "Once upon a time"):
        through = quire(environment, "run", *flags, *more, TAGS[0], prompt)
        alone = quire(environment, "run", *flags, *more, *SMALL, TAGS[0], prompt)  # engine flags: a local engine
        assert through.returncode == alone.returncode == 0, through.stderr + alone.stderr
        assert through.stdout == alone.stdout != ""
        names = [[line.split(":")[0] for line in each.stderr.splitlines()] for each in (through, alone)]
        assert names[0] == names[1] and "tokens per second" in names[0]


SCHEMA = (
    '{"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], '
    '"additionalProperties": false}'
)


@pytest.mark.e2e
def test_a_server_and_a_local_engine_follow_the_format(environment):
    flags = ("--temperature", "0", "--format", SCHEMA, "--max-tokens", "40")
    for more in ((), SMALL, ("--raw",)):
        done = quire(environment, "run", *flags, *more, TAGS[0], "Which city?")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["city"] in ("Paris", "Rome")


THINKER = """FROM smol:a
TEMPLATE \"\"\"{{ range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ if .Think }}<think>
{{ else }}<think>

</think>

{{ end }}\"\"\"
"""


@pytest.mark.e2e
def test_a_server_and_a_local_engine_separate_the_reasoning(environment, tmp_path):
    (tmp_path / "Modelfile").write_text(THINKER)
    assert quire(environment, "create", "thinker", "-f", str(tmp_path / "Modelfile")).returncode == 0
    flags = ("--temperature", "0", "--max-tokens", "12", "thinker", "Why is the sky blue?")
    thinks, alone = quire(environment, "run", "--think", *flags), quire(environment, "run", "--think", *SMALL, *flags)
    assert thinks.returncode == alone.returncode == 0, thinks.stderr + alone.stderr
    assert thinks.stdout.startswith("Thinking...\n") and thinks.stdout.endswith("\n...done thinking.\n\n")
    assert thinks.stdout == alone.stdout
    hidden = quire(environment, "run", "--think", "--hidethinking", *flags)
    assert (hidden.returncode, hidden.stdout) == (0, "")
    plain, alone = (
        quire(environment, "run", "--no-think", *flags),
        quire(environment, "run", "--no-think", *SMALL, *flags),
    )
    assert plain.stdout == alone.stdout != "" and "hink" not in plain.stdout
    refused = quire(environment, "run", "--think", TAGS[0], "Why?")
    assert refused.returncode == 1 and "This model does not think" in refused.stderr


@pytest.mark.e2e
def test_run_sets_how_long_the_server_keeps_the_model(environment):
    def expiry_of(name: str) -> str:
        rows = json.loads(quire(environment, "ps", "--json").stdout)["models"]
        return next((row["expires_at"] for row in rows if row["name"] == name), "gone")

    ask = ("run", "--max-tokens", "2")
    assert quire(environment, *ask, "--keepalive", "2h", TAGS[3], "Hi").returncode == 0
    left = datetime.fromisoformat(expiry_of(TAGS[3]).replace("Z", "+00:00")) - datetime.now(UTC)
    assert timedelta(hours=1.9) < left <= timedelta(hours=2)
    assert quire(environment, *ask, "--keepalive", "0", TAGS[3], "Hi").returncode == 0
    assert expiry_of(TAGS[3]) == "gone"


@pytest.mark.e2e
def test_list_and_show_print_json(environment):
    listed = json.loads(quire(environment, "list", "--json").stdout)["models"]
    assert {each["name"] for each in listed} >= set(TAGS) and all(each["size"] > 1e6 for each in listed)
    shown = json.loads(quire(environment, "show", "--json", TAGS[0]).stdout)
    assert shown["name"] == TAGS[0] and shown["architecture"] == "llama" and "im_start" in shown["template"]
    assert [len(file["sha256"]) for file in shown["files"]] == [64]
    path = json.loads(quire(environment, "show", "--json", shown["path"]).stdout)
    assert path["container"] == "gguf" and "name" not in path


@pytest.mark.e2e
def test_ps_lists_loaded_models_and_stop_unloads_them(environment: dict[str, str]):
    assert quire(environment, "run", "--max-tokens", "2", TAGS[1], "Hi").returncode == 0
    shown = quire(environment, "ps").stdout.splitlines()
    assert shown[0].split() == ["NAME", "USED", "LIMIT", "DEVICE", "CONTEXT", "UNTIL"]
    (row,) = [line for line in shown if line.startswith(TAGS[1])]
    used, limit = (float(number.replace(",", "")) for number in re.findall(r"([\d,]+) MB", row))
    assert 100 < used < limit and "cpu     1024     5 minutes from now" in row
    assert quire(environment, "stop", TAGS[1]).stdout == f"stopped {TAGS[1]}\n"
    assert TAGS[1] not in loaded(environment)
    wrong = quire(environment, "stop", "nothing")
    assert wrong.returncode == 1 and "not served here: choose smol:a or" in wrong.stderr
    no_server = quire(environment | {"QUIRE_PORT": "9"}, "ps")
    assert (no_server.returncode, no_server.stderr) == (
        1,
        "error: No server is running at http://127.0.0.1:9. Start one with `quire serve`.\n",
    )


@pytest.mark.e2e
def test_an_answer_of_the_server_is_stopped_and_the_chat_continues(environment: dict[str, str]):
    command = [sys.executable, "-m", "quire", "run", "--temperature", "0", TAGS[2]]
    with on_terminal(command, environment) as terminal:
        terminal.stop_long_answer()
        assert "messages    2" in terminal.say("/show")
        terminal.type("\x04")
        assert terminal.wait_for_exit() == 0
    assert TAGS[2] in loaded(environment)


@pytest.mark.pure
@pytest.mark.parametrize(
    "seconds, text",
    [(300, "5 minutes from now"), (1, "1 second from now"), (90, "90 seconds from now"), (-5, "0 seconds from now")],
)
def test_time_until_is_written_in_words(seconds: float, text: str):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert time_until((now + timedelta(seconds=seconds)).isoformat(), now) == text
    assert time_until("9999-12-31T23:59:59Z", now) == "forever"


@pytest.mark.e2e
def test_doctor_finds_the_server(environment: dict[str, str]):
    output = quire(environment, "doctor").stdout
    assert re.search(rf"here +quire [\d.]+ at http://127.0.0.1:{environment['QUIRE_PORT']}\n", output), output
    assert re.search(r"models +.*smol:a, smol:b", output), output
    without = {name: value for name, value in environment.items() if name != "QUIRE_API_KEY"}
    assert "which requires an API key" in quire(without, "doctor").stdout
