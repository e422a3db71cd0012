"""Messages survive the socket: what goes in comes out, and what is no message is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("msgspec")

import msgspec

from quire.config import Config
from quire.engine import messages
from quire.engine.wire import KINDS, decode, encode
from quire.observe.histogram import HistogramValue
from quire.types import output
from quire.types.errors import ContextTooLong, Overloaded, QuireError
from quire.types.load import LoadReport
from quire.types.request import (
    CacheKey,
    Constraint,
    ConstraintKind,
    FinishReason,
    GenerateRequest,
    Pin,
    SamplingParams,
)
from quire.types.step import TokenLogprobs

pytestmark = pytest.mark.pure

SAMPLING = SamplingParams(
    max_tokens=5,
    logit_bias={3: -1.5},
    allowed_token_ids=(1, 2),
    bad_words=((1, 2), (3,)),
    stop=("end", "é"),
    stop_token_ids=(7,),
    seed=1 << 62,
    logprobs=2,
)
REQUEST = GenerateRequest(
    "a",
    (1, 2, 3),
    SAMPLING,
    (9,),
    priority=-1,
    deadline=1.5,
    cache=CacheKey(salt="t"),
    pins=(Pin(0, 3, ttl=2.0),),
    constraint=Constraint(ConstraintKind.CHOICE, choices=("yes", "é")),
)
LOGPROBS = (TokenLogprobs(5, -0.25, ((5, -0.25), (6, -1.5))),)
MESSAGES = [
    messages.Configure("path", "cpu", replace(Config(), cache=replace(Config().cache, num_blocks=9))),
    messages.Submit(REQUEST),
    messages.Cancel("a", FinishReason.STOP, 2),
    messages.Snapshot(),
    messages.Explain((1, 2), CacheKey(salt="t")),
    messages.PinPrefix((1, 2), CacheKey(), Pin(0, 2, ttl=3.0)),
    messages.UnpinPrefix((1, 2), CacheKey()),
    messages.Flush(),
    messages.Resize(12),
    messages.Shutdown(),
    messages.Hello(),
    messages.Probe(),
    messages.Alive(),
    messages.Submit(replace(REQUEST, sampling=replace(SAMPLING, n=3), resumed=((1, 2), None, ()))),
    messages.Loading("drawing", 0.5),
    messages.Ready("cpu", "LlamaForCausalLM", 100, 50, 7, 16, 0.25, 9, 1024, 4096),
    messages.Accepted("a"),
    output.Tokens("a", 1, (5,), LOGPROBS, 3, LOGPROBS, 1),
    output.Finished("a", 0, FinishReason.LENGTH, (5, 6), LOGPROBS, 4, 2, 0.5),
    messages.Cancelled("a", True),
    messages.Counters(num_steps=4, busy_seconds=0.5, plan=HistogramValue((1, 2), 0.25)),
    messages.Explained(4, 2, "evicted", 7, None, 1.5),
    messages.Changed(3),
    messages.Resized(12, 4),
    messages.ReadEvents("e", 7, 2),
    messages.CacheEvents("e", 7, 9, (1, 2), (("stored", b"d" * 16, b"p" * 16, b"tttt"), ("cleared", b"", b"", b""))),
    messages.ReadLoad(),
    LoadReport("e", 9, num_running=2, prompt_rate=0.5),
]


def test_decoded_messages_equal_the_encoded_ones() -> None:
    assert decode(encode(MESSAGES)) == MESSAGES
    assert [type(message) for message in decode(encode(MESSAGES))] == [type(message) for message in MESSAGES]
    assert {type(message) for message in MESSAGES} | {messages.Failed, messages.Unanswered, messages.Dead} == set(KINDS)


def test_errors_keep_their_class_code_message_and_attributes() -> None:
    class Rare(QuireError):
        code = "rare"
        status = 418

    long, busy = ContextTooLong(300, 256), Overloaded("Too many.", 2.5)
    for error in (long, busy, messages.EngineDied("gone"), messages.PoisonRequest(2), Rare("odd")):
        said, unanswered = decode(encode([messages.Failed("a", None, error), messages.Unanswered(error)]))
        assert type(unanswered.error) is type(error)
        assert type(said.error) is type(error) and str(said.error) == str(error) == said.error.public
        assert vars(said.error) == vars(error)
    frame = encode([messages.Dead(Rare("odd"))]).replace(b"Rare", b"Rara")
    (dead,) = decode(frame)
    assert (dead.error.code, dead.error.status, dead.error.public) == ("rare", 418, "odd")


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgspec.msgpack.encode([(99, {})]), msgspec.msgpack.encode([(1, {})])])
def test_bytes_that_are_no_message_are_refused(frame: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(frame)
