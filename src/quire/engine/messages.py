"""All messages between an engine and its clients: a closed set.

    in    Configure   Hello   Submit   Cancel   Snapshot   Explain   PinPrefix   UnpinPrefix   Flush   Resize
          ReadEvents   ReadLoad   Probe   Shutdown
    out   Loading*  Ready   (Accepted (Tokens* Finished | Failed){n} | Failed)*   Cancelled   Counters   Explained
          Changed   Resized   CacheEvents   LoadReport   Unanswered   Alive   Dead

Every Submit is answered by Failed, or by Accepted and then, for each of its n samples, by one Finished or Failed. A
constrained request is answered when its grammar is compiled, so a later request may be Accepted before it; one whose
grammar does not compile is Failed, never Accepted. Every Cancel is answered by Cancelled. Questions are answered in
order: Snapshot by Counters, Explain by Explained, Resize by Resized, ReadEvents by CacheEvents, ReadLoad by LoadReport,
the others by Changed, or any of them by Unanswered. A Probe is answered by Alive, between two steps. Where several
fronts share an engine (hub.py), each sends Hello; it receives Loading when the engine has died or does not respond, and
Ready when it responds again.
Within one process messages are these objects; only a socket encodes them. Tokens and Finished are in `types/output.py`:
the text side decodes them and does not know the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.config import Config
from quire.observe.histogram import EMPTY_HISTOGRAM, HistogramValue
from quire.types.errors import QuireError
from quire.types.kinds import RequestKind
from quire.types.load import LoadReport
from quire.types.output import Finished, Tokens
from quire.types.request import CacheKey, FinishReason, GenerateRequest, Pin


@dataclass(frozen=True, slots=True)
class Configure:
    """The first message to a process: load this model. An engine in a thread is built with these values directly."""

    model: str  # path of a checkpoint
    device: str
    config: Config


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a front to an engine of the hub. The answer is Ready."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Serve this request."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, or one of its samples, now. Its Finished will have this reason."""

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
    """Pin the cached prefix of these tokens. Changed counts the pinned tokens."""

    tokens: tuple[int, ...]
    key: CacheKey
    pin: Pin


@dataclass(frozen=True, slots=True)
class UnpinPrefix:
    """Unpin the cached prefix of these tokens. Changed counts the blocks that had a pin."""

    tokens: tuple[int, ...]
    key: CacheKey


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop the whole prefix tree. Changed counts the blocks that were cached."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Allow so many KV blocks from now on, and return the memory of the others to the system.

    At least one whole context, at most Ready's `most_blocks`: Resized has the actual number.
    """

    num_blocks: int


@dataclass(frozen=True, slots=True)
class ReadEvents:
    """Send the cache events after a position; if that is unknown or too old, the first part of a snapshot.

    `part` above 0: send the part after that one of the snapshot at the position.
    """

    epoch: str = ""
    after: int = 0
    part: int = 0


@dataclass(frozen=True, slots=True)
class ReadLoad:
    """Send LoadReport."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask for Alive, which the step loop sends between two steps. Sent by the process watcher (watch.py)."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End every request, then the loop."""


Question = Snapshot | Explain | PinPrefix | UnpinPrefix | Flush | Resize | ReadEvents | ReadLoad
Inward = Configure | Hello | Submit | Cancel | Question | Probe | Shutdown


@dataclass(frozen=True, slots=True)
class Loading:
    """The model is being loaded."""

    stage: str
    seconds: float  # since the start


@dataclass(frozen=True, slots=True)
class WindowCache:
    """The KV blocks of the layers that read no further back than `window` tokens."""

    window: int
    num_blocks: int
    block_bytes: int  # of one block, over these layers


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine accepts requests. Has what it measured and decided while loading."""

    device: str
    architecture: str
    vocab_size: int
    max_context: int
    num_blocks: int  # KV blocks that may be in use
    block_tokens: int
    seconds: float  # that loading took
    most_blocks: int = 0  # the most that Resize allows: address space is reserved for so many
    block_bytes: int = 0  # of one KV block, over the layers that keep all tokens
    weight_bytes: int = 0  # beside KV blocks: weights and the largest buffers
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)  # see devices.base.ReportsKernels
    windows: tuple[WindowCache, ...] = ()  # layers that keep the tokens of a window; these blocks are not resized
    num_states: int = 0  # of running requests, and checkpoints
    state_bytes: int = 0  # of one of them, over the recurrent layers
    kinds: tuple[RequestKind, ...] = (RequestKind.GENERATE,)  # of requests that it accepts
    vector_size: int = 0  # numbers of an embedding, or classes; 0: it makes none

    @property
    def group_bytes(self) -> int:
        """Bytes of the caches that keep their size: window groups and states."""
        windows = sum(each.num_blocks * each.block_bytes for each in self.windows)
        return windows + self.num_states * self.state_bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request is in the queue."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a sample that cannot be served; of the whole request if `sample` is None."""

    request_id: str
    sample: int | None
    error: QuireError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A Cancel was handled. Not found: the request had ended already, or never existed."""

    request_id: str
    found: bool


@dataclass(frozen=True, slots=True)
class Counters:
    """What the engine has done since its start, and what it holds now."""

    num_steps: int = 0
    num_accepted: int = 0  # requests
    num_refused: int = 0
    num_finished: int = 0  # samples
    num_failed: int = 0
    num_cancelled: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0  # padding: steps are filled up to sizes that the device has prepared
    output_tokens: int = 0
    forced_tokens: int = 0  # of the output
    drafted_tokens: dict[str, int] = field(default_factory=dict)  # verified, by drafter
    accepted_drafts: dict[str, int] = field(default_factory=dict)  # of these: they are output
    num_drafts: int = 0  # each of one or more tokens
    accepted_by_position: list[int] = field(default_factory=list)  # accepted drafts, by their place in the draft
    busy_seconds: float = 0.0  # of the device, in steps
    num_running: int = 0
    num_waiting: int = 0
    num_compiling: int = 0  # not queued yet: their grammars are compiling
    num_preemptions: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_held_blocks: int = 0
    num_cached_blocks: int = 0
    num_window_blocks: int = 0  # of all window groups
    num_held_window_blocks: int = 0
    num_cached_window_blocks: int = 0
    num_states: int = 0  # slots for the states of recurrent layers
    num_held_states: int = 0
    num_checkpoints: int = 0  # states in the prefix tree
    num_sessions: int = 0
    queried_tokens: int = 0  # prompt tokens looked up in the prefix tree
    hit_tokens: int = 0
    promised_wait: float = 0.0  # for a request that arrives now
    num_restarts: int = 0  # of the engine, by its client
    num_fetches: int = 0  # of prefixes from other engines
    num_failed_fetches: int = 0  # fetches that ended early; the rest was computed here
    fetched_tokens: int = 0
    sent_tokens: int = 0  # to other engines
    fetch_seconds: float = 0.0
    plan: HistogramValue = EMPTY_HISTOGRAM  # seconds of a step in the scheduler, before the launch
    run: HistogramValue = EMPTY_HISTOGRAM  # seconds of a step on the device
    commit: HistogramValue = EMPTY_HISTOGRAM  # seconds of a step in the scheduler, after it

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that are held; of window blocks or states, if that is more."""
        groups = (
            (self.num_held_blocks, self.num_blocks),
            (self.num_held_window_blocks, self.num_window_blocks),
            (self.num_held_states, self.num_states),
        )
        return max(num_held / max(total, 1) for num_held, total in groups)


