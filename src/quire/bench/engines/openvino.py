"""Run OpenVINO GenAI under our loads: its driver is a child process that reads requests and writes events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from quire.bench.engines import openvino_driver
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.peer import OPENVINO, PeerFailed, PeerRates, StreamsResult
from quire.bench.engines.peer_environment import PeerEnvironment, PeerPackage
from quire.bench.load.closed_loop import IncompleteAnswer
from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest, TokenIds
from quire.bench.load.single_prompts import DECODE_TOKENS, PROMPT_TOKENS, single_prompts
from quire.bench.load.stream_loads import StreamSizes, run_stream_loads
from quire.bench.machine.clock import clock
from quire.bench.machine.processes import peak_bytes

DRIVER = Path(openvino_driver.__file__)
PACKAGE = PeerPackage("openvino-genai", "2026.4.1.0", "import openvino, openvino_genai", "300 MB")
START_SECONDS = 300
STOP_SECONDS = 10
PROBE = LoadRequest(prompt=(1000,), max_tokens=1)  # any token

Value = TypeVar("Value")


class OpenVinoClient:
    """Sends requests to a driver, and times its events."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._numbers = count()
        self._running: dict[int, tuple[RequestResult, asyncio.Event]] = {}

    def write_line(self, value: dict[str, Any]) -> None:
        """Send one line of JSON."""
        self._stdin.write(json.dumps(value).encode() + b"\n")

    async def send(self, request: LoadRequest, due: float) -> RequestResult:
        """Send a prompt of token ids and wait for the whole answer. Errors are in the result."""
        assert request.prompt is not None
        result = RequestResult(due, request.max_tokens, must_reach_max=True, output_tokens=0, sent=clock())
        number, ended = next(self._numbers), asyncio.Event()
        self._running[number] = result, ended
        self.write_line({"id": number, "prompt": list(request.prompt), "max_tokens": request.max_tokens})
        if self._stdout.at_eof():
            self._fail_all()
        await ended.wait()
        return result

    async def receive_events(self) -> None:
        """Record events until the driver closes its output. Requests that have not ended then have failed."""
        async for line in self._stdout:
            now = clock()
            for number, num_tokens, has_ended in json.loads(line):
                result, ended = self._running[number]
                if num_tokens:
                    result.event_times.append(now)
                    result.output_tokens = result.num_tokens + num_tokens
                if has_ended:
                    result.ended = now
                    del self._running[number]
                    ended.set()
        self._fail_all()

    def _fail_all(self) -> None:
        for result, ended in self._running.values():
            result.error, result.ended = "OpenVINO has ended", clock()
            ended.set()
        self._running.clear()


@dataclass(frozen=True, slots=True)
class OpenVino:
    """An installed OpenVINO GenAI, and the number of threads that it may use."""

    install: PeerEnvironment
    num_threads: int
    name: ClassVar[str] = OPENVINO
    version: ClassVar[str] = PACKAGE.version

    def measure_single_stream(self, facts: ModelFacts, num_repeats: int) -> PeerRates:
        """Measure the same prompts as our engine gets, alternately; the first of each is a warm-up."""

        async def measure(client: OpenVinoClient, process: int) -> PeerRates:
            prompt_rates, decode_rates = [], []
            for prompt, decode_prompt in single_prompts(facts.vocab_size, 1 + num_repeats):
                answer = _complete(await client.send(LoadRequest(prompt=prompt, max_tokens=1), clock()))
                prompt_rates.append(PROMPT_TOKENS / answer.first_token)
                request = LoadRequest(prompt=decode_prompt, max_tokens=DECODE_TOKENS)
                answer = _complete(await client.send(request, clock()))
                decode_rates.append((DECODE_TOKENS - 1) / (answer.event_times[-1] - answer.event_times[0]))
            return PeerRates(tuple(prompt_rates[1:]), tuple(decode_rates[1:]))

        return self._run(facts.path, 1, measure)

    def measure_stream_loads(self, model: Path, words: TokenIds, sizes: StreamSizes) -> StreamsResult:
        """Run the fixed loads of many streams."""

        async def measure(client: OpenVinoClient, process: int) -> StreamsResult:
            return StreamsResult(await run_stream_loads(client, words, sizes), peak_bytes(process))

        return self._run(model, sizes.num_streams, measure)

    def start_seconds(self, model: Path, num_streams: int) -> float:
        """Return the seconds from the start of its process to the first token of an answer."""
        began = time.perf_counter()

        async def measure(client: OpenVinoClient, process: int) -> float:
            _complete(await client.send(PROBE, clock()))
            return time.perf_counter() - began

        return self._run(model, num_streams, measure)

    def _run(self, model: Path, num_streams: int, measure: Callable[[OpenVinoClient, int], Awaitable[Value]]) -> Value:
        async def run() -> Value:
            async with self._start(model, num_streams) as (client, process):
                return await measure(client, process)

        try:
            return asyncio.run(run())
        except IncompleteAnswer as error:
            raise PeerFailed(f"OpenVINO failed under load ({error}): see {self.install.log}.") from error

    @asynccontextmanager
    async def _start(self, model: Path, num_streams: int) -> AsyncIterator[tuple[OpenVinoClient, int]]:
        """Start a driver, and wait until it has loaded the model. Yield the client and the number of its process."""
        with self.install.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(str(self.install.python), "-I", str(DRIVER)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        receiver: asyncio.Task[None] | None = None
        try:
            client = OpenVinoClient(process)
            client.write_line({"model": str(model), "num_threads": self.num_threads, "num_streams": num_streams})
            try:
                ready = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
            except TimeoutError as error:
                raise PeerFailed(f"OpenVINO did not load {model.name} in {START_SECONDS} s.") from error
            if not ready:
                raise PeerFailed(f"OpenVINO cannot load {model.name} ({self._last_message()}).")
            receiver = asyncio.create_task(client.receive_events())
            yield client, process.pid
        finally:
            if receiver is not None:
                receiver.cancel()
            await _stop(process)

    def _last_message(self) -> str:
        lines = self.install.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the driver: by closing its input, which lets it exit, or by force."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _complete(result: RequestResult) -> RequestResult:
    """Return the result. Raise PeerFailed unless the answer is as long as requested."""
    if result.error is not None or result.num_tokens != result.max_tokens:
        raise PeerFailed(
            f"OpenVINO sent {result.num_tokens} of {result.max_tokens} tokens ({result.error or 'ended'})."
        )
    return result
