"""Roles of replicas on real nodes of Ray: prompts go from prefill to decode, and kill -9 of the prefill replica."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.cluster.guarded import find_port
from quire.serve.relayed.note import NOTE, RelayNote, encode_note
from quire.types.transfer import PrefixSource
from tests.cluster.ray_world import RayWorld, kill_server, ray_world
from tests.gateway.test_kill import SERVE, Stream, process, streams, wait_ready
from tests.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

ROLES = "roles: {prefill: {replicas: 1}, decode: {replicas: 1}}"
STORY = "The fox went on through the old forest, and told nobody where it had been. " * 16
PATH = "/v1/chat/completions"


@pytest.fixture
def world(model_file: Path, tmp_path: Path) -> Iterator[RayWorld]:
    with ray_world(tmp_path, model_file, find_port("127.0.0.1")) as world:
        world.start(2, 1)
        yield world


def bodies(first: int, count: int = 12) -> list[dict[str, Any]]:
    """Long prompts that have no prefix in common, for short answers."""
    return [
        {
            "messages": [{"role": "user", "content": f"{number} {STORY}"}],
            "max_tokens": 12,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        for number in range(first, first + count)
    ]


def run(url: str, asked: list[dict[str, Any]], kill: Any = None) -> list[Stream]:
    return asyncio.run(streams(url, kill, 2, asked))


def texts(found: list[Stream]) -> list[str]:
    assert [each.error for each in found] == [""] * len(found)
    assert all(each.is_done and len(each.ids) == 1 for each in found)
    return [each.text for each in found]


def replica(world: RayWorld, role: str) -> dict[str, Any]:
    return next(each for each in world.replicas() if each["role"] == role)


def fetched_tokens(url: str, key: str = "") -> float:
    lines = httpx.get(f"{url}/metrics", headers=bearer(key)).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("quire_fetched_tokens_total"))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def wait_roles(world: RayWorld, *roles: str, key: str = "") -> None:
    """Wait until the gateway knows from the engines' reports which roles they have."""

    def known() -> list[str]:
        found = httpx.get(f"{world.url}/v1/upstreams", headers=bearer(key)).json()["upstreams"]
        ready = [each["loads"].get("m", {}) for each in found if each["state"] == "ready"]
        return sorted(each["role"] for each in ready if each.get("transfer_port"))

    wait_until(lambda: known() == sorted(roles), 60)


def test_prompts_go_from_prefill_to_decode_and_kill_9_of_the_prefill_replica_loses_nothing(world, model_file, tmp_path):
    asked, more = bodies(0), bodies(100)
    with process(tmp_path / "alone.log", "serve", f"m={model_file}", *SERVE) as alone:
        wait_ready(alone.url)
        expected, expected_more = texts(run(alone.url, asked)), texts(run(alone.url, more))

    world.write(ROLES)
    world.up()
    wait_roles(world, "prefill", "decode")
    assert texts(run(world.url, asked)) == expected
    prefill, decode = replica(world, "prefill"), replica(world, "decode")
    assert fetched_tokens(decode["url"]) > 0 and fetched_tokens(prefill["url"]) == 0
    assert (prefill["group"], decode["group"], prefill["model"]) == ("m/prefill", "m/decode", "m")
    no_secret_is_shown(world)

    assert texts(run(world.url, more, lambda: kill_server(prefill["pid"]))) == expected_more
    again = {each["id"]: each for each in world.wait_replicas(2)}
    assert again[prefill["id"]]["pid"] != prefill["pid"] and again[decode["id"]]["pid"] == decode["pid"]
    wait_roles(world, "prefill", "decode")
    before = fetched_tokens(decode["url"])
    run(world.url, bodies(200, 4))
    assert fetched_tokens(decode["url"]) > before
    world.quire("down", "--wait", "60")
    assert world.guards() == []


