"""`quire cluster` on real nodes of Ray: up, scale, rollout, down, zero and back, a ramp. kill -9: test_ray_kill.py."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from quire.cluster.guarded import find_port
from tests.cluster.ray_world import RayWorld, ray_world
from tests.gateway.test_kill import body, streams
from tests.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def world(model_file: Path, tmp_path_factory) -> Iterator[RayWorld]:
    with ray_world(tmp_path_factory.mktemp("ray"), model_file, find_port("127.0.0.1")) as world:
        world.start(2, 2)
        yield world


def ask(world: RayWorld) -> httpx.Response:
    return httpx.post(world.url + PATH, json=body(1) | {"stream": False, "model": "m"}, timeout=120)


def test_up_scale_rollout_and_down(world):
    world.write("replicas: 2", 'version: "1"')
    assert world.url in world.up()
    text = ask(world).json()["choices"][0]["message"]["content"]
    assert "m has 3 replicas" in world.quire("scale", "m", "3")
    assert "There is no model 'x'" in world.quire("scale", "x", "3", code=1)
    status = world.status()
    assert {each["version"] for each in status["replicas"]} == {"1"} and len(status["replicas"]) == 3
    assert {each["role"] for each in status["replicas"]} == {"both"} and len(status["nodes"]) == 3
    world.quire("scale", "m", "auto")
    world.wait_replicas(2)

    world.write("replicas: 2", 'version: "2"')
    rolled = threading.Thread(target=world.quire, args=("rollout", str(world.file)))
    rolled.start()
    num_asked = 0
    while rolled.is_alive() or not num_asked:  # requests are answered all the time
        answer = ask(world)
        assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == text
        num_asked += 1
    assert {each["version"] for each in world.wait_replicas(2)} == {"2"}

    world.write("replicas: 2", 'version: "3"', "device: abacus")
    said = world.quire("rollout", str(world.file), "--wait", "15", code=1)
    assert "abacus" in said and ask(world).status_code == 200
    states = {(each["version"], each["state"]) for each in world.replicas()}
    assert ("2", "ready") in states and ("3", "ready") not in states
    table = world.quire("status")
    assert "last error" in table and "abacus" in table

    world.quire("down", "--wait", "60")
    assert world.guards() == [] and "There is no cluster" not in world.quire("status", code=1)


def test_scale_to_zero_and_back_the_first_request_waits_and_is_answered(world):
    world.write("autoscale: {min: 0, max: 2, idle_seconds: 3, down_seconds: 3}")
    world.up()
    assert world.replicas() == []
    answer = ask(world)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]
    wait_until(lambda: world.replicas() == [], 60)
    assert world.guards() == ["gateway"]
    again = ask(world)
    assert again.json()["choices"] == answer.json()["choices"]
    world.quire("down", "--wait", "60")


def test_autoscaling_follows_a_ramp_and_does_not_flap(world):
    world.write("autoscale: {min: 1, max: 3, tokens: 1500, up_seconds: 1, down_seconds: 20}")
    world.up()
    targets: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.2):
            targets.append(world.saved()["counts"].get("m", 1))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        first = asyncio.run(streams(world.url))
        second = asyncio.run(streams(world.url))
        assert max(targets) >= 2
        wait_until(lambda: targets[-1] == 1, 60)
        time.sleep(5)
    finally:
        is_over.set()
        watcher.join()
    assert all(each.is_done and not each.error for each in (*first, *second))
    assert [each.text for each in first] == [each.text for each in second]
    steps = [after - before for before, after in pairwise(targets) if after != before]
    assert [each > 0 for each in steps] == sorted((each > 0 for each in steps), reverse=True)
    world.quire("down", "--wait", "60")
