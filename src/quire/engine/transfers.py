"""The step loop of an engine that exchanges KV blocks with other engines.

A request whose prompt another engine has cached or computes waits until its blocks have arrived. Then it is queued like
any other, and finds the blocks in the prefix tree. If the transfer fails at any point, the request is queued at once
and computes the missing tokens; its text is the same.

The loop copies blocks between two steps, a bounded number of bytes at a time; threads send and receive them. When this
engine computes a prompt for another one, the blocks of each step are sent while the next step runs. A step is one
native call for all layers, so single layers cannot be sent earlier.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from quire.cache.moving import BlockContent
from quire.devices.base import MovesBlocks
from quire.engine.block_bytes import read_places, write_places
from quire.engine.core import EngineCore
from quire.engine.messages import Cancel, Counters, Failed, Inward, Outward, ReadLoad, Submit
from quire.engine.transfer_tally import TransferTally
from quire.transfer.form import BlockForm
from quire.transfer.frames import End, Refused
from quire.transfer.receiver import Fetch, IncomingBlock, PrefixWish
from quire.transfer.sender import BlockServer, Export, OutgoingBlock
from quire.transfer.transports.contract import check_transport
from quire.types.errors import DuplicateRequest, QuireError
from quire.types.load import LoadReport
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.transfer import TransferConfig

logger = logging.getLogger(__name__)

MAX_FETCHES = 32
STEP_BYTES = 8 << 20  # most bytes that the loop copies between two steps for each transfer: a few milliseconds
DEADLINE_SECONDS = 0.05  # between two checks of the deadlines of requests that wait for blocks
PREFILL = "prefill for another engine "  # prefix of the ids of requests that compute for other engines


@dataclass(slots=True, eq=False)
class WaitingPrefix:
    """A fetch, and the requests that wait for it. The first request started it."""

    fetch: Fetch
    requests: list[GenerateRequest]
    place: int  # of the next block to store


@dataclass(slots=True, eq=False)
class _Prefill:
    """An export, and the request that computes its prompt."""

    export: Export
    request_id: str = ""  # empty: nothing is computed for it
    num_cached: int = 0  # tokens that were cached before
    num_sent: int = 0  # blocks
    is_over: bool = False  # its request has ended


@dataclass(slots=True)
class _Links:
    """The state of an engine whose transfers are open."""

    mover: MovesBlocks
    form: BlockForm
    config: TransferConfig
    server: BlockServer
    fetches: list[WaitingPrefix] = field(default_factory=list)
    prefills: list[_Prefill] = field(default_factory=list)


class TransferCore(EngineCore):
    """An engine core that sends blocks to other engines and fetches blocks from them."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._links: _Links | None = None
        self._new_exports: deque[Export] = deque()  # appended by the server's threads
        self._computed: dict[str, list[int]] = {}  # request -> [tokens computed for it elsewhere, unfinished samples]
        self._transfers = TransferTally()
        self._num_prefills = 0

    def open_links(self, mover: MovesBlocks, identity: str, config: TransferConfig) -> int:
        """Listen for other engines; return the port. `identity`: digest of the model's weights."""
        groups = range(1 + self._cache.moving.num_windows)
        sizes = (*(mover.block_bytes(group) for group in groups), mover.state_bytes)
        layout, size = f"{identity} {mover.block_layout}", self._cache.block_tokens
        form = BlockForm(layout, size, sizes, mover.has_own_memory)
        server = BlockServer(config, form, self._add_export, self._wake)
        self._links = _Links(mover, form, config, server)
        return server.port

    def close_transfers(self) -> None:
        """Stop listening, and end all transfers."""
        if self._links is not None:
            self._links.server.close()
            for waiting in self._links.fetches:
                waiting.fetch.cancel()

    def _wake(self) -> None:
        self.wake()

    def _add_export(self, export: Export) -> None:
        """Called by the server's threads."""
        self._new_exports.append(export)
        self.wake()

    # ── messages ──

    def handle(self, message: Inward) -> None:
        """Handle one message. A request with a prefix source may first wait for its blocks."""
        links = self._links
        match message:
            case Submit(request) if links is not None and request.prefix_source is not None:
                self._submit_or_fetch(links, request)
            case Submit(request) if self._waiting_for(request.id) is not None:
                self._refuse(request, DuplicateRequest(request.id))
            case Cancel(request_id) if (waiting := self._waiting_for(request_id)) is not None:
                self._queue(waiting, request_id)  # then it is cancelled like any other
                super().handle(message)
            case ReadLoad() if links is not None:
                self._start_exports(links)  # they count: a gateway has sent these prompts before it asked
                super().handle(message)
                self._out[-1] = self._with_transfers(links, self._out[-1])
            case _:
                super().handle(message)

    def take(self) -> list[Outward]:
        """Return the messages to send. Tokens that another engine computed for a request are not counted as cached."""
        out = super().take()
        return [self._with_hits(each) for each in out] if self._computed else out

    def _with_hits(self, message: Outward) -> Outward:
        if not isinstance(message, Tokens | Finished | Failed) or message.request_id not in self._computed:
            return message
        computed = self._computed[message.request_id]
        if not isinstance(message, Tokens):
            computed[1] = computed[1] - 1 if message.sample is not None else 0
            if computed[1] <= 0:
                del self._computed[message.request_id]
        if isinstance(message, Failed):
            return message
        return message._replace(num_hit=max(0, message.num_hit - computed[0]))

    def _drop_internal(self, links: _Links) -> None:
        """Remove the messages about prompts for other engines, and record which of these prompts have ended."""
        ended = set()
        for each in self._out:
            if isinstance(each, Finished | Failed) and each.request_id.startswith(PREFILL):
                ended.add(each.request_id)
        for prefill in links.prefills:
            prefill.is_over = prefill.is_over or prefill.request_id in ended
        self._out = [each for each in self._out if not getattr(each, "request_id", "").startswith(PREFILL)]

    def _submit_or_fetch(self, links: _Links, request: GenerateRequest) -> None:
        if self._waiting_for(request.id) is not None:
            self._refuse(request, DuplicateRequest(request.id))
            return
        wish = self._wish(links, request)
        if wish is None or len(links.fetches) >= MAX_FETCHES:
            super().handle(Submit(request))
            return
        for waiting in links.fetches:
            if waiting.fetch.wish.key == wish.key and self._brings_next(waiting, wish):
                waiting.requests.append(request)  # this fetch brings its blocks, or some of them
                return
        self._transfers.num_fetches += 1
        fetch = Fetch(wish, links.form, links.config, self._wake)
        links.fetches.append(WaitingPrefix(fetch, [request], wish.first))

    def _brings_next(self, waiting: WaitingPrefix, wish: PrefixWish) -> bool:
        """Return whether the next block of a running fetch is one that `wish` needs, after the same tokens."""
        end = (waiting.place + 1) * self._cache.block_tokens
        return wish.first <= waiting.place and waiting.fetch.wish.tokens[:end] == wish.tokens[:end]

    def _wish(self, links: _Links, request: GenerateRequest) -> PrefixWish | None:
        """Return the blocks to fetch for a request; None: it needs none, or must compute its prompt itself."""
        source, size = request.prefix_source, self._cache.block_tokens
        must_compute = request.is_pooled or request.source is not None or request.sampling.prompt_logprobs is not None
        if source is None or must_compute:
            return None
        if request.cache.adapter:
            source = replace(source, computes=False)
        num_blocks = min(source.num_tokens, len(request.prompt) - 1) // size
        tokens = array("I", request.prompt[: num_blocks * size + 1])
        first = self._cache.moving.num_resumable(tokens, request.cache)
        if first >= num_blocks:
            return None
        return PrefixWish(source, request.cache, tokens, first, request.key, request.weight, request.priority)

    def _waiting_for(self, request_id: str) -> WaitingPrefix | None:
        if self._links is None or not self._links.fetches:
            return None
        alike = (each for each in self._links.fetches if any(one.id == request_id for one in each.requests))
        return next(alike, None)

    def _queue(self, waiting: WaitingPrefix, request_id: str) -> None:
        """Queue a request that waits for blocks. If no other request waits for them, cancel the fetch."""
        assert self._links is not None
        request = next(each for each in waiting.requests if each.id == request_id)
        waiting.requests.remove(request)
        if not waiting.requests:
            waiting.fetch.cancel()
            self._links.fetches.remove(waiting)
        super().handle(Submit(replace(request, prefix_source=None)))

    # ── steps ──

    def step(self) -> bool:
        """Move blocks, then run a step."""
        links = self._links
        if links is None:
            return super().step()
        now = time.monotonic()
        if links.fetches:
            for waiting in tuple(links.fetches):
                self._advance(links, waiting, now)
        self._start_exports(links)
        is_busy = super().step()
        if links.prefills:
            self._drop_internal(links)
            for prefill in tuple(links.prefills):
                is_busy = self._send_ready(links, prefill, now) or is_busy
            self._drop_internal(links)
        return is_busy or any(waiting.fetch.has_blocks for waiting in links.fetches)

    def _advance(self, links: _Links, waiting: WaitingPrefix, now: float) -> None:
        """Store received blocks; queue the requests if the fetch is over, or if their deadline has passed."""
        fetch = waiting.fetch
        is_over = fetch.is_over  # read before `take`: once it is set, every block is in the queue
        blocks = fetch.take(STEP_BYTES)
        if blocks and not self._store(links, waiting, blocks, now):
            fetch.cancel("the KV cache had no room for the blocks")
            is_over = True
        elif fetch.has_blocks:
            is_over = False
        if is_over:
            self._end_fetch(links, waiting)
            return
        for request in tuple(waiting.requests):
            if request.deadline is not None and request.deadline <= now:
                self._queue(waiting, request.id)

    def _store(self, links: _Links, waiting: WaitingPrefix, blocks: list[IncomingBlock], now: float) -> bool:
        """Write blocks into the device's memory, and add them to the tree. False: there is no room."""
        wish, moving, mover = waiting.fetch.wish, self._cache.moving, links.mover
        contents = [BlockContent(tuple(map(bool, each.parts[1:-1])), bool(each.parts[-1])) for each in blocks]
        arrivals = moving.reserve(wish.tokens, wish.key, waiting.place, contents, now)
        if arrivals is None:
            return False
        try:
            write_places(mover, arrivals.places, [each.parts for each in blocks])
        except BaseException:
            moving.drop(arrivals, now)
            raise
        moving.store(arrivals, now)
        waiting.place += len(blocks)
        self._transfers.fetched_tokens += len(blocks) * links.form.block_tokens
        return True

    def _end_fetch(self, links: _Links, waiting: WaitingPrefix) -> None:
        """Queue the first request of a fetch that is over. The others may start a fetch for what is still missing."""
        fetch = waiting.fetch
        links.fetches.remove(waiting)
        self._transfers.add_ended(fetch)
        source = fetch.wish.source
        first, *others = waiting.requests
        if fetch.error:
            line = "request %s computes the rest of its prompt: the fetch from %s:%d ended after %d blocks: %s"
            logger.warning(line, first.id, source.host, source.port, waiting.place - fetch.wish.first, fetch.error)
        if fetch.num_computed:
            self._computed[first.id] = [fetch.num_computed, len(first.unfinished_samples)]
        super().handle(Submit(replace(first, prefix_source=None)))
        is_useful = not fetch.error and waiting.place > fetch.wish.first
        for request in others:
            self.handle(Submit(request if is_useful else replace(request, prefix_source=None)))

    # ── for other engines ──

    def _start_exports(self, links: _Links) -> None:
        while self._new_exports:
            self._start_export(links, self._new_exports.popleft())

    def _start_export(self, links: _Links, export: Export) -> None:
        """Start to send blocks. If some must be computed, submit a request of one output token that computes them."""
        want, moving = export.want, self._cache.moving
        prefill = _Prefill(export, num_cached=moving.num_resumable(export.tokens, export.key) * links.form.block_tokens)
        links.prefills.append(prefill)
        if not want.computes or prefill.num_cached // links.form.block_tokens >= export.num_blocks:
            return
        self._num_prefills += 1
        prefill.request_id = f"{PREFILL}{self._num_prefills}"
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        size, account = links.form.block_tokens, (want.priority, want.account, want.weight)
        try:
            prompt = tuple(export.tokens[: export.num_blocks * size + 1])
            request = GenerateRequest(prefill.request_id, prompt, sampling, (), *account, cache=export.key)
        except QuireError as error:
            prefill.request_id = ""
            self._end_export(links, prefill, Refused(error.public))
            return
        super().handle(Submit(request))

    def _send_ready(self, links: _Links, prefill: _Prefill, now: float) -> bool:
        """Copy computed blocks into the export's queue. Return whether there are more to copy now."""
        export, size = prefill.export, links.form.block_tokens
        if export.is_gone:
            if prefill.request_id and not prefill.is_over:
                super()._cancel(prefill.request_id, FinishReason.CANCELLED, None, now)
                self._report_all()
            links.prefills.remove(prefill)
            return False
        wanted = export.tokens[: export.num_blocks * size]
        is_computed = not prefill.request_id or prefill.is_over
        places = []
        if export.has_room:
            places = self._cache.moving.departing(wanted, export.key, export.next, now, not is_computed)
        most = max(1, STEP_BYTES // max(links.form.max_bytes, 1))
        for parts in read_places(links.mover, places[:most]):
            export.put(OutgoingBlock(export.next, parts))
            prefill.num_sent += 1
            self._transfers.sent_tokens += size
        if export.next >= export.num_blocks or (is_computed and export.has_room and not places):
            num_computed = max(0, export.next * size - max(prefill.num_cached, export.want.first * size))
            self._end_export(links, prefill, End(prefill.num_sent, num_computed))
            return False
        return len(places) > most

    def _end_export(self, links: _Links, prefill: _Prefill, end: End | Refused) -> None:
        prefill.export.finish(end)
        if not prefill.request_id or prefill.is_over:
            links.prefills.remove(prefill)
        else:
            prefill.export.is_gone = True  # cancels its request, which still has one token to compute

    # ── the loop ──

    def _receive_timeout(self, is_busy: bool) -> float | None:
        timeout = super()._receive_timeout(is_busy)
        has_deadlines = self._links is not None and any(
            request.deadline is not None for each in self._links.fetches for request in each.requests
        )
        return DEADLINE_SECONDS if timeout is None and has_deadlines else timeout

    def _close(self) -> None:
        """End all transfers; requests that wait for blocks are queued, and are ended with the others."""
        if self._links is not None:
            self.close_transfers()
            for waiting in tuple(self._links.fetches):
                for request in tuple(waiting.requests):
                    self._queue(waiting, request.id)
        super()._close()
        if self._links is not None:
            self._drop_internal(self._links)

    def counters(self) -> Counters:
        """Return the counters, with those of transfers."""
        return self._transfers.counted(super().counters())

    def _with_transfers(self, links: _Links, message: Outward) -> Outward:
        """Return a load report with the role and what a gateway needs to estimate transfers."""
        if not isinstance(message, LoadReport):
            return message
        return self._transfers.reported(message, links.config.role, links.server.port, links.form)


def open_transfers(core: EngineCore, mover: MovesBlocks, identity: str, config: TransferConfig) -> int:
    """Open an engine's transfers; return the port on which it serves blocks. `identity`: digest of the weights."""
    check_transport(config.transport)
    assert isinstance(core, TransferCore)
    return core.open_links(mover, identity, config)
