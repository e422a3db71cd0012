"""All that is said between an engine and its clients. A closed vocabulary: what is not here cannot be said.

    in    Configure   Submit   Cancel   Snapshot   Shutdown
    out   Loading*  Ready   (Accepted (Tokens* Finished | Failed){n} | Failed)*   Cancelled   Counters   Dead

Every Submit is answered by Failed, or by Accepted and then, for each of its n samples, by one Finished or Failed. A
constrained request is answered when its grammar is compiled, so one that came after it may be Accepted before it; what
cannot be compiled is Failed, and never Accepted. Every Cancel is answered by Cancelled. In one process messages are
these objects; only a socket makes bytes of them. Tokens and Finished are tuples with names: there is one for every
running request in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.config import Config
from quire.types.errors import QuireError
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Configure:
    """The first message to a process: load this model. An engine in a thread is made with these instead."""

    model: str  # path of a checkpoint
    device: str
    config: Config


@dataclass(frozen=True, slots=True)
class Submit:
    """Serve this request."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, or one of its samples, now. The reason is what its Finished will say."""

    request_id: str
    reason: FinishReason = FinishReason.CANCELLED
    sample: int | None = None  # None: all


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Send Counters."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End every request, then the loop."""


Inward = Configure | Submit | Cancel | Snapshot | Shutdown


@dataclass(frozen=True, slots=True)
class Loading:
    """The model is on its way."""

    stage: str
    seconds: float  # since the start


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine takes requests. What it measured and decided."""

    device: str
    architecture: str
    vocab_size: int
    max_context: int
    num_blocks: int
    block_tokens: int
    seconds: float  # that loading took


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request is in the queue."""

    request_id: str


class Tokens(NamedTuple):
    """News of a sample that goes on."""

    request_id: str
    sample: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_hit: int = 0  # prompt tokens that came from the prefix tree
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_forced: int = 0  # of these tokens, how many a grammar forced: all or none


class Finished(NamedTuple):
    """The last news of a sample that ended well, with its last tokens."""

    request_id: str
    sample: int
    reason: FinishReason
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_hit: int = 0
    num_forced: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The last news of a sample that cannot be served; of the whole request if `sample` is None."""

    request_id: str
    sample: int | None
    error: QuireError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A Cancel was heard. Not found: the request had ended before, or never was."""

    request_id: str
    found: bool


@dataclass(frozen=True, slots=True)
class Counters:
    """What the engine has done since it was started, and what it holds now."""

    num_steps: int = 0
    num_accepted: int = 0  # requests
    num_refused: int = 0
    num_finished: int = 0  # samples
    num_failed: int = 0
    num_cancelled: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0  # of the output
    busy_seconds: float = 0.0  # in steps
    num_running: int = 0
    num_waiting: int = 0
    num_compiling: int = 0  # not in the queue yet: their grammars are on their way
    num_preemptions: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    queried_tokens: int = 0  # of prompts, in the prefix tree
    hit_tokens: int = 0


class EngineDied(QuireError):
    """The engine stopped while requests were running."""

    code = "engine_died"
    status = 503


@dataclass(frozen=True, slots=True)
class Dead:
    """The engine's last word: nothing more will come, and its live requests are lost."""

    error: QuireError


Outward = Loading | Ready | Accepted | Tokens | Finished | Failed | Cancelled | Counters | Dead
News = Accepted | Tokens | Finished | Failed  # what is said about one request
