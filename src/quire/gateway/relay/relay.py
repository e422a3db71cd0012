"""The way of a request: choose an upstream, send, pass the answer on; if that fails, go on at another one.

Before the first byte of an answer any other upstream may answer instead. After it, only one that continues exactly: a
Quire upstream by the journal of the frames that the client has; another one by the text, if the operator allows that.
Otherwise the stream ends with an error event. The client never gets two answers, nor a part of one twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import partial

from quire.config import GatewayConfig
from quire.gateway.health.outliers import Outliers
from quire.gateway.health.retries import RetryBudget
from quire.gateway.http.errors import UpstreamFailed
from quire.gateway.http.pool import OpenRequest
from quire.gateway.relay.answering import AnswerState, pass_answer
from quire.gateway.relay.attempt import (
    FAULTS,
    KEY_REFUSED,
    SilenceAlarm,
    UpstreamRefusal,
    may_try_another,
    passed_headers,
    send_request,
)
from quire.gateway.relay.balance import Balance, ChosenUpstream
from quire.gateway.relay.errors import (
    ModelNotInFleet,
    NoUpstream,
    StreamLost,
    UpstreamRefusedGateway,
    UpstreamsRefused,
)
from quire.gateway.relay.meters import GatewayMeters
from quire.gateway.relay.request import AnswerProgress, RelayedRequest
from quire.gateway.relay.text_resume import ContinuedEvents, can_continue_text
from quire.gateway.upstreams.registry import Upstreams
from quire.gateway.upstreams.upstream import Upstream
from quire.serve.http.exchange import JSON, ClientGone
from quire.serve.relayed.frames import RelayedUsage
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

WAIT_STEP = 0.05  # seconds between two looks for an upstream


@dataclass(slots=True)
class RelayOutcome:
    """What became of a request, for the accounts."""

    upstreams: list[str] = field(default_factory=list)  # that were tried, in order
    usage: RelayedUsage | None = None
    num_resumed: int = 0
    first_byte: float | None = None


@dataclass(slots=True)
class _Run:
    """One request with everything that its attempts share."""

    request: RelayedRequest
    state: AnswerState
    outcome: RelayOutcome
    is_last: bool
    tried: dict[str, float] = field(default_factory=dict)  # upstream -> when it failed
    refusals: list[UpstreamRefusal] = field(default_factory=list)
    error: QuireError | None = None
    open: set[OpenRequest] = field(default_factory=set)
    is_abandoned: bool = False

    def abandon(self) -> None:
        """The client has disconnected: so does the gateway."""
        self.is_abandoned = True
        for sent in tuple(self.open):
            sent.response.fail(UpstreamFailed("", "was not needed any more"))


@dataclass(slots=True, eq=False)
class _Opened:
    """An attempt whose status has arrived."""

    chosen: ChosenUpstream
    sent: OpenRequest
    started: float

    @property
    def upstream(self) -> Upstream:
        """Where it was sent."""
        return self.chosen.upstream


class Relay:
    """Used in the event loop's thread."""

    def __init__(
        self, config: GatewayConfig, upstreams: Upstreams, balance: Balance, outliers: Outliers, meters: GatewayMeters
    ) -> None:
        self._config = config
        self._upstreams = upstreams
        self._balance = balance
        self._outliers = outliers
        self._meters = meters
        self._budget = RetryBudget(config.retry_share)
        self._num_attempts = 0

    async def run(
        self, request: RelayedRequest, disconnected: asyncio.Future[None], outcome: RelayOutcome, is_last: bool = True
    ) -> None:
        """Answer a request. Raises if no upstream can, and nothing was sent to the client.

        `is_last`: False if another model is tried then; error answers of upstreams are not passed on.
        """
        self._budget.add_request()
        keeps_text = self._config.resume_text and request.streams and can_continue_text(request)
        run = _Run(request, AnswerState(AnswerProgress(), keeps_text, ContinuedEvents()), outcome, is_last)
        disconnected.add_done_callback(lambda watch: None if watch.cancelled() else run.abandon())
        try:
            while not await self._try_once(run):
                pass
        finally:
            progress = run.state.progress
            outcome.first_byte, outcome.usage = run.state.first_byte, run.state.usage
            if outcome.usage is None and progress.is_begun:  # cut off: what is known of it
                outcome.usage = RelayedUsage(request.num_tokens, 0, progress.num_tokens)

    async def _try_once(self, run: _Run) -> bool:
        """Make one attempt. True: the request is over."""
        chosen = await self._choose(run)
        if chosen is None:
            await self._give_up(run)
            return True
        run.outcome.upstreams.append(chosen.upstream.name)
        opened = None
        try:
            opened = await self._open_hedged(run, chosen)
            return await self._pass(run, opened)
        except UpstreamFailed as error:
            if run.is_abandoned:
                raise ClientGone from None
            failed = chosen.upstream if opened is None else opened.upstream
            self._count_failure(run, failed, error)
            return False
        finally:
            if opened is not None:
                self._close(run, opened.sent)

    # ── which ──

    async def _choose(self, run: _Run) -> ChosenUpstream | None:
        """The next upstream; waits a while if none is available. None: there is none."""
        if len(run.outcome.upstreams) > self._config.max_retries or not self._may_go_on(run):
            return None
        chosen, started = self._choose_now(run), time.monotonic()
        if chosen is not None or run.refusals:
            return chosen
        waiting = self._upstreams.waiting
        deadline = started + waiting.seconds_for(run.request.model, self._config.wait_seconds)
        with waiting.waiting(run.request.model, started):
            return await self._wait_for_one(run, deadline)

    def _choose_now(self, run: _Run) -> ChosenUpstream | None:
        only_quire = run.state.progress.is_begun and run.state.progress.is_framed
        return self._balance.choose(run.request, time.monotonic(), tuple(run.tried), only_quire)

    async def _wait_for_one(self, run: _Run, deadline: float) -> ChosenUpstream | None:
        while True:
            chosen = self._choose_now(run)
            if chosen is not None:
                return chosen
            if time.monotonic() >= deadline or run.is_abandoned or not self._may_appear(run):
                return None
            await asyncio.sleep(WAIT_STEP)
            for name, failed_at in tuple(run.tried.items()):
                known = self._upstreams.get(name)
                if known is not None and known.is_ready and (known.checked_at or 0.0) > failed_at:
                    del run.tried[name]  # it is back

    def _may_go_on(self, run: _Run) -> bool:
        progress = run.state.progress
        return not progress.is_begun or progress.is_framed or run.state.keeps_text

    def _may_appear(self, run: _Run) -> bool:
        """Return whether an upstream of this model may become available."""
        if run.request.model in self._upstreams.waiting.expected:
            return True
        if not len(self._upstreams):
            return False
        unknown = [each for each in self._upstreams if not each.models]
        return bool(unknown) or any(each.serves(run.request.model) for each in self._upstreams)

    # ── sending ──

    async def _open_hedged(self, run: _Run, chosen: ChosenUpstream) -> _Opened:
        """Send the request; after `hedge_seconds` without a status to a second upstream too. The first status wins."""
        seconds = self._config.hedge_seconds
        if seconds is None or run.state.progress.is_begun:
            return await self._open(run, chosen)
        first = asyncio.create_task(self._open(run, chosen))
        done, _ = await asyncio.wait({first}, timeout=seconds)
        second_choice = None if done else self._second(run, chosen)
        if second_choice is None:
            return await first
        run.outcome.upstreams.append(second_choice.upstream.name)
        self._meters.num_hedged += 1
        tasks = {first, asyncio.create_task(self._open(run, second_choice))}
        while True:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next((task for task in done if task.exception() is None), None)
            if winner is None and tasks:
                continue
            for task in (*tasks, *(done - {winner})):
                self._drop(run, task)
            return (winner or next(iter(done))).result()

    def _second(self, run: _Run, chosen: ChosenUpstream) -> ChosenUpstream | None:
        excluded = (*run.tried, chosen.upstream.name)
        return self._balance.choose(run.request, time.monotonic(), excluded)

    def _drop(self, run: _Run, task: asyncio.Task[_Opened]) -> None:
        """End the attempt that was not needed."""
        task.cancel()

        def close(done: asyncio.Task[_Opened]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._close(run, done.result().sent)

        task.add_done_callback(close)

    async def _open(self, run: _Run, chosen: ChosenUpstream) -> _Opened:
        """Send the request to one upstream, and wait for the status. Counted in the fleet's load until it is closed."""
        upstream, now = chosen.upstream, time.monotonic()
        upstream.num_requests += 1
        upstream.breaker.start(now)
        self._num_attempts += 1
        attempt, sent = str(self._num_attempts), None
        self._balance.sent(attempt, run.request, chosen, now)
        try:
            sent = await self._send(run, chosen, attempt)
            try:
                await sent.response.head()
            except UpstreamFailed:
                if run.is_abandoned or not sent.is_stale:
                    raise
                run.open.discard(sent)  # an idle connection that the upstream had closed: the request was not received
                sent.close()
                sent = await self._send(run, chosen, attempt)
                await sent.response.head()
        except BaseException as error:
            if sent is not None:
                self._close(run, sent)
            self._balance.ended(attempt, run.request)  # also if the second connection failed
            if isinstance(error, asyncio.CancelledError):
                upstream.breaker.give_up()
            raise
        return _Opened(chosen, sent, now)

    async def _send(self, run: _Run, chosen: ChosenUpstream, attempt: str) -> OpenRequest:
        """Send the request on one connection."""
        upstream = chosen.upstream
        sent = await send_request(upstream, run.request, run.state.progress, chosen.address)
        sent.attempt = attempt
        run.open.add(sent)
        if run.is_abandoned:
            run.abandon()
        sent.on_close = SilenceAlarm(upstream.name, sent, self._config.silence_seconds).stop
        return sent

    def _close(self, run: _Run, sent: OpenRequest) -> None:
        if sent in run.open:
            run.open.discard(sent)
            sent.close()
            self._balance.ended(sent.attempt, run.request)

    # ── receiving ──

    async def _pass(self, run: _Run, opened: _Opened) -> bool:
        """Pass the response on. True: the request is over; False: another upstream is tried."""
        response, upstream, now = opened.sent.response, opened.upstream, time.monotonic()
        status = response.status
        self._outliers.add(upstream.name, now, status not in FAULTS, now - opened.started)
        if status in FAULTS:
            upstream.num_failures += 1
            upstream.breaker.fail(now)
        else:
            upstream.breaker.succeed()
        if status < 400:
            run.state.on_token = partial(self._balance.began, opened.sent.attempt, run.request)
            await pass_answer(upstream.name, run.request, response, run.state)
            if run.state.usage is not None and upstream.is_quire and not run.outcome.num_resumed:
                self._balance.answered(run.request, opened.chosen, run.state.usage.cached)
                if run.state.first_token is not None:
                    chosen, seconds = opened.chosen, run.state.first_token - opened.started
                    self._meters.record_first_token(chosen.source_kind, chosen.first_token_seconds, seconds)
            return True
        refusal = UpstreamRefusal(upstream.name, status, response.headers, await response.read_all())
        if may_try_another(upstream, status):
            run.refusals.append(refusal)
            run.tried[upstream.name] = now
            if self._budget.take():
                self._meters.num_retries += 1
                return False
            await self._give_up(run)
            return True
        await self._pass_refusal(run, refusal)
        return True

    def _count_failure(self, run: _Run, upstream: Upstream, error: UpstreamFailed) -> None:
        """An upstream failed without an answer: count it, and go on elsewhere."""
        now = time.monotonic()
        upstream.num_failures += 1
        upstream.breaker.fail(now)
        self._outliers.add(upstream.name, now, False, 0.0)
        run.error, run.tried[upstream.name] = error, now
        progress = run.state.progress
        more = {"request_id": run.request.exchange.id}
        logger.warning("%s (%d tokens were sent to the client)", error.public, progress.num_tokens, extra=more)
        self._meters.num_failovers += 1
        if progress.is_begun and self._may_go_on(run):
            progress.num_resumed += 1
            upstream.num_resumed += 1
            run.outcome.num_resumed += 1

    # ── giving up ──

    async def _give_up(self, run: _Run) -> None:
        """Answer with what is known: an upstream's error answer, the end of a stream, or our own error."""
        if run.request.exchange.has_begun:
            await self._fail_stream(run)
        elif run.refusals and not run.is_last:
            raise UpstreamsRefused(run.refusals[-1].upstream, run.refusals[-1].status)
        elif run.refusals:
            best = min(run.refusals, key=lambda each: (each.status in KEY_REFUSED, each.retry_after))
            await self._pass_refusal(run, best)
        elif run.error is not None:
            raise run.error
        else:
            raise self._no_upstream(run.request)

    async def _pass_refusal(self, run: _Run, refusal: UpstreamRefusal) -> None:
        exchange = run.request.exchange
        if refusal.status in KEY_REFUSED:
            raise UpstreamRefusedGateway(refusal.upstream, refusal.status)
        if exchange.has_begun:
            await self._fail_stream(run)
            return
        exchange.record.error, exchange.record.message = f"upstream_{refusal.status}", f"from {refusal.upstream}"
        content_type = refusal.headers.get("content-type", JSON)
        await exchange.respond(refusal.body, content_type, refusal.status, passed_headers(refusal.headers))

    async def _fail_stream(self, run: _Run) -> None:
        exchange, state = run.request.exchange, run.state
        why = run.error.public if run.error is not None else "no upstream can continue it."
        error = StreamLost(why)
        exchange.record.fail(error)
        body = exchange.dialect.error(error)
        if state.stream is not None and not state.progress.is_framed:
            await exchange.write(state.stream.failure(body), more=False)
            return
        is_lines = exchange.dialect.name == "ollama"
        data = body + b"\n" if is_lines else b"event: error\ndata: " + body + b"\n\n"
        await exchange.write(data, more=False)

    def _no_upstream(self, request: RelayedRequest) -> QuireError:
        known = [each for each in self._upstreams if each.serves(request.model)]
        models = self._upstreams.models()
        if not known and models and request.model not in models:
            return ModelNotInFleet(request.named, models)
        why = "".join(f"; {each.name} {each.problem}" for each in self._upstreams if not each.is_ready)
        return NoUpstream(request.model, len(self._upstreams), why[:500])
