"""Blocks by NIXL: with the package between two processes, and with a stand-in for what must not be believed."""

from __future__ import annotations

import json
import multiprocessing
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from quire.transfer.form import BlockForm
from quire.transfer.frames import End
from quire.transfer.sender import Export, OutgoingBlock
from quire.transfer.transports import nixl
from quire.transfer.transports.contract import Parcel, all_transports, check_transport, usable_transports
from quire.types.setting import BadSetting
from tests.transfer import nixl_stand_in
from tests.transfer.ends import FORM, fetch_from, finished, parts_of, send_everything, sender
from tests.waiting import wait_until

pytestmark = pytest.mark.pure

PATIENCE = 60.0  # seconds: for machines that do other things too
LARGE = BlockForm(FORM.layout, 4, (3 << 20, 64, 32))


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> nixl.NixlAgent:
    """The agent of this process, with the stand-in instead of NIXL."""
    package = ModuleType("nixl")
    monkeypatch.setitem(sys.modules, "nixl", package)
    monkeypatch.setitem(sys.modules, "nixl._api", nixl_stand_in)
    made = nixl.NixlAgent()
    monkeypatch.setattr(nixl, "_agent_or_reason", lambda: (made, ""))
    monkeypatch.setattr(nixl, "version", lambda: "1.0")
    return made


def as_sent(count: int) -> list[tuple[int, tuple[bytes, ...]]]:
    return [(place, parts_of(place)) for place in range(count)]


def fetched(port: int, **settings: object) -> tuple[list[tuple[int, tuple[bytes, ...]]], str]:
    fetch = fetch_from(port, transport="nixl", **settings)
    return [(each.place, each.parts) for each in finished(fetch)], fetch.error


def test_registered_memory_is_used_again(agent):
    with sender(transport="nixl") as server:
        for _ in range(5):
            assert fetched(server.port) == (as_sent(10), "")
        wait_until(lambda: len(agent._free) == 2)  # the sender's thread gives its memory back after the last block
    assert len(agent._api.registered) == 2 and agent._api.num_released == 50


@pytest.mark.parametrize("state", ["ERR", "NIXL_ERR_REMOTE_DISCONNECT"])
def test_a_read_that_fails_ends_the_fetch_and_the_next_one_connects_again(agent, state):
    agent._api.states = [*["DONE"] * 4, state]
    with sender(transport="nixl") as server:
        blocks, error = fetched(server.port)
        assert blocks == as_sent(4) and state in error
        assert fetched(server.port) == (as_sent(10), "")


def test_a_read_that_takes_too_long_ends_the_fetch_and_keeps_its_memory_until_it_is_over(agent):
    agent._api.states = ["DONE", *["PROC"] * 2000]
    with sender(transport="nixl") as server:
        blocks, error = fetched(server.port, transfer_patience=0.05)
        assert blocks == as_sent(1) and "did not end within" in error
        wait_until(lambda: len(agent._free) == 1)  # the sender's
        assert len(agent._late) == 1
        agent._api.states.clear()
        assert fetched(server.port) == (as_sent(10), "")
        wait_until(lambda: len(agent._free) == 2)
    assert not agent._late and len(agent._api.registered) == 2


def test_with_many_reads_that_never_end_nixl_is_not_used(agent):
    agent._late = [([0, 0, 0, False], memory) for memory in [agent.take_memory(16)] * (nixl.MAX_LATE + 1)]
    agent._api.states = ["PROC"] * 100
    with pytest.raises(OSError, match="have not ended"):
        all_transports()["nixl"].receiving(1000)
    assert all_transports()["nixl"].sending(json.dumps(["1.0", "UCX"]), 1000) is None


def test_bytes_that_are_not_those_sent_are_not_taken_for_a_block(agent):
    agent._api.is_damaging = True
    with sender(transport="nixl") as server:
        blocks, error = fetched(server.port)
    assert blocks == [] and "wrong tag" in error


