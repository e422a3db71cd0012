"""The two ends of a transfer without an engine: a server whose blocks are made up, and a proxy that spoils them."""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from quire.config import load
from quire.transfer.form import BlockForm
from quire.transfer.frames import End
from quire.transfer.receiver import Fetch, IncomingBlock, PrefixWish
from quire.transfer.sender import BlockServer, Export, OutgoingBlock
from quire.types.request import CacheKey
from quire.types.transfer import PrefixSource, TransferConfig
from tests.waiting import wait_until

SECRET = "a secret of the two engines"
FORM = BlockForm("layout", 4, (4096, 64, 32))
TOKENS = array("I", range(41))  # ten blocks of four, and one more
KEY = CacheKey(salt="tenant")


def config_of(**settings: object) -> TransferConfig:
    return load({"transfer_secret": SECRET, "transfer_patience": 5.0, **settings}, {}).transfer


def parts_of(place: int) -> tuple[bytes, ...]:
    return bytes([place]) * 4096, b"w" * 64 if place > 6 else b"", b"s" * 32 if place == 9 else b""


def send_everything(export: Export) -> None:
    for place in range(export.want.first, export.num_blocks):
        export.put(OutgoingBlock(place, parts_of(place)))
    export.finish(End(export.num_blocks - export.want.first, 7))


@contextmanager
def sender(
    fill: Callable[[Export], None] = send_everything, form: BlockForm = FORM, **settings: object
) -> Iterator[BlockServer]:
    server = BlockServer(config_of(**settings), form, fill, lambda: None)
    try:
        yield server
    finally:
        server.close()


def fetch_from(port: int, form: BlockForm = FORM, first: int = 0, **settings: object) -> Fetch:
    source = PrefixSource("127.0.0.1", port, True, 40)
    return Fetch(PrefixWish(source, KEY, TOKENS, first), form, config_of(**settings), lambda: None)


def finished(fetch: Fetch) -> list[IncomingBlock]:
    wait_until(lambda: fetch.is_over, 30)
    return fetch.take(1 << 30)


@contextmanager
def proxy(port: int, spoil: Callable[[bytes, int], bytes | None]) -> Iterator[int]:
    """Passes bytes to a port and back. `spoil` gets each piece of the answers and its offset; None: break off."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened, pumps = list[socket.socket](), list[threading.Thread]()

    def pump(source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        at = 0
        with suppress(OSError):
            while data := source.recv(1024):
                changed = spoil(data, at) if is_answer else data
                at += len(data)
                if changed is None:
                    break
                target.sendall(changed)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                inner, _ = listener.accept()
                outer = socket.create_connection(("127.0.0.1", port))
                opened.extend((inner, outer))
                for way in ((inner, outer, False), (outer, inner, True)):
                    pumps.append(threading.Thread(target=pump, args=way, daemon=True))
                    pumps[-1].start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for pump_thread in pumps:
            pump_thread.join()
        for each in opened:
            each.close()


def flip(at: int) -> Callable[[bytes, int], bytes]:
    """Change one byte of the answers."""

    def spoil(data: bytes, start: int) -> bytes:
        if not start <= at < start + len(data):
            return data
        return data[: at - start] + bytes([data[at - start] ^ 1]) + data[at - start + 1 :]

    return spoil


def cut(at: int) -> Callable[[bytes, int], bytes | None]:
    """Break off after so many bytes."""
    return lambda data, start: None if start + len(data) > at else data


def lose(first: int, last: int) -> Callable[[bytes, int], bytes]:
    """Leave out some bytes of the answers."""

    def spoil(data: bytes, start: int) -> bytes:
        return bytes(byte for at, byte in enumerate(data, start) if not first <= at < last)

    return spoil


def stall(at: int, seconds: float) -> Callable[[bytes, int], bytes]:
    """Pass nothing on for a while after so many bytes."""

    def spoil(data: bytes, start: int) -> bytes:
        if start + len(data) > at:
            time.sleep(seconds)
        return data

    return spoil
