"""Compile constraints in threads beside the engine's loop, within limits, and cache the results.

The compiler's native code cannot be interrupted. A job that takes too long is abandoned: its requests fail, and its
thread runs to the end. While all threads are in such jobs, new constraints are refused.
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
from quire.observe.log import error_origin
from quire.types.errors import InvalidRequest, Overloaded, QuireError
from quire.types.request import Constraint

logger = logging.getLogger(__name__)

NUM_THREADS = 2  # so that one slow grammar does not block all others

# Nested rules are compiled by recursion in native code, where a stack overflow ends the process. A level takes up to
# 10 KB of stack and 5 bytes of grammar, so this is what a grammar may need. Unused stack takes no memory.
STACK_BYTES_PER_BYTE = 2048
MIN_STACK, MAX_STACK = 16 << 20, 1 << 30

_stack_size = threading.Lock()  # threading.stack_size is global


class Job:
    """A constraint that is being compiled. Only its worker writes to it, the result last."""

    __slots__ = ("constraint", "result", "started")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.started: float | None = None
        self.result: Grammar | QuireError | None = None

    def seconds(self, now: float) -> float:
        """How long it has been compiling."""
        return 0.0 if self.started is None or self.result is not None else now - self.started


class Compiler:
    """Owned by the engine's loop, which submits and polls. The threads start with the first job."""

    def __init__(self, open_backend: Callable[[], Backend], config: GrammarConfig) -> None:
        self._open_backend = open_backend
        self._config = config
        self._backend: Backend | None = None
        self._opening = threading.Lock()
        self._cache: OrderedDict[Constraint, Job] = OrderedDict()  # least recently used first
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._running: list[Job | None] = []  # by worker

    def submit(self, constraint: Constraint) -> Job:
        """The job for this constraint, cached or new. Raises InvalidRequest if the constraint is too large."""
        job = self._cache.get(constraint)
        if job is None:
            if constraint.num_bytes > self._config.max_grammar_bytes:
                raise InvalidRequest(
                    f"The constraint has {constraint.num_bytes} bytes; max_grammar_bytes allows "
                    f"{self._config.max_grammar_bytes}.",
                    field="constraint",
                )
            self._start_worker()
            job = self._cache[constraint] = Job(constraint)
            self._jobs.put(job)
            while len(self._cache) > self._config.cached_grammars:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(constraint)
        return job

    def poll(self, job: Job, now: float) -> Grammar | QuireError | None:
        """The result of a job. None: it is waiting or compiling."""
        limit = self._config.max_grammar_seconds
        if job.result is not None:
            return job.result
        if job.seconds(now) > limit:
            return InvalidRequest(f"The constraint takes longer than {limit:g} s to compile.", field="constraint")
        if job.started is None and all(each is not None and each.seconds(now) > limit for each in self._running):
            return Overloaded(
                "All grammar threads are busy with grammars that take too long: try again later.", retry_after=limit
            )
        return None

    def close(self) -> None:
        """Stop the workers. One that is in an abandoned job ends with the process."""
        for _ in self._running:
            self._jobs.put(None)

    def _start_worker(self) -> None:
        if len(self._running) == NUM_THREADS:
            return
        number = len(self._running)
        self._running.append(None)
        size = min(max(STACK_BYTES_PER_BYTE * self._config.max_grammar_bytes, MIN_STACK), MAX_STACK)
        with _stack_size:
            before = threading.stack_size(size)
            try:
                threading.Thread(target=self._work, args=[number], name="quire-grammar", daemon=True).start()
            except RuntimeError as error:
                self._running.pop()
                if not self._running:
                    raise Overloaded("No thread can be started to compile the constraint.", 1.0) from error
            finally:
                threading.stack_size(before)

    def _work(self, number: int) -> None:
        while (job := self._jobs.get()) is not None:
            self._running[number] = job
            job.result = self._compile(job)
            self._running[number] = None

    def _compile(self, job: Job) -> Grammar | QuireError:
        try:
            with self._opening:
                if self._backend is None:
                    self._backend = self._open_backend()
            job.started = time.monotonic()
            return self._backend.compile(job.constraint)
        except QuireError as error:
            return error.with_traceback(None)  # it is cached, so it must not keep frames alive
        except Exception as error:
            logger.error("compiling a constraint of kind %s failed: %s", job.constraint.kind, error_origin(error))
            return InvalidRequest(
                f"The constraint cannot be compiled ({type(error).__name__}): see the server's log.", field="constraint"
            )