GOOD = "quire-" + "0" * 32
KNOWN = b64encode(json.dumps([GOOD, [[4096, 32000, 0, ""]]]).encode()).decode()


@pytest.mark.parametrize(
    "offer",
    [
        *("", "{", "null", "[1, 2, 3, 4, 5]", json.dumps(["other", KNOWN, 4096, 1000, 2])),
        *(json.dumps([GOOD, "***", 4096, 1000, 2]), json.dumps([GOOD, "", 4096, 1000, 2])),
        *(json.dumps([GOOD, b64encode(b"x" * 70_000).decode(), 4096, 1000, 2]), json.dumps([GOOD, KNOWN, 4096, 1000])),
        *(json.dumps([GOOD, KNOWN, -1, 1000, 2]), json.dumps([GOOD, KNOWN, (1 << 64) - 1, 1000, 2])),
        *(json.dumps([GOOD, KNOWN, 4096, 1001, 2]), json.dumps([GOOD, KNOWN, 4096, 1000, 17])),
        *(json.dumps([GOOD, KNOWN, 4096.5, 1000, 2]), json.dumps([GOOD, KNOWN, 4096, 1000, True])),
        *(json.dumps([GOOD, b64encode(b"no metadata").decode(), 4096, 1000, 2]),),
        *(json.dumps(["quire-" + "1" * 32, KNOWN, 4096, 1000, 2]),),  # the metadata of another agent
    ],
)
def test_an_offer_of_another_form_is_refused_and_nothing_stays_connected(agent, offer):
    receiving = nixl.receiving(1000)
    with pytest.raises((ValueError, OSError)):
        receiving.accept(offer)
    with pytest.raises(ValueError):
        receiving.take(Parcel(b"\0\0\0\0"), 1000, 1.0)
    receiving.close()
    assert not agent._remotes and not agent._api.known and len(agent._free) == 1


def test_agents_that_are_not_used_any_more_are_forgotten(agent):
    for number in range(2 * nixl.MAX_REMOTES):
        name = f"quire-{number:032x}"
        agent.disconnect(agent.connect(name, json.dumps([name, []]).encode()))
    assert len(agent._remotes) == len(agent._api.known) == nixl.MAX_REMOTES


@pytest.mark.parametrize("offer", ['["0.9", "UCX"]', '["1.0", "other"]', "{", "[]", "null"])
def test_a_receiver_with_another_version_or_backend_is_not_sent_to(agent, offer):
    assert nixl.sending(offer, 1000) is None
    assert nixl.sending('["1.0", "UCX"]', 1000) is not None


def test_auto_considers_nixl_between_gpus_on_hosts_with_rdma_alone(agent, monkeypatch):
    monkeypatch.setattr(nixl, "find_spec", lambda name: object())
    for rdma, own_memory in ((False, False), (False, True), (True, False)):
        monkeypatch.setattr(nixl, "has_rdma", lambda rdma=rdma: rdma)
        assert list(usable_transports("auto", own_memory)) == ["shared_memory", "tcp"]
    monkeypatch.setattr(nixl, "has_rdma", lambda: True)
    assert list(usable_transports("auto", True)) == ["shared_memory", "nixl", "tcp"]


def test_auto_uses_tcp_where_the_other_side_has_no_nixl(agent, monkeypatch):
    shared = all_transports()["shared_memory"]
    monkeypatch.setattr(shared, "suits", lambda own: False)
    monkeypatch.setattr(nixl, "find_spec", lambda name: object())
    monkeypatch.setattr(nixl, "has_rdma", lambda: True)
    on_gpu = BlockForm(FORM.layout, 4, FORM.part_bytes, has_own_memory=True)
    for form, num_reads in ((on_gpu, 10), (FORM, 0)):
        before = agent._api.num_released
        with sender(form=on_gpu) as server:
            fetch = fetch_from(server.port, form)
            assert len(finished(fetch)) == 10 and not fetch.error
        assert agent._api.num_released - before == num_reads


