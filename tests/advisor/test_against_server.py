"""What the simulation says of a cache is what a running server then measures: within two points, with eviction."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from quire.advisor.hits import simulate_hits
from quire.advisor.prompts import Marker
from quire.advisor.workload import workload_of
from quire.engine.model_files import read_model_text
from quire.report.trace import read_trace
from quire.weights.checkpoint import open_checkpoint
from tests.advisor.served import advise, serving, write_trace
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = ("harbour", "lantern", "copper", "window", "garden", "river", "morning", "letter", "silver", "engine", "market")
POINTS = 0.02
BUSY_POINTS = 0.05  # the log does not tell which of those that came together was served first
SMALL = ("--max-context", 1024, "--max-rows", 8)


def text(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def shared_prompts(rng: random.Random) -> list[dict[str, Any]]:
    """Three long instructions with questions, in no order, and now and then something that nobody else asks."""
    systems = [text(rng, 150) for _ in range(3)]
    bodies = []
    for _ in range(40):
        if rng.random() < 0.2:
            talk = [{"role": "user", "content": text(rng, 120)}]
        else:
            talk = [{"role": "system", "content": rng.choice(systems)}, {"role": "user", "content": text(rng, 12)}]
        bodies.append({"model": "m", "messages": talk, "max_tokens": 4, "ignore_eos": True, "temperature": 0})
    return bodies


def simulated(path, model_file, num_blocks: int) -> float:
    model_text = read_model_text(open_checkpoint(model_file))
    return simulate_hits(workload_of(read_trace(path), Marker(model_text)), num_blocks).rate


@pytest.mark.parametrize("num_blocks", [24, 45, 400])
def test_bodies_hit_as_often_as_was_simulated_before_the_server_ran(model_file, tmp_path, num_blocks):
    bodies = shared_prompts(random.Random(7))
    lines = [{"time": float(at), "path": CHAT, "body": body} for at, body in enumerate(bodies)]
    before = simulated(write_trace(tmp_path / "trace.jsonl", lines), model_file, num_blocks)
    with serving(f"m={model_file}", *SMALL, "--num-blocks", num_blocks) as server:
        for body in bodies:
            server.ask(CHAT, body)
    assert 0.1 < before < 0.95 and abs(before - server.hit_rate) < POINTS, (before, server.hit_rate)


def test_answers_that_come_back_in_the_next_turn_are_hits(model_file, tmp_path):
    rng, lines = random.Random(1), []
    with serving(f"m={model_file}", *SMALL, "--num-blocks", 400) as server:
        for conversation in range(3):
            prompt = f"Story {conversation}: {text(rng, 40)}"
            for turn in range(5):
                body = {"model": "m", "prompt": prompt, "max_tokens": 24, "ignore_eos": True, "temperature": 0}
                answer = server.http.post(COMPLETIONS, json=body).json()
                server.usages.append(answer["usage"])
                lines.append({"time": conversation * 10.0 + turn, "path": COMPLETIONS, "body": body})
                prompt += answer["choices"][0]["text"] + f" {text(rng, 6)}"
    rate = simulated(write_trace(tmp_path / "trace.jsonl", lines), model_file, 400)
    assert rate > 0.5 and abs(rate - server.hit_rate) < POINTS, (rate, server.hit_rate)


def test_the_log_of_a_busy_server_is_simulated_as_the_server_measured(model_file, tmp_path):
    """Four at once, two tenants, and a cache that cannot hold it all; read by `quire advise --url`."""
    log, num_blocks = tmp_path / "requests.jsonl", 90
    bodies = shared_prompts(random.Random(3)) + shared_prompts(random.Random(4))
    for place, body in enumerate(bodies):
        body["cache_salt"] = f"tenant-{place % 2}"
    arguments = (f"m={model_file}", *SMALL, "--num-blocks", num_blocks, "--request-log", log)
    with serving(*arguments) as server:
        with ThreadPoolExecutor(4) as pool:
            for first in range(0, len(bodies), 4):  # four end before the next four begin, however slow the machine is
                list(pool.map(lambda body: server.ask(CHAT, body), bodies[first : first + 4]))
                wait_until(lambda: len(log.read_text().splitlines()) == first + 4)  # noqa: B023
        said = advise("--url", server.url, "--model", model_file, "--on", "laptop")
    assert said["hit_rate_now"]["num_blocks"] == num_blocks and said["workload"]["num_calls"] == len(bodies)
    assert said["workload"]["measured_hit_rate"] == pytest.approx(server.hit_rate)
    assert abs(said["hit_rate_now"]["rate"] - server.hit_rate) < BUSY_POINTS, (said["hit_rate_now"], server.hit_rate)
    assert said["hit_rate_now"]["rate"] < said["hit_rate_by_blocks"][-1]["rate"] - POINTS  # some had to go
    assert len(said["workload"]["tenants"]) == 2 and "tenant-0" not in str(said["workload"]["tenants"])
    assert said["concurrency"]["is_measured"] and 2 <= said["concurrency"]["peak"] <= 4


def test_a_server_without_a_log_says_how_to_have_one(model_file):
    with serving(f"m={model_file}", *SMALL, "--num-blocks", 100) as server, pytest.raises(AssertionError) as failed:
        advise("--url", server.url)
    assert "--request-log FILE" in str(failed.value)
