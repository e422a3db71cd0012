"""All that is said between an engine and its clients. A closed vocabulary: what is not here cannot be said.

    in    Configure   Hello   Submit   Cancel   Snapshot   Explain   PinPrefix   UnpinPrefix   Flush   Resize
          Probe   Shutdown
    out   Loading*  Ready   (Accepted (Tokens* Finished | Failed){n} | Failed)*   Cancelled   Counters   Explained
          Changed   Resized   Unanswered   Alive   Dead

Every Submit is answered by Failed, or by Accepted and then, for each of its n samples, by one Finished or Failed. A
constrained request is answered when its grammar is compiled, so one that came after it may be Accepted before it; what
cannot be compiled is Failed, and never Accepted. Every Cancel is answered by Cancelled. Questions are answered in their
order: Snapshot by Counters, Explain by Explained, Resize by Resized, the others by Changed, or any of them by
Unanswered. A Probe is answered by Alive, between two steps. Where several processes share an engine (hub.py) they say
Hello; they hear Loading when it has died or does not respond, and Ready when there is one that does.
In one process messages are these objects; only a socket makes bytes of them. Tokens and Finished are in
`types/output.py`: the text side decodes them and does not know the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.config import Config
from quire.observe.histogram import NO_SPREAD, Spread
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import CacheKey, FinishReason, GenerateRequest, Pin


@dataclass(frozen=True, slots=True)
class Configure:
    """The first message to a process: load this model. An engine in a thread is made with these instead."""

    model: str  # path of a checkpoint
    device: str
    config: Config


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a front: what is served here? The answer is a Configure, and Ready once that is so."""


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
class Explain:
    """Why would this prompt hit or miss the prefix tree?"""

    tokens: tuple[int, ...]
    key: CacheKey


@dataclass(frozen=True, slots=True)
class PinPrefix:
    """Pin what is cached of these tokens. Changed counts the pin's tokens that are cached."""

    tokens: tuple[int, ...]
    key: CacheKey
    pin: Pin


@dataclass(frozen=True, slots=True)
class UnpinPrefix:
    """Lift the pins from what is cached of these tokens. Changed counts the blocks that had one."""

    tokens: tuple[int, ...]
    key: CacheKey


@dataclass(frozen=True, slots=True)
class Flush:
    """Forget all that is cached. Changed counts the blocks that were."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Let so many KV blocks be in use from now on, and give the memory of others back to the system.

    Not fewer than one whole context needs, and not more than Ready's `most_blocks`: Resized says how many it became.
    """

    num_blocks: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask for Alive, which the step loop sends between two steps. From the process watcher (watch.py)."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End every request, then the loop."""


Question = Snapshot | Explain | PinPrefix | UnpinPrefix | Flush | Resize
Inward = Configure | Hello | Submit | Cancel | Question | Probe | Shutdown


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
    num_blocks: int  # of KV that may be in use
    block_tokens: int
    seconds: float  # that loading took
    most_blocks: int = 0  # what Resize can make of num_blocks: address space is reserved for so many
    block_bytes: int = 0  # of one block, over all layers
    weight_bytes: int = 0  # what the engine needs beside its blocks: weights, and the largest buffers
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)  # see devices.base.NamesKernels


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request is in the queue."""

    request_id: str


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
    padded_tokens: int = 0  # computed besides, for nobody: steps are filled up to sizes that a device has prepared
    output_tokens: int = 0
    forced_tokens: int = 0  # of the output
    busy_seconds: float = 0.0  # that the device was at steps
    num_running: int = 0
    num_waiting: int = 0
    num_compiling: int = 0  # not in the queue yet: their grammars are on their way
    num_preemptions: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_held_blocks: int = 0
    num_cached_blocks: int = 0
    num_sessions: int = 0
    queried_tokens: int = 0  # of prompts, in the prefix tree
    hit_tokens: int = 0
    promised_wait: float = 0.0  # of a request that arrives now
    num_restarts: int = 0  # of the engine itself, by its client
    plan: Spread = NO_SPREAD  # seconds of steps: in the scheduler before,
    run: Spread = NO_SPREAD  # on the device,
    commit: Spread = NO_SPREAD  # and in the scheduler after


@dataclass(frozen=True, slots=True)
class Explained:
    """`num_hit` of `num_tokens` tokens are cached; the first that is not is at position `num_hit`."""

    num_tokens: int
    num_hit: int
    cause: str  # whole, diverged, evicted, other_salt or unseen
    given: int | None = None  # the prompt's token where the hit ends
    cached: int | None = None  # diverged: the token that the cache has there
    evicted_ago: float | None = None  # evicted: seconds


@dataclass(frozen=True, slots=True)
class Changed:
    """The cache did as it was asked."""

    count: int


@dataclass(frozen=True, slots=True)
class Resized:
    """So many KV blocks may be in use. While more are held, it goes on shrinking as they are released."""

    num_blocks: int
    num_held: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question could not be answered: there is no engine just now."""

    error: QuireError


@dataclass(frozen=True, slots=True)
class Alive:
    """The step loop is running."""


class EngineDied(QuireError):
    """The engine stopped while requests were running. `was_killed`: by a signal that a process does not send itself."""

    code = "engine_died"
    status = 503

    def __init__(self, public: str, was_killed: bool = False) -> None:
        super().__init__(public)
        self.was_killed = was_killed


class PoisonRequest(QuireError):
    """The engine stopped when this request ran alone, did not without it, and did again with it."""

    code = "poison_request"
    may_retry = False

    def __init__(self, num_deaths: int) -> None:
        super().__init__(
            f"This request has ended the engine {num_deaths} times, also when it ran alone, and without it the engine "
            "did not end: it is refused, and the others go on."
        )


@dataclass(frozen=True, slots=True)
class Dead:
    """The engine's last word: nothing more will come, and its live requests are lost."""

    error: QuireError


News = Accepted | Tokens | Finished | Failed  # what is said about one request
Outward = Loading | Ready | News | Cancelled | Counters | Explained | Changed | Resized | Unanswered | Alive | Dead
