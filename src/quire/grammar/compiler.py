"""Compiles constraints beside the engine's loop, within limits, and remembers what it has compiled.

A compiler's native code cannot be interrupted. So a job that takes too long is given up, not ended: its requests fail,
its thread goes on to the end, and if all threads are lost in that way, requests are refused until one is back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from quire.config import GrammarConfig
from quire.grammar.grammar import Backend, Grammar
from quire.observe.log import origin
from quire.types.errors import InvalidRequest, Overloaded, QuireError
from quire.types.request import Constraint

logger = logging.getLogger(__name__)

NUM_THREADS = 2  # one may be lost in a hard grammar while the other goes on

# Rules that refer to rules are followed by recursion, in native code that ends the process where the stack does. A
# level takes up to 10 KB of it and 5 bytes of grammar, so this is what a grammar may need. What is not used is free.
STACK_BYTES_PER_BYTE = 2048
MIN_STACK, MAX_STACK = 16 << 20, 1 << 30

_stack_size = threading.Lock()  # the size for new threads is the process's, not a thread's own


class Job:
    """A constraint on its way. Only its worker writes to it, the result last."""

    __slots__ = ("constraint", "result", "started")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.started: float | None = None
        self.result: Grammar | QuireError | None = None

    def seconds(self, now: float) -> float:
        """For how long it has been worked on."""
        return 0.0 if self.started is None or self.result is not None else now - self.started


class Compiler:
    """Owned by the engine's loop, which asks and looks; the work is done by threads that start with the first job."""

    def __init__(self, opens: Callable[[], Backend], config: GrammarConfig) -> None:
        self._opens = opens
        self._config = config
        self._backend: Backend | None = None
        self._opening = threading.Lock()
        self._known: OrderedDict[Constraint, Job] = OrderedDict()  # the one used longest ago first
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._at_work: list[Job | None] = []  # by worker

    def ask(self, constraint: Constraint) -> Job:
        """A job for this constraint; an old one if there is one. Raises InvalidRequest if it is too large."""
        job = self._known.get(constraint)
        if job is None:
            if constraint.num_bytes > self._config.max_grammar_bytes:
                raise InvalidRequest(
                    f"The constraint has {constraint.num_bytes} bytes, and max_grammar_bytes is "
                    f"{self._config.max_grammar_bytes}.",
                    field="constraint",
                )
            self._start_worker()
            job = self._known[constraint] = Job(constraint)
            self._jobs.put(job)
            while len(self._known) > self._config.cached_grammars:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(constraint)
        return job

    def look(self, job: Job, now: float) -> Grammar | QuireError | None:
        """What has become of a job; None: it is still worked on, or waits for its turn."""
        limit = self._config.max_grammar_seconds
        if job.result is not None:
            return job.result
        if job.seconds(now) > limit:
            return InvalidRequest(f"The constraint takes longer than {limit:g} s to compile.", field="constraint")
        if job.started is None and all(each is not None and each.seconds(now) > limit for each in self._at_work):
            return Overloaded("Grammars that take too long hold up the others.", retry_after=limit)
        return None

    def close(self) -> None:
        """Let the workers end. One that is lost in a job ends with the process."""
        for _ in self._at_work:
            self._jobs.put(None)

    def _start_worker(self) -> None:
        if len(self._at_work) == NUM_THREADS:
            return
        number = len(self._at_work)
        self._at_work.append(None)
        size = min(max(STACK_BYTES_PER_BYTE * self._config.max_grammar_bytes, MIN_STACK), MAX_STACK)
        with _stack_size:
            before = threading.stack_size(size)
            try:
                threading.Thread(target=self._work, args=[number], name="quire-grammar", daemon=True).start()
            except RuntimeError as error:
                self._at_work.pop()
                if not self._at_work:
                    raise Overloaded("No thread can be started to compile the constraint.", 1.0) from error
            finally:
                threading.stack_size(before)

    def _work(self, number: int) -> None:
        while (job := self._jobs.get()) is not None:
            self._at_work[number] = job
            job.result = self._compile(job)
            self._at_work[number] = None

    def _compile(self, job: Job) -> Grammar | QuireError:
        try:
            with self._opening:
                if self._backend is None:
                    self._backend = self._opens()
            job.started = time.monotonic()
            return self._backend.compile(job.constraint)
        except QuireError as error:
            return error.with_traceback(None)  # it is kept: what its frames hold need not be
        except Exception as error:
            logger.error("a constraint of the kind %s broke its compiler: %s", job.constraint.kind, origin(error))
            return InvalidRequest(
                f"The constraint cannot be compiled ({type(error).__name__}): the log has more.", field="constraint"
            )