def no_secret_is_shown(world: RayWorld) -> None:
    """No command line has a key of the cluster, and no other user can read a file with one."""
    keys = world.saved()["keys"].values()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text(errors="replace")
        except OSError:
            continue
        assert not any(key in line for key in keys)
    for path in (world.home / "clusters" / "world").rglob("*"):
        if path.is_file() and any(key in path.read_text(errors="replace") for key in keys):
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_model_gets_roles_without_a_gap_and_its_groups_are_scaled_and_rolled_out_apart(world):
    world.write("replicas: 1")
    world.up()
    old = world.replicas()[0]
    world.write(ROLES)
    answered_during(world, "rollout", str(world.file))
    found = {each["group"]: each for each in world.wait_replicas(2)}
    assert found.keys() == {"m/prefill", "m/decode"} and old["id"] not in {each["id"] for each in found.values()}

    assert "name one of m/prefill, m/decode" in world.quire("scale", "m", "2", code=1)
    assert "m/decode has 2 replicas" in world.quire("scale", "m/decode", "2")
    table = world.quire("status")
    assert "m/decode: role decode, 2 of 2 ready" in table and "m/prefill: role prefill, 1 of 1 ready" in table
    world.quire("scale", "m/decode", "auto")
    world.wait_replicas(2)

    world.write("roles: {prefill: {replicas: 1}, decode: {replicas: 1, settings: {max_rows: 16}}}")
    answered_during(world, "rollout", str(world.file))
    again = {each["group"]: each for each in world.wait_replicas(2)}
    assert again["m/prefill"]["id"] == found["m/prefill"]["id"]
    assert again["m/decode"]["version"] != found["m/decode"]["version"]
    world.quire("down", "--wait", "60")


def answered_during(world: RayWorld, *words: str) -> None:
    """Every request is answered while `quire cluster WORDS` runs."""
    command = threading.Thread(target=world.quire, args=words)
    command.start()
    asked, num_asked = bodies(0, 1)[0] | {"stream": False, "model": "m"}, 0
    while command.is_alive() or not num_asked:
        assert httpx.post(world.url + PATH, json=asked, timeout=120).status_code == 200
        num_asked += 1


def test_groups_at_zero_start_with_the_first_request_and_end_with_the_last(world):
    rule = "autoscale: {min: 0, max: 1, idle_seconds: 4, down_seconds: 3}"
    world.write(f"roles: {{prefill: {{{rule}}}, decode: {{{rule}}}}}")
    world.up()
    assert world.replicas() == []
    first = run(world.url, bodies(0, 1))
    wait_until(lambda: {each["role"] for each in world.replicas()} == {"prefill", "decode"}, 60)
    wait_until(lambda: world.replicas() == [], 120)
    assert texts(run(world.url, bodies(0, 1))) == texts(first)
    world.quire("down", "--wait", "60")


def test_behind_a_gateway_that_other_machines_reach_blocks_go_between_the_addresses_of_the_nodes(world):
    key = "a-secret-of-the-admin"
    digest = hashlib.sha256(key.encode()).hexdigest()
    (world.file.parent / "keys.toml").write_text(f'[[key]]\nname = "a"\nsha256 = "{digest}"\nadmin = true\n')
    world.write(ROLES)
    world.file.write_text(world.file.read_text().replace("{port:", "{host: 0.0.0.0, api_keys: keys.toml, port:"))
    world.up()
    wait_roles(world, "prefill", "decode", key=key)
    for asked in bodies(0, 4):
        answer = httpx.post(world.url + PATH, json=asked | {"stream": False}, headers=bearer(key), timeout=120)
        assert answer.status_code == 200
    decode = replica(world, "decode")
    assert decode["node"] in decode["url"] and httpx.get(decode["url"] + "/v1/models").status_code == 401
    assert fetched_tokens(decode["url"], world.saved()["keys"]["replica"]) > 0
    no_secret_is_shown(world)
    world.quire("down", "--wait", "60")


def test_replicas_without_roles_send_prefixes_to_each_other(world):
    world.write("replicas: 2")
    world.up()
    wait_roles(world, "both", "both")
    first, second = (each["url"] for each in world.replicas())
    body = json.dumps(bodies(0, 1)[0] | {"stream": False}).encode()
    expected = httpx.post(first + PATH, content=body, timeout=120).json()["choices"]
    port = httpx.get(f"{first}/v1/load").json()["models"]["m"]["transfer_port"]
    note = RelayNote(prefix_source=PrefixSource("127.0.0.1", port, num_tokens=256))  # as the gateway sends it
    answer = httpx.post(second + PATH, content=body + encode_note(note), headers={NOTE: str(len(body))}, timeout=120)
    assert answer.json()["choices"] == expected and fetched_tokens(second) == 256
    world.quire("down", "--wait", "60")
