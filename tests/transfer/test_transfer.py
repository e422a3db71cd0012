"""A transfer between two ends: what is damaged, late, lost or made by someone else is never taken for a block."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest

from quire.transfer.form import BlockForm
from quire.transfer.frames import HEAD, MAX_BODY, End, StillComputing, TransferBroken
from quire.transfer.sender import Export, OutgoingBlock
from tests.transfer.ends import (
    FORM,
    config_of,
    cut,
    fetch_from,
    finished,
    flip,
    lose,
    parts_of,
    proxy,
    send_everything,
    sender,
    stall,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.pure

WHOLE = 43_000  # bytes of all answers over TCP, about


@pytest.mark.parametrize("transport", ["tcp", "shared_memory", "auto"])
def test_every_transport_brings_all_blocks_in_order(transport):
    with sender() as server:
        fetch = fetch_from(server.port, transport=transport)
        blocks = finished(fetch)
    assert fetch.error == "" and fetch.num_computed == 7
    assert [(each.place, each.parts) for each in blocks] == [(place, parts_of(place)) for place in range(10)]


@pytest.mark.parametrize("transport", ["tcp", "shared_memory"])
def test_more_blocks_than_there_is_room_for_on_the_way_arrive(transport):
    large = BlockForm(FORM.layout, 4, (5 << 20, 64, 32))

    def fill(export: Export) -> None:
        for place in range(export.num_blocks):
            export.put(OutgoingBlock(place, (bytes([place]) * (5 << 20), b"", b"")))
        export.finish(End(export.num_blocks, 0))

    with sender(fill, form=large) as server:
        fetch = fetch_from(server.port, large, transport=transport)
        places = []
        while not (fetch.is_over and not fetch.has_blocks):
            places += [each.place for each in fetch.take(1) if each.parts[0][-1] == each.place]
    assert fetch.error == "" and places == list(range(10))


def test_only_missing_blocks_are_sent():
    with sender() as server:
        assert [each.place for each in finished(fetch_from(server.port, first=8))] == [8, 9]


@pytest.mark.parametrize("at", [0, 30, 200, 4_500, 10_000, 39_000])
def test_a_damaged_byte_ends_the_fetch_and_the_blocks_before_it_are_right(at):
    with sender() as server, proxy(server.port, flip(at)) as port:
        fetch = fetch_from(port, transport="tcp", transfer_patience=1.0)
        blocks = finished(fetch)
    assert fetch.error
    assert [(each.place, each.parts) for each in blocks] == [(place, parts_of(place)) for place in range(len(blocks))]
    assert len(blocks) <= at // 4096


@pytest.mark.parametrize("at", [10, 5_000, 30_000])
def test_a_connection_that_breaks_off_keeps_the_blocks_before(at):
    with sender() as server, proxy(server.port, cut(at)) as port:
        fetch = fetch_from(port, transport="tcp")
        blocks = finished(fetch)
    assert fetch.error and len(blocks) <= at // 4096
    assert all(each.parts == parts_of(each.place) for each in blocks)


def test_lost_bytes_are_noticed():
    with sender() as server, proxy(server.port, lose(9_000, 9_050)) as port:
        fetch = fetch_from(port, transport="tcp", transfer_patience=1.0)
        blocks = finished(fetch)
    assert fetch.error and len(blocks) <= 2 and all(each.parts == parts_of(each.place) for each in blocks)


def test_a_late_block_ends_the_fetch():
    with sender() as server, proxy(server.port, stall(9_000, 2.0)) as port:
        fetch = fetch_from(port, transport="tcp", transfer_patience=0.3)
        assert len(finished(fetch)) <= 2
    assert "in time" in fetch.error


def test_a_sender_that_only_says_that_it_is_alive_is_not_waited_for_forever():
    with sender(lambda export: None) as server:
        fetch = fetch_from(server.port, transfer_patience=0.6)
        assert finished(fetch) == []
    assert "in time" in fetch.error


def test_a_block_that_was_left_out_is_noticed():
    def fill(export: Export) -> None:
        for place in (0, 1, 3):
            export.put(OutgoingBlock(place, parts_of(place)))
        export.finish(End(3, 0))

    with sender(fill) as server:
        fetch = fetch_from(server.port)
        assert [each.place for each in finished(fetch)] == [0, 1]
    assert "other tokens" in fetch.error


def test_a_last_block_that_was_left_out_is_noticed():
    def fill(export: Export) -> None:
        export.put(OutgoingBlock(0, parts_of(0)))
        export.finish(End(2, 0))

    with sender(fill) as server:
        fetch = fetch_from(server.port)
        assert len(finished(fetch)) == 1
    assert "lost" in fetch.error


def test_engines_with_other_secrets_exchange_nothing():
    started: list[Export] = []
    with sender(started.append, transfer_secret="another secret of 16") as server:
        fetch = fetch_from(server.port)
        assert finished(fetch) == []
    assert fetch.error and not started


def test_engines_with_other_models_exchange_nothing():
    with sender() as server:
        fetch = fetch_from(server.port, BlockForm("another layout", 4, FORM.part_bytes))
        assert finished(fetch) == []
    assert "differ in model" in fetch.error


def test_engines_without_a_common_transport_exchange_nothing():
    with sender(transport="tcp") as server:
        fetch = fetch_from(server.port, transport="shared_memory")
        assert finished(fetch) == []
    assert "no transport" in fetch.error


def test_a_block_of_another_size_is_refused():
    def fill(export: Export) -> None:
        export.put(OutgoingBlock(0, (b"x" * 4095, b"", b"")))

    with sender(fill) as server:
        fetch = fetch_from(server.port)
        assert finished(fetch) == []
    assert "size" in fetch.error


def test_a_port_without_a_sender_is_an_error_of_the_fetch():
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    fetch = fetch_from(port)
    assert finished(fetch) == [] and fetch.error


def test_a_cancelled_fetch_ends_and_the_sender_notices():
    exports: list[Export] = []
    with sender(exports.append) as server:
        fetch = fetch_from(server.port)
        wait_until(lambda: exports)
        fetch.cancel()
        wait_until(lambda: fetch.is_over and exports[0].is_gone)
        assert not fetch.take(1 << 20), "no block came"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD.pack(MAX_BODY + 1, 0, 1, b"\0" * 16),
        HEAD.pack(4, 0, 200, b"\0" * 16) + b"none",
        HEAD.pack(4, 0, 1, b"\0" * 16) + b"\xc1\xc1\xc1\xc1",
        HEAD.pack(1, 0, 4, b"\0" * 16) + b"\x80",
        struct.pack("<I", 1 << 31),
        b"",
    ],
)
def test_frames_of_others_are_refused_and_start_nothing(sent):
    started: list[Export] = []
    with sender(started.append) as server:
        with socket.create_connection(("127.0.0.1", server.port), 5) as client:
            client.settimeout(10)
            with suppress(ConnectionError, OSError):  # it may have hung up already
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
        with sender(send_everything) as other:  # a sender goes on after it
            assert len(finished(fetch_from(other.port))) == 10
    assert not started


def test_a_frame_cannot_be_sent_twice():
    from quire.transfer.frames import TO_RECEIVER, TO_SENDER, BlockChannel, DirectionKey

    left, right = socket.socketpair()
    one, other = BlockChannel(left), BlockChannel(right)
    keys = [DirectionKey("secret", b"nonces", way) for way in (TO_RECEIVER, TO_SENDER)]
    one.secure(*keys)
    other.secure(*keys[::-1])
    one.send(StillComputing())
    one._num_sent = 0
    one.send(StillComputing())
    other.receive(1.0)
    with pytest.raises(TransferBroken, match="tag"):
        other.receive(1.0)
    one.close()
    other.close()


def test_a_short_secret_is_refused():
    with pytest.raises(Exception, match="16 or more"):
        config_of(transfer_secret="short")