def test_without_the_package_the_error_names_it_and_says_what_to_do(monkeypatch):
    monkeypatch.setattr(nixl, "find_spec", lambda name: None)
    monkeypatch.setattr(nixl, "_agent_or_reason", nixl._agent_or_reason.__wrapped__)
    with pytest.raises(BadSetting, match=r"transport is 'nixl', but the package nixl is not installed.*pip install"):
        check_transport("nixl")
    assert list(usable_transports("nixl")) == [] and "nixl" not in usable_transports("auto", True)
    with pytest.raises(OSError, match="not installed"):
        nixl.receiving(1000)


def test_a_package_that_does_not_start_is_named_with_its_error(monkeypatch):
    monkeypatch.setattr(nixl, "find_spec", lambda name: object())
    monkeypatch.setattr(nixl, "_agent_or_reason", nixl._agent_or_reason.__wrapped__)
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    assert "the package nixl cannot be used here: " in nixl.unavailable()


# ── with the package ──


def fill_large(export: Export) -> None:
    for place in range(export.num_blocks):
        export.put(OutgoingBlock(place, (bytes([place]) * LARGE.part_bytes[0], b"", b"")))
    export.finish(End(export.num_blocks, 0))


def fill_half(export: Export) -> None:
    for place in range(5):
        export.put(OutgoingBlock(place, parts_of(place)))


FILLS = {"all": (send_everything, FORM), "large": (fill_large, LARGE), "half": (fill_half, FORM)}


def serve(pipe: Any, what: str) -> None:
    """Be an engine that sends, in a process of its own."""
    fill, form = FILLS[what]
    with sender(fill, form, transport="nixl") as server:
        pipe.send(server.port)
        pipe.recv()


@contextmanager
def other_process(what: str) -> Iterator[tuple[int, Any]]:
    if why := nixl.unavailable():
        pytest.skip(why)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, what), daemon=True)
    process.start()
    try:
        assert here.poll(60)
        yield here.recv(), process
    finally:
        process.kill()
        process.join()


def test_blocks_come_from_the_memory_of_another_process():
    with other_process("all") as (port, _):
        for _ in range(3):
            assert fetched(port, transfer_patience=PATIENCE) == (as_sent(10), "")


def test_more_blocks_than_there_are_slots_come_from_another_process():
    with other_process("large") as (port, _):
        fetch, places = fetch_from(port, LARGE, transport="nixl", transfer_patience=PATIENCE), []
        while not (fetch.is_over and not fetch.has_blocks):
            places += [each.place for each in fetch.take(1) if not each.parts[0].strip(bytes([each.place]))]
    assert fetch.error == "" and places == list(range(10))


def test_a_process_that_dies_in_the_middle_ends_the_fetch_and_its_blocks_stay():
    with other_process("half") as (port, process):
        fetch = fetch_from(port, transport="nixl", transfer_patience=PATIENCE)
        wait_until(lambda: fetch.num_bytes >= 5 * 4096, 30)
        process.kill()
        blocks = finished(fetch)
    assert fetch.error and [(each.place, each.parts) for each in blocks] == as_sent(5)
    with other_process("all") as (port, _):
        assert fetched(port, transfer_patience=PATIENCE) == (as_sent(10), "")


def test_a_read_from_a_process_that_has_died_fails():
    with other_process("half") as (port, process):
        receiving = nixl.receiving(FORM.max_bytes)
        fetch = fetch_from(port, transport="nixl", transfer_patience=PATIENCE)
        wait_until(lambda: fetch.num_bytes >= 5 * 4096, 30)
        (remote,) = (each for each in nixl._agent_or_reason()[0]._remotes.values() if each.num_users)
        process.kill()
        process.join()
        finished(fetch)
        assert receiving._memory is not None
        with pytest.raises(OSError, match="failed"):
            nixl._agent_or_reason()[0].read(remote, 1 << 20, receiving._memory, 4096, 5.0)
        receiving.close()
