"""Simulated hit rates against a real server: within two points, with eviction."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from quire.advisor.cache_replay import replay_cache
from quire.advisor.prompt_marks import PromptMarker
from quire.advisor.workload import workload_of
from quire.engine.model_files import read_model_text
from quire.report.trace import read_trace
from quire.weights.checkpoint import open_checkpoint
from tests.advisor.running_server import advise, serving
from tests.advisor.traces import write_trace
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = ("harbour", "lantern", "copper", "window", "garden", "river", "morning", "letter", "silver", "engine", "market")
TOLERANCE = 0.02
BUSY_TOLERANCE = 0.05  # the log has no order for requests that arrived together
SMALL = ("--max-context", 1024, "--max-rows", 8)


def text(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def shared_prompts(rng: random.Random) -> list[dict[str, Any]]:
    """Questions after one of three long system prompts, in random order, with some unique prompts between."""
    systems = [text(rng, 150) for _ in range(3)]
    bodies = []
    for _ in range(40):
        if rng.random() < 0.2:
            messages = [{"role": "user", "content": text(rng, 120)}]
        else:
            messages = [{"role": "system", "content": rng.choice(systems)}, {"role": "user", "content": text(rng, 12)}]
        bodies.append({"model": "m", "messages": messages, "max_tokens": 4, "ignore_eos": True, "temperature": 0})
    return bodies


def simulated(path, model_file, num_blocks: int) -> float:
    model_text = read_model_text(open_checkpoint(model_file))
    return replay_cache(workload_of(read_trace(path), PromptMarker(model_text)), num_blocks).rate


@pytest.mark.parametrize("num_blocks", [pytest.param(each, marks=pytest.mark.slow) for each in (24, 45, 400)])
def test_the_simulated_hit_rate_of_bodies_matches_the_server(model_file, tmp_path, num_blocks):
    bodies = shared_prompts(random.Random(7))
    lines = [{"time": float(at), "path": CHAT, "body": body} for at, body in enumerate(bodies)]
    before = simulated(write_trace(tmp_path / "trace.jsonl", lines), model_file, num_blocks)
    with serving(f"m={model_file}", *SMALL, "--num-blocks", num_blocks) as server:
        for body in bodies:
            server.post(CHAT, body)
    assert 0.1 < before < 0.95 and abs(before - server.hit_rate) < TOLERANCE, (before, server.hit_rate)


def test_answers_repeated_in_the_next_turn_are_hits(model_file, tmp_path):
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
    assert rate > 0.5 and abs(rate - server.hit_rate) < TOLERANCE, (rate, server.hit_rate)


@pytest.mark.slow
def test_the_simulated_hit_rate_of_a_request_log_matches_the_server(model_file, tmp_path):
    """Four concurrent requests, two tenants, and a cache that must evict; read by `quire advise --url`."""
    log, num_blocks = tmp_path / "requests.jsonl", 90
    bodies = shared_prompts(random.Random(3)) + shared_prompts(random.Random(4))
    for index, body in enumerate(bodies):
        body["cache_salt"] = f"tenant-{index % 2}"
    arguments = (f"m={model_file}", *SMALL, "--num-blocks", num_blocks, "--request-log", log)
    with serving(*arguments) as server:
        with ThreadPoolExecutor(4) as pool:
            for first in range(0, len(bodies), 4):  # four end before the next four begin, on any machine
                list(pool.map(lambda body: server.post(CHAT, body), bodies[first : first + 4]))
                wait_until(lambda: len(log.read_text().splitlines()) == first + 4)  # noqa: B023
        advice = advise("--url", server.url, "--model", model_file, "--on", "laptop")
    assert advice["hit_rate_now"]["num_blocks"] == num_blocks and advice["workload"]["num_calls"] == len(bodies)
    assert advice["workload"]["measured_hit_rate"] == pytest.approx(server.hit_rate)
    assert abs(advice["hit_rate_now"]["rate"] - server.hit_rate) < BUSY_TOLERANCE, (
        advice["hit_rate_now"],
        server.hit_rate,
    )
    assert advice["hit_rate_now"]["rate"] < advice["hit_rate_by_blocks"][-1]["rate"] - TOLERANCE  # some were evicted
    assert len(advice["workload"]["tenants"]) == 2 and "tenant-0" not in str(advice["workload"]["tenants"])
    assert advice["concurrency"]["is_measured"] and 2 <= advice["concurrency"]["peak"] <= 4


def test_a_server_without_a_request_log_is_an_error_with_the_flag(model_file):
    with serving(f"m={model_file}", *SMALL, "--num-blocks", 100) as server, pytest.raises(AssertionError) as failed:
        advise("--url", server.url)
    assert "--request-log FILE" in str(failed.value)
