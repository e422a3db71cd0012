"""An engine in a child process: starts it, watches it, and ends it; nothing is left behind."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import zmq

from quire.engine.client import Deliver
from quire.engine.echo import ECHO
from quire.engine.messages import Configure, Dead, EngineDied, Inward, Loading, Outward, Probe, Ready, Shutdown
from quire.engine.readers import END_SECONDS, POLL_MS, Inbox, MakeReader, ThreadReader
from quire.engine.watch import Watch, WatchedProcess
from quire.engine.wire import encode

logger = logging.getLogger(__name__)

Progress = Callable[[Loading], None]
OWN_SIGNALS = {  # that a crashing process receives; any other signal comes from outside
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}


def _log_progress(loading: Loading) -> None:
    logger.info("%s (%.1f s)", loading.stage, loading.seconds)


class ChildEngine:
    """A link to an engine in a child process, which runs `entry`: module:function, and arguments after spaces."""

    def __init__(
        self,
        configure: Configure,
        deliver: Deliver,
        *,
        progress: Progress = _log_progress,
        entry: str = "quire.engine.process:main",
        make_reader: MakeReader = ThreadReader,
    ) -> None:
        self._deliver = deliver
        self._folder = tempfile.mkdtemp(prefix="quire-")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        inward, outward = f"ipc://{self._folder}/in", f"ipc://{self._folder}/out"
        self._outbox = self._connect(zmq.PUSH, inward)
        self.inbox = Inbox(self._connect(zmq.PULL, outward))
        self._sending = threading.Lock()
        self._closing = threading.Lock()
        self._is_closing = threading.Event()
        self._process = spawn(*entry.split(), inward, outward)
        self._finalizer = weakref.finalize(self, _clean_up, self._process, self._folder)
        watched = WatchedProcess(self.pid, self._probe, self._process.kill, configure.config.scheduler.max_step_seconds)
        self._watch = Watch(watched, self._connect(zmq.PAIR, inward + ECHO))
        self._watch.start()
        try:
            self.send(configure)
            self.ready = self._wait_until_ready(progress)
            self._watch.watch_steps()
            self._reader = make_reader(self)
        except BaseException:
            self.close(0.0)
            raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Is the child running?"""
        return self._process.poll() is None

    @property
    def trouble(self) -> str | None:
        """What is wrong with the child now, as the end of the sentence "The engine …"; None: nothing."""
        return self._watch.trouble

    def send(self, message: Inward) -> None:
        """Send a message. One to a child that has ended is lost; the reader reports that end."""
        with self._sending:
            if not self._outbox.closed:
                self._outbox.send(encode([message]))

    def close(self, timeout: float = END_SECONDS) -> None:
        """End the child: by Shutdown, then by force. No process, thread or file is left. A second call does nothing."""
        with self._closing:
            if self._finalizer.alive:
                self._close(timeout)

    def _close(self, timeout: float) -> None:
        self.send(Shutdown())
        self._is_closing.set()
        self._watch.stop()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.stop()
        with self._sending:
            self._outbox.close(linger=0)
        self.inbox.close()
        self._context.term()
        self._finalizer()

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        """A socket that never blocks: the connecting side may send before the other side is there, and after it."""
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.connect(address)
        return socket

    def _wait_until_ready(self, progress: Progress) -> Ready:
        while True:
            is_alive = self.is_alive
            for message in self.inbox.receive(POLL_MS):
                if isinstance(message, Ready):
                    return message
                if isinstance(message, Dead):
                    raise message.error
                if isinstance(message, Loading):
                    progress(message)
            if not is_alive:
                raise self._died("while it loaded the model")

    def read(self, wait_ms: int) -> bool:
        """Deliver what has come. False: the child has ended, and all its messages, and its end, were delivered."""
        is_alive = self.is_alive  # before the socket is read, so that its last messages are delivered first
        self.take(wait_ms)
        if not is_alive and not self._is_closing.is_set():
            self._deliver([Dead(self._died("while this request was running"))])
        return is_alive

    def _died(self, when: str) -> EngineDied:
        code, kill_reason = self._process.returncode, self._watch.kill_reason
        if kill_reason is not None:
            return EngineDied(f"The engine process {kill_reason} {when}, and was killed.", self._watch.was_stopped)
        was_killed = code is not None and code < 0 and -code not in OWN_SIGNALS
        return EngineDied(f"The engine process {_exit_of(code)} {when}.", was_killed)

    def _probe(self) -> None:
        """Ask the step loop for an Alive."""
        self.send(Probe())

    def take(self, wait_ms: int, max_frames: int | None = None) -> None:
        """Deliver what has come."""
        messages: list[Outward] = self.inbox.receive(wait_ms, max_frames)
        if messages:
            self._watch.record_message()
            self._deliver(messages)


def spawn(entry: str, *arguments: str | int, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a child that runs `entry` and inherits `descriptors`. It ends when we close its standard input.

    It has its own session, so that Ctrl-C at the terminal reaches this process alone; its output goes to stderr.
    """
    module, _, function = entry.partition(":")
    main = f"from {module} import {function}\n{function}{arguments!r}"
    command = [sys.executable, "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{main}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True, pass_fds=descriptors)


def _clean_up(process: subprocess.Popen[bytes], folder: str) -> None:
    """End the process and remove its folder; runs at the interpreter's exit at the latest."""
    if process.poll() is None:
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        deadline = time.monotonic() + 1.0
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _exit_of(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with the code {code}"
