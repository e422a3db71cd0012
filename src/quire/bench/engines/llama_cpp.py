"""Run llama.cpp's tools: its benchmark, its server under our loads, and its perplexity tool."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx

from quire.bench.accuracy.divergence import WINDOW
from quire.bench.engines.llama_cpp_build import BUILD, LlamaCppBuild
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.peer import LLAMA_CPP, PeerFailed, PeerRates, StreamsResult
from quire.bench.engines.server_process import free_port, stop_process
from quire.bench.load.closed_loop import IncompleteAnswer
from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest, TokenIds
from quire.bench.load.single_prompts import DECODE_TOKENS, PROMPT_TOKENS
from quire.bench.load.stream_loads import MAX_CONTEXT, StreamSizes, run_stream_loads
from quire.bench.machine.clock import clock
from quire.bench.machine.processes import peak_bytes

TOOL_SECONDS = 600
START_SECONDS = 120
POLL_SECONDS = 0.01
PROBE = LoadRequest(prompt=(1000,), max_tokens=1)  # any token


@dataclass(frozen=True, slots=True)
class LlamaCppTools:
    """A built llama.cpp, and the number of threads that it may use."""

    build: LlamaCppBuild
    num_threads: int
    name: ClassVar[str] = LLAMA_CPP
    version: ClassVar[str] = BUILD

    def run(self, name: str, *arguments: str) -> str:
        """Run one of its tools and return its standard output."""
        command = [str(self.build.tool(name)), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(f"{name} took more than {TOOL_SECONDS} s.") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerFailed(f"{name} failed ({last}): run {' '.join(command)} for its whole output.")
        return done.stdout

    def measure_single_stream(self, facts: ModelFacts, num_repeats: int) -> PeerRates:
        """Run llama-bench: a prompt of 512 random tokens, and decoding of 128 tokens."""
        sizes = ("-p", str(PROMPT_TOKENS), "-n", str(DECODE_TOKENS), "-r", str(num_repeats))
        threads = ("-t", str(self.num_threads))
        runs = json.loads(self.run("llama-bench", "-m", str(facts.path), *sizes, *threads, "-o", "json"))
        prompt, decode = (
            next(each["samples_ts"] for each in runs if bool(each["n_gen"]) is is_decode) for is_decode in (False, True)
        )
        return PeerRates(tuple(prompt), tuple(decode))

    def save_distributions(self, model: Path, text: str, into: Path, num_windows: int) -> Path:
        """Run llama-perplexity over windows of a text. accuracy/llama_perplexity.py reads the file that it writes."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "text"
            file.write_text(text, encoding="utf-8")
            sizes = ("-c", str(WINDOW), "-b", str(WINDOW), "--chunks", str(num_windows), "-t", str(self.num_threads))
            self.run("llama-perplexity", "-m", str(model), "-f", str(file), *sizes, "--kl-divergence-base", str(into))
        return into

    def measure_stream_loads(self, model: Path, words: TokenIds, sizes: StreamSizes) -> StreamsResult:
        """Run the fixed loads on llama-server."""

        async def measure() -> StreamsResult:
            with self._server(model, sizes.num_streams) as (process, url):
                async with _connect(url) as client:
                    await client.wait_until_ready(process)
                    return StreamsResult(await run_stream_loads(client, words, sizes), peak_bytes(process.pid))

        try:
            return asyncio.run(measure())
        except IncompleteAnswer as error:
            log = self.build.folder / "server.log"
            raise PeerFailed(f"llama-server failed under load ({error}): see {log}.") from error

    def start_seconds(self, model: Path, num_streams: int) -> float:
        """Return the seconds from the start of llama-server to the first token of an answer."""

        async def measure() -> float:
            began = time.perf_counter()
            with self._server(model, num_streams) as (process, url):
                async with _connect(url) as client:
                    await client.wait_until_ready(process)
                    return time.perf_counter() - began

        return asyncio.run(measure())

    @contextmanager
    def _server(self, model: Path, num_streams: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        port = free_port()
        threads = ("-t", str(self.num_threads), "-tb", str(self.num_threads))
        slots = ("-np", str(num_streams), "-c", str(num_streams * MAX_CONTEXT), "--cont-batching")
        address = ("--host", "127.0.0.1", "--port", str(port))
        command = [str(self.build.tool("llama-server")), "-m", str(model), *threads, *slots, *address]
        with (self.build.folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            stop_process(process)


class LlamaServerClient:
    """A client of llama-server's own API, whose events carry token ids: a token without text is timed too."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def send(self, request: LoadRequest, due: float) -> RequestResult:
        """Send a prompt of token ids and wait for the whole answer. Errors are in the result."""
        assert request.prompt is not None
        result = RequestResult(due, request.max_tokens, must_reach_max=True, sent=clock())
        body: dict[str, Any] = {"prompt": list(request.prompt), "n_predict": request.max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "return_tokens": True}
        try:
            async with self._http.stream("POST", "/completion", json=body) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        _record_event(json.loads(line.removeprefix("data: ")), result)
        except httpx.HTTPError as error:
            result.error = str(error) or type(error).__name__
        result.ended = clock()
        return result

    async def wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Send requests until one is answered: a server that is loading refuses them."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if (await self.send(PROBE, clock())).is_success:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise PeerFailed("llama-server did not answer.")


def _record_event(event: dict[str, Any], result: RequestResult) -> None:
    if event["tokens"]:
        result.event_times.append(clock())
        result.text.append(event.get("content", ""))
    if event["stop"]:  # counts tokens of an incomplete character too, which no event carries
        result.output_tokens = event["tokens_predicted"]


@asynccontextmanager
async def _connect(url: str) -> AsyncIterator[LlamaServerClient]:
    # A new connection for each request: the server closes idle ones, and a request sent on a closing one is lost.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as http:
        yield LlamaServerClient(http)
