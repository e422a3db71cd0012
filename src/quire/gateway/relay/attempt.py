"""One attempt of a request at one upstream: it is sent, and the status of its response is awaited."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from quire.gateway.http.errors import UpstreamSilent
from quire.gateway.http.pool import OpenRequest
from quire.gateway.relay.body_head import with_model
from quire.gateway.relay.request import AnswerProgress, RelayedRequest, quire_message
from quire.gateway.relay.text_resume import continued_body
from quire.gateway.upstreams.upstream import Upstream
from quire.serve.relayed.note import CLIENT
from quire.types.transfer import PrefixSource

RETRIED = frozenset({429, 500, 502, 503, 504})
NOT_HERE = frozenset({404, 405, 501})  # the path, or the model, may exist at another upstream
KEY_REFUSED = frozenset({401, 403})
FAULTS = frozenset({500, 502, 504})  # of the upstream; 429 and 503 are overload
PASSED_BACK = ("content-type", "retry-after", "x-should-retry", "content-disposition", "x-quire-model", "x-quire-route")


@dataclass(frozen=True, slots=True)
class UpstreamRefusal:
    """An upstream's error answer. It goes to the client if no other upstream does better."""

    upstream: str
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def retry_after(self) -> float:
        """Seconds after which a retry makes sense; infinite if it does not say."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdecimal() else math.inf


class SilenceAlarm:
    """Fails a response that has sent nothing for too long. One timer for each attempt, not one for each token."""

    def __init__(self, name: str, sent: OpenRequest, seconds: float) -> None:
        self._name = name
        self._sent = sent
        self._seconds = seconds
        self._num_bytes = -1
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        response = self._sent.response
        if response.num_bytes == self._num_bytes or not response.num_bytes:
            response.fail(UpstreamSilent(self._name, f"has sent nothing for {self._seconds:g} s"))
            return
        self._num_bytes = response.num_bytes
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check)

    def stop(self) -> None:
        """The response has ended."""
        self._timer.cancel()


async def send_request(
    upstream: Upstream, request: RelayedRequest, progress: AnswerProgress, source: PrefixSource | None = None
) -> OpenRequest:
    """Send a request in the format of this kind of upstream. `source`: where to fetch the prompt's blocks."""
    method = request.exchange.record.method
    continues_text = progress.is_begun and not progress.is_framed
    if upstream.is_quire and not continues_text:
        headers, body = quire_message(request, progress, source)
    else:
        headers = request.headers() | ({CLIENT: request.client_header()} if upstream.is_quire else {})
        body = continued_body(request, progress) if continues_text else request.body
        if request.is_renamed:
            body = with_model(body, request.model)
    return await upstream.pool.send(method, request.target, headers | upstream.headers(), body)


def may_try_another(upstream: Upstream, status: int) -> bool:
    """Could another upstream do better than this error answer?"""
    return status in RETRIED or status in KEY_REFUSED or status in NOT_HERE


def passed_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers of a response that the client gets."""
    return {name: headers[name] for name in PASSED_BACK if name in headers and name != "content-type"}