@dataclass(frozen=True, slots=True)
class Explained:
    """`num_hit` of `num_tokens` tokens need not be computed; a request resumes at that position."""

    num_tokens: int
    num_hit: int
    cause: str  # a `cache.explain.Cause`
    given: int | None = None  # the prompt's token where the hit ends
    cached: int | None = None  # diverged: the token that the cache has there
    evicted_ago: float | None = None  # evicted: seconds
    num_in_tree: int = 0  # tokens found in the prefix tree: more than the hit if a state or a window's block is missing


@dataclass(frozen=True, slots=True)
class Changed:
    """The cache was changed; `count` as the question says."""

    count: int


@dataclass(frozen=True, slots=True)
class Resized:
    """So many KV blocks may be in use. While more are held, the cache shrinks as they are released."""

    num_blocks: int
    num_held: int


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """Events of the blocks of all tokens: numbers `after` + 1 to `last`, or a part of a snapshot at `last`."""

    epoch: str  # of the engine process
    after: int
    last: int
    part: tuple[int, int] | None = None  # of a snapshot: number from 1, count
    # kind ("stored", "removed", "cleared"), digest, digest of its parent, tokens (little endian)
    events: tuple[tuple[str, bytes, bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question could not be answered: no engine is running now."""

    error: QuireError


@dataclass(frozen=True, slots=True)
class Alive:
    """The step loop is running."""


class EngineDied(QuireError):
    """The engine stopped while requests were running. `was_killed`: by a signal from outside."""

    code = "engine_died"
    status = 503

    def __init__(self, public: str, was_killed: bool = False) -> None:
        super().__init__(public)
        self.was_killed = was_killed


class PoisonRequest(QuireError):
    """The engine died while this request ran alone, ran without it, and died again with it."""

    code = "poison_request"
    may_retry = False

    def __init__(self, num_deaths: int) -> None:
        super().__init__(
            f"This request ended the engine {num_deaths} times, also when it ran alone, and without it the engine ran: "
            "it is refused, and the others continue."
        )


@dataclass(frozen=True, slots=True)
class Dead:
    """The engine's last message: its live requests are lost."""

    error: QuireError


News = Accepted | Tokens | Finished | Failed  # messages about one request
Answer = Counters | Explained | Changed | Resized | CacheEvents | LoadReport  # to questions
Outward = Loading | Ready | News | Cancelled | Answer | Unanswered | Alive | Dead
