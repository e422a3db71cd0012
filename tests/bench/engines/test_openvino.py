"""OpenVINO: its driver with a fake engine, its client with a fake driver, and an installation that fails."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.bench.engines import openvino
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.openvino import OpenVino
from quire.bench.engines.openvino_driver import Events, answer_commands
from quire.bench.engines.peer import PeerFailed
from quire.bench.engines.peer_environment import PeerEnvironment
from quire.bench.load.stream_loads import StreamSizes

pytestmark = pytest.mark.pure

FACTS = ModelFacts(Path("m.gguf"), "q4_1", "gguf", "q4_1", 1000, (1,), decode_bytes=1, prompt_multiply_adds=1)

# Speaks the driver's protocol, one token a step for every request.
DRIVER = """
import json, sys
settings = json.loads(sys.stdin.readline())
if "broken" in settings["model"]:
    sys.exit("Unsupported architecture 'x'")
print("[]", flush=True)
num_missing = 1 if "short" in settings["model"] else 0
for line in sys.stdin:
    request = json.loads(line)
    if "dead" in settings["model"]:
        sys.exit(1)
    num_tokens = request["max_tokens"] - num_missing
    for number in range(num_tokens):
        print(json.dumps([[request["id"], 1, number == num_tokens - 1]]), flush=True)
"""


class FakeEngine:
    """Ends each request after as many steps as it may have tokens."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.step_sizes: list[int] = []

    def add(self, request: dict[str, Any]) -> None:
        self.running[request["id"]] = request["max_tokens"]

    def step(self) -> Events:
        self.step_sizes.append(len(self.running))
        self.running = {number: left - 1 for number, left in self.running.items()}
        events = [(number, 1, left == 0) for number, left in self.running.items()]
        self.running = {number: left for number, left in self.running.items() if left}
        return events


def test_the_driver_answers_all_requests_and_then_ends():
    requests = [{"id": number, "prompt": [1], "max_tokens": number + 1} for number in range(3)]
    engine, out = FakeEngine(), io.StringIO()
    answer_commands(engine, io.StringIO("".join(json.dumps(each) + "\n" for each in requests)), out)
    events = [tuple(event) for line in out.getvalue().splitlines() for event in json.loads(line)]
    assert {number for number, _, has_ended in events if has_ended} == {0, 1, 2} and len(events) == 6
    assert sum(engine.step_sizes) == 6


@pytest.fixture
def peer(tmp_path, monkeypatch) -> OpenVino:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    monkeypatch.setattr(openvino, "DRIVER", driver)
    install = PeerEnvironment(tmp_path)
    install.python.parent.mkdir()
    install.python.symlink_to(sys.executable)
    return OpenVino(install, 2)


def test_one_stream_is_measured_without_the_warm_up(peer):
    rates = peer.measure_single_stream(FACTS, 2)
    assert len(rates.prompt) == len(rates.decode) == 2 and min(rates.prompt + rates.decode) > 0


def test_many_streams_get_our_loads(peer):
    sizes = StreamSizes(num_streams=2, num_requests=3, num_cold=1)
    result = peer.measure_stream_loads(Path("m.gguf"), range(100), sizes)
    assert result.loads.unique.output_tokens == 3 * 64 and result.loads.shared is not None
    assert len(result.loads.cold_seconds) == 1


def test_a_start_ends_with_the_first_token(peer):
    assert 0 < peer.start_seconds(Path("m.gguf"), 1) < 60


def test_a_file_that_cannot_be_loaded_is_reported_with_its_message(peer):
    with pytest.raises(PeerFailed, match=r"cannot load broken\.gguf \(Unsupported architecture 'x'\)"):
        peer.start_seconds(Path("broken.gguf"), 1)


@pytest.mark.parametrize(
    "model, error", [("dead.gguf", "OpenVINO has ended"), ("short.gguf", "63 tokens instead of 64")]
)
def test_answers_that_are_not_complete_are_an_error(peer, model, error):
    with pytest.raises(PeerFailed, match=error):
        peer.measure_stream_loads(Path(model), range(100), StreamSizes(num_streams=1, num_requests=1, num_cold=0))
