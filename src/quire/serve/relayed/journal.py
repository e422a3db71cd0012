"""The journal of an answer: the engine's output so far, from which another server continues the stream.

An entry holds the outputs of one frame. The server that continues decodes them again, which restores the detokenizer,
the parsers and the writer, and sends nothing of that; then its engine continues each sample behind its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from quire.serve.generation.response_state import ResponseState
from quire.types.errors import InvalidRequest
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import DraftCount, TokenLogprobs


class _Entry(NamedTuple):
    """An output. `place`: of its request among those of the exchange."""

    place: int
    sample: int
    tokens: tuple[int, ...]
    num_hit: int = 0
    num_forced: int = 0
    reason: FinishReason | None = None  # None: the sample continues
    waited: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    drafts: tuple[DraftCount, ...] = ()


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[_Entry])


class Journal:
    """Writes and reads the entries of one exchange's requests."""

    def __init__(self, requests: Sequence[GenerateRequest]) -> None:
        self._requests = requests
        self._places = {request.id: place for place, request in enumerate(requests)}

    def encode(self, outputs: Sequence[Tokens | Finished]) -> bytes:
        """The entry of these outputs."""
        return _encoder.encode([self._entry(output) for output in outputs])

    def _entry(self, output: Tokens | Finished) -> _Entry:
        entry = _Entry(self._places[output.request_id], output.sample, output.tokens, output.num_hit, output.num_forced)
        if isinstance(output, Finished):
            entry = entry._replace(reason=output.reason, waited=output.waited)
        elif output.prompt_logprobs:
            entry = entry._replace(prompt_logprobs=output.prompt_logprobs)
        if output.logprobs or output.drafts:
            entry = entry._replace(logprobs=output.logprobs, drafts=output.drafts)
        return entry

    def decode(self, journal: Sequence[bytes]) -> list[Tokens | Finished]:
        """The outputs of all entries, as of this exchange's requests."""
        try:
            entries = [entry for each in journal for entry in _decoder.decode(each)]
            return [self._output(entry) for entry in entries]
        except (msgspec.MsgspecError, IndexError) as error:
            raise InvalidRequest(f"The journal of the answer cannot be read: {error}", field="x-quire-note") from None

    def _output(self, entry: _Entry) -> Tokens | Finished:
        request = self._requests[entry.place]
        if not 0 <= entry.sample < request.sampling.n:
            raise IndexError(f"there is no sample {entry.sample}")
        if entry.reason is None:
            output = Tokens(request.id, entry.sample, entry.tokens, prompt_logprobs=entry.prompt_logprobs)
            return output._replace(**_shared(entry))
        ended = Finished(request.id, entry.sample, entry.reason, entry.tokens, waited=entry.waited)
        return ended._replace(**_shared(entry))


def _shared(entry: _Entry) -> dict[str, Any]:
    """The fields that outputs of both kinds have."""
    return {name: getattr(entry, name) for name in ("logprobs", "num_hit", "num_forced", "drafts")}


def resumed_requests(
    requests: Sequence[GenerateRequest], outputs: Sequence[Tokens | Finished], state: ResponseState
) -> list[GenerateRequest]:
    """The requests that have not ended, each with the output so far. The state has taken these outputs."""
    tokens: dict[tuple[str, int], tuple[int, ...]] = {}
    for output in outputs:
        at = (output.request_id, output.sample)
        tokens[at] = tokens.get(at, ()) + output.tokens
    found = []
    for request in requests:
        ended = state.ended_samples(request.id)
        samples = range(request.sampling.n)
        if len(ended) < len(samples):
            resumed = tuple(None if sample in ended else tokens.get((request.id, sample), ()) for sample in samples)
            found.append(replace(request, resumed=resumed))
    return found
