"""The part of NIXL's Python API that Quire calls, within one process: for failures that the real one cannot be told."""

from __future__ import annotations

import ctypes
import json
from typing import Any

Region = tuple[int, int, int, str]


class StandInError(Exception):
    """As NIXL's errors, which have no base but Exception."""


class nixl_agent_config:
    def __init__(self, backends: list[str]) -> None:
        self.backends = backends


class nixl_agent:
    """`states`: what the next reads report in turn; then they are done at once."""

    def __init__(self, name: str, config: nixl_agent_config) -> None:
        self.name = name
        self.backends = dict.fromkeys(config.backends, 1)
        self.registered: list[Region] = []
        self.known: dict[str, list[Region]] = {}
        self.states: list[str] = []
        self.is_damaging = False
        self.num_released = 0

    def register_memory(self, regions: list[Region], kind: str, backends: list[str]) -> list[Region]:
        assert kind == "DRAM" and backends == ["UCX"]
        self.registered += regions
        return regions

    def get_partial_agent_metadata(self, regions: list[Region], with_connection: bool, backends: list[str]) -> bytes:
        assert with_connection and backends == ["UCX"]
        return json.dumps([self.name, regions]).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        try:
            name, regions = json.loads(metadata)
        except ValueError:
            raise StandInError("NIXL_ERR_MISMATCH") from None
        self.known.setdefault(name, []).extend(tuple(each) for each in regions)
        return str(name).encode()

    def remove_remote_agent(self, name: str | bytes) -> None:
        del self.known[name.decode() if isinstance(name, bytes) else name]

    def get_xfer_descs(self, parts: list[tuple[int, int, int]], kind: str) -> list[tuple[int, int, int]]:
        assert kind == "DRAM"
        return parts

    def initialize_xfer(
        self, operation: str, local: Any, remote: Any, name: str, note: bytes, backends: list[str]
    ) -> list[Any]:
        assert operation == "READ" and note == b"" and backends == ["UCX"]
        ((to, num_bytes, _),), ((at, _, _),) = local, remote
        for start, regions in ((to, self.registered), (at, self.registered if name == self.name else self.known[name])):
            if not any(first <= start and start + num_bytes <= first + size for first, size, *_ in regions):
                raise StandInError("NIXL_ERR_NOT_FOUND")
        return [to, at, num_bytes, False]

    def transfer(self, handle: list[Any]) -> str:
        return self.check_xfer_state(handle)

    def check_xfer_state(self, handle: list[Any]) -> str:
        to, at, num_bytes, is_over = handle
        state = self.states.pop(0) if self.states and not is_over else "DONE"
        if state.startswith("NIXL_ERR"):
            raise StandInError(state)
        if state == "DONE" and not is_over:
            ctypes.memmove(to, at, num_bytes)
            if self.is_damaging:
                ctypes.memset(to, 255, 1)
            handle[3] = True
        return state

    def release_xfer_handle(self, handle: list[Any]) -> None:
        self.num_released += 1
