"""kill -9 under 64 streams: of a server, an actor, a node, and of Ray's head. Every stream has its text, once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from quire.cluster.guarded import find_port
from tests.cluster.ray_world import RayWorld, kill_raylet, kill_server, ray_world
from tests.cluster.test_guarded import has_process
from tests.gateway.test_kill import NUM_STREAMS, Stream, streams
from tests.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]


@pytest.fixture
def world(model_file: Path, tmp_path: Path) -> Iterator[RayWorld]:
    """A replica on each of two nodes."""
    with ray_world(tmp_path, model_file, find_port("127.0.0.1")) as world:
        world.start(1, 1)
        world.write("replicas: 2")
        world.up()
        yield world


def disturbed_by(world: RayWorld, kill: Callable[[], object]) -> None:
    """All streams have the text of an undisturbed run, although `kill` is called in the middle of them."""
    undisturbed = asyncio.run(streams(world.url))
    assert all(each.is_done and not each.error for each in undisturbed)
    same(undisturbed, asyncio.run(streams(world.url, kill)))


def same(undisturbed: list[Stream], disturbed: list[Stream]) -> None:
    assert [each.error for each in disturbed] == [""] * NUM_STREAMS
    assert all(each.is_done and len(each.ids) == 1 for each in disturbed)
    assert [each.text for each in disturbed] == [each.text for each in undisturbed]


def num_failovers(world: RayWorld) -> float:
    """Requests that the gateway has taken from a server that failed."""
    lines = httpx.get(f"{world.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("quire_gateway_failovers_total"))


def test_kill_9_of_a_server_and_of_an_actor(world):
    first, second = world.replicas()
    disturbed_by(world, lambda: kill_server(first["pid"]))
    assert num_failovers(world) > 0
    found = {each["id"]: each for each in world.wait_replicas(2)}
    again, other = found[first["id"]], found[second["id"]]
    assert again["num_starts"] == 2 and again["pid"] != first["pid"] and "ended with -9" in again["error"]
    assert other["pid"] == second["pid"]

    before = other["pid"]
    disturbed_by(world, lambda: os.kill(world.owner_pid(second["id"]), signal.SIGKILL))
    adopted = next(each for each in world.wait_replicas(2) if each["id"] == second["id"])
    assert adopted["pid"] == before and adopted["num_adopted"] == 1


def test_kill_9_of_the_gateway_and_a_server_that_is_frozen(world):
    undisturbed = asyncio.run(streams(world.url))
    pid = world.status()["gateway"]["pid"]
    disturbed = asyncio.run(streams(world.url, lambda: kill_server(pid)))
    for before, after in zip(undisturbed, disturbed, strict=True):
        assert (after.is_done and after.text == before.text) or after.error
        assert before.text.startswith(after.text) and len(after.ids) <= 1
    wait_until(lambda: world.status()["gateway"]["pid"] not in (pid, 0), 60)  # its actor has noticed
    world.wait_replicas(2)  # at the same port, joined again

    first = world.replicas()[0]
    same(undisturbed, asyncio.run(streams(world.url, lambda: os.killpg(first["pid"], signal.SIGSTOP))))
    wait_until(lambda: not has_process(first["pid"]), 60)  # its actor has killed it
    again = next(each for each in world.wait_replicas(2) if each["id"] == first["id"])
    assert again["num_starts"] == 2 and again["pid"] != first["pid"]


def test_kill_9_of_a_node_and_of_a_raylet(world):
    first, second = world.replicas()

    def lose_node() -> None:
        kill_raylet(world.node_of(first["id"]))
        kill_server(first["pid"])

    disturbed_by(world, lose_node)
    assert num_failovers(world) > 0
    world.nodes.append(world.cluster.add_node(num_cpus=1))
    found = {each["id"]: each for each in world.wait_replicas(2)}
    assert found.keys() == {first["id"], second["id"]} and found[first["id"]]["pid"] != first["pid"]

    disturbed_by(world, lambda: kill_raylet(world.node_of(second["id"])))  # its server goes on
    world.nodes.append(world.cluster.add_node(num_cpus=1))
    adopted = next(each for each in world.wait_replicas(2) if each["id"] == second["id"])
    assert adopted["pid"] == second["pid"] and adopted["num_adopted"] == 1


def test_kill_9_of_the_head_and_a_new_ray(world):
    before = {each["id"]: each["pid"] for each in world.replicas()}
    gateway = world.status()["gateway"]["pid"]

    def lose_head() -> None:
        for each in ("gcs_server", "raylet"):
            os.kill(world.cluster.head_node.all_processes[each][0].process.pid, signal.SIGKILL)

    disturbed_by(world, lose_head)
    assert world.quire("status", code=1)  # there is no controller to ask
    world.cluster.shutdown()  # all of Ray is gone, and nothing of the servers
    assert set(world.guards()) == {"gateway", *before}
    same(asyncio.run(streams(world.url)), asyncio.run(streams(world.url)))
    world.start(1, 1)
    world.up()
    found = world.wait_replicas(2)
    assert {each["id"]: each["pid"] for each in found} == before
    assert world.status()["gateway"]["pid"] == gateway and all(each["num_adopted"] == 1 for each in found)
    world.quire("down", "--wait", "60")
    assert world.guards() == []
