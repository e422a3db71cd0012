"""Passing an upstream's answer on to the client: frames of Quire, events of others, or a whole body."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from quire.gateway.http.connection import UpstreamResponse
from quire.gateway.http.errors import UpstreamFailed
from quire.gateway.relay.attempt import passed_headers
from quire.gateway.relay.body_head import usage_of_body
from quire.gateway.relay.event_stream import NDJSON, SSE, EventStream
from quire.gateway.relay.request import AnswerProgress, RelayedRequest
from quire.gateway.relay.text_resume import ContinuedEvents
from quire.serve.relayed.frames import (
    CONTENT_TYPE,
    DATA,
    END,
    STREAM_TYPE,
    USAGE,
    Frame,
    FrameReader,
    RelayedUsage,
    decode_failure,
    decode_usage,
)

JSON = "application/json"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(slots=True)
class AnswerState:
    """What later attempts and the accounting need to know about earlier attempts."""

    progress: AnswerProgress
    keeps_text: bool  # another upstream may continue the text
    events: ContinuedEvents
    stream: EventStream | None = None  # of the newest attempt, if it is not in frames
    usage: RelayedUsage | None = None
    first_byte: float | None = None
    first_token: float | None = None  # only of a stream in frames, whose first bytes may come before any token
    on_token: Callable[[], None] | None = None  # called once, at the first token of the newest attempt

    def report_token(self) -> None:
        """Call `on_token` at an attempt's first token: the upstream has computed the prompt."""
        if self.on_token is not None:
            self.on_token()
            self.on_token = None


class StreamFailed(UpstreamFailed):
    """A stream failed at an upstream, which reported that another upstream may continue it."""

    code = "upstream_stream_failed"


async def pass_answer(name: str, request: RelayedRequest, response: UpstreamResponse, state: AnswerState) -> None:
    """Pass a response with a good status on. Raises UpstreamFailed if it breaks off."""
    content_type = response.headers.get("content-type", "")
    if state.first_byte is None:
        state.first_byte = time.monotonic()
    if content_type.startswith(CONTENT_TYPE):
        try:
            await _pass_frames(name, request, response, state)
        except ValueError as error:  # msgspec's are too
            raise UpstreamFailed(name, f"sent what is no frame ({error})") from None
    elif content_type.startswith((SSE, NDJSON)):
        await _pass_events(name, request, response, state)
    else:
        await _pass_whole(request, response, state)


async def _pass_frames(name: str, request: RelayedRequest, response: UpstreamResponse, state: AnswerState) -> None:
    exchange, progress, reader = request.exchange, state.progress, FrameReader()
    progress.is_framed = True
    if not exchange.has_begun:
        await exchange.begin(
            200, response.headers.get(STREAM_TYPE, SSE), STREAM_HEADERS | passed_headers(response.headers)
        )
    read, write, journal, num_before = response.read, exchange.write, progress.journal, progress.num_tokens
    while data := await read():
        payload, last = b"", None
        for frame in reader.feed(data):
            if frame.kind != DATA:
                last = frame
                break
            payload = payload + frame.payload if payload else frame.payload
            journal.append(frame.journal)
            progress.num_tokens += frame.num_tokens
        if state.first_token is None and progress.num_tokens:
            state.first_token = time.monotonic()
        if payload:
            progress.is_begun = True
            if state.on_token is not None and progress.num_tokens > num_before:
                state.report_token()
            await write(payload)
        if last is not None:
            await _pass_last(name, request, last, state)
            return
    raise UpstreamFailed(name, "ended a stream before its last frame")


async def _pass_last(name: str, request: RelayedRequest, frame: Frame, state: AnswerState) -> None:
    exchange, progress = request.exchange, state.progress
    if frame.kind == END:
        state.usage = decode_usage(frame.journal)
    else:
        failure = decode_failure(frame.journal)
        if failure.may_retry:
            raise StreamFailed(name, f"failed in a stream ({failure.code})")
        exchange.record.error, exchange.record.message = failure.code, "an upstream failed in a stream"
    progress.is_begun = True
    await exchange.write(frame.payload, more=False)


async def _pass_events(name: str, request: RelayedRequest, response: UpstreamResponse, state: AnswerState) -> None:
    exchange, progress = request.exchange, state.progress
    stream = state.stream = EventStream(response.headers["content-type"], state.keeps_text)
    progress.is_framed = False
    state.events.is_continuation = progress.is_begun
    text_before, tokens_before = progress.text, progress.num_tokens
    while data := await response.read():
        events = stream.feed(data)
        if not events:
            continue
        if not exchange.has_begun:
            more = STREAM_HEADERS | passed_headers(response.headers)
            await exchange.begin(200, response.headers["content-type"], more)
        progress.is_begun = True
        state.report_token()
        if state.keeps_text:
            progress.text, progress.num_tokens = text_before + stream.text, tokens_before + stream.num_events
            events = state.events.rewrite(events)
        await exchange.write(events)
    rest = stream.finish()
    if not exchange.has_begun:
        await exchange.begin(200, response.headers["content-type"], STREAM_HEADERS)
    progress.is_begun = True
    state.usage = stream.usage or RelayedUsage(request.num_tokens, 0, tokens_before + stream.num_events)
    await exchange.write(rest, more=False)


async def _pass_whole(request: RelayedRequest, response: UpstreamResponse, state: AnswerState) -> None:
    """Nothing is sent before the whole body is here, so that another upstream may still answer.

    A body that is not JSON (audio, a file) may be large: it is passed on in pieces.
    """
    exchange = request.exchange
    content_type, more = response.headers.get("content-type", JSON), passed_headers(response.headers)
    if not content_type.startswith(JSON):
        await exchange.begin(response.status, content_type, more)
        while data := await response.read():
            state.progress.is_begun = True
            await exchange.write(data)
        await exchange.write(b"", more=False)
        return
    body = await response.read_all()
    counted = response.headers.get(USAGE, "").split(",")
    is_counted = len(counted) == len(RelayedUsage._fields) and all(count.isdecimal() for count in counted)
    state.usage = RelayedUsage(*map(int, counted)) if is_counted else usage_of_body(body)
    state.progress.is_begun = True
    await exchange.respond(body, content_type, response.status, more)
