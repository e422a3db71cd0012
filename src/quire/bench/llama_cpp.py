"""llama.cpp at work: its own benchmark, its server under our load, its formats, and the distributions that it gives."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from quire.bench.child import peak_bytes
from quire.bench.divergence import WINDOW
from quire.bench.load import ShortAnswer, TokenIds
from quire.bench.peer import Peer
from quire.bench.streams import MAX_CONTEXT, Scale, Seen, put_under_load
from quire.types.errors import QuireError

TOOL_SECONDS = 600
START_SECONDS = 120
POLL_SECONDS = 0.01
END_SECONDS = 10
FIRST_PROMPT = (1000,)  # any token
UNNAMED = -1  # a token that was not told


class PeerFailed(QuireError):
    """One of its tools ended otherwise than well, or did not answer."""

    code = "peer_failed"


@dataclass(frozen=True, slots=True)
class Tools:
    """A built llama.cpp, and the threads that it may use."""

    peer: Peer
    num_threads: int

    def run(self, name: str, *arguments: str) -> str:
        """What one of its tools prints."""
        command = [str(self.peer.tool(name)), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(f"{name} took more than {TOOL_SECONDS} s.") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
            raise PeerFailed(f"{name} failed ({last}): run {' '.join(command)} to see more.")
        return done.stdout

    def measure(self, model: Path, num_times: int) -> tuple[list[float], list[float]]:
        """llama-bench: rates of a prompt of 512 tokens and of decoding 128, one stream, in tokens a second."""
        sizes = ("-p", "512", "-n", "128", "-r", str(num_times))
        threads = ("-t", str(self.num_threads))
        said = json.loads(self.run("llama-bench", "-m", str(model), *sizes, *threads, "-o", "json"))
        prompt, decode = (
            next(each["samples_ts"] for each in said if bool(each["n_gen"]) is is_decode) for is_decode in (False, True)
        )
        return prompt, decode

    def reformat(self, model: Path, format: str) -> Path:
        """The model in another of its formats, made from this file; kept for the next time."""
        made = self.peer.formats / f"{model.stem}-{model.stat().st_size}.{format}.gguf"
        if not made.is_file():
            made.parent.mkdir(parents=True, exist_ok=True)
            partial = made.with_suffix(".partial")
            self.run("llama-quantize", "--allow-requantize", str(model), str(partial), format.upper())
            partial.rename(made)
        return made

    def save_distributions(self, model: Path, text: str, into: Path, num_windows: int) -> Path:
        """llama-perplexity over windows of a text; see accuracy.py for what it writes."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "text"
            file.write_text(text, encoding="utf-8")
            sizes = ("-c", str(WINDOW), "-b", str(WINDOW), "--chunks", str(num_windows), "-t", str(self.num_threads))
            self.run("llama-perplexity", "-m", str(model), "-f", str(file), *sizes, "--kl-divergence-base", str(into))
        return into

    def streams(self, model: Path, words: TokenIds, scale: Scale) -> tuple[Seen, int | None]:
        """Its server under our load, and the most memory that it had."""

        async def seen() -> tuple[Seen, int | None]:
            with self._server(model, scale.num_streams) as (process, url):
                async with _client(url) as server:
                    await server.first_answer(process)
                    return await put_under_load(server, words, scale), peak_bytes(process.pid)

        try:
            return asyncio.run(seen())
        except (httpx.HTTPError, ShortAnswer) as error:
            log = self.peer.folder / "server.log"
            raise PeerFailed(f"llama-server did not bear the load ({error}): see {log}.") from error

    def start(self, model: Path, num_streams: int) -> float:
        """Seconds from the start of its server to the first token of an answer."""

        async def seconds() -> float:
            began = time.perf_counter()
            with self._server(model, num_streams) as (process, url):
                async with _client(url) as server:
                    await server.first_answer(process)
                    return time.perf_counter() - began

        return asyncio.run(seconds())

    @contextmanager
    def _server(self, model: Path, num_streams: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        port = _free_port()
        threads = ("-t", str(self.num_threads), "-tb", str(self.num_threads))
        room = ("-np", str(num_streams), "-c", str(num_streams * MAX_CONTEXT), "--cont-batching")
        place = ("--host", "127.0.0.1", "--port", str(port))
        command = [str(self.peer.tool("llama-server")), "-m", str(model), *threads, *room, *place]
        with (self.peer.folder / "server.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class LlamaServer:
    """Its server as our load sees it. Prompts are token ids, so that both sides compute the same."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def stream(self, prompt: TokenIds, max_tokens: int) -> AsyncIterator[TokenIds]:
        """Tokens out of server-sent events. Those of an incomplete character are only counted, at the end."""
        body: dict[str, Any] = {"prompt": list(prompt), "n_predict": max_tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "return_tokens": True}
        num_tokens = 0
        async with self._client.stream("POST", "/completion", json=body) as came:
            came.raise_for_status()
            async for line in came.aiter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                num_tokens += len(event["tokens"])
                yield event["tokens"]
                if event["stop"]:
                    yield [UNNAMED] * (event["tokens_predicted"] - num_tokens)

    async def first_answer(self, process: subprocess.Popen[bytes]) -> None:
        """Ask until it answers: a server that is loading refuses."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                async for _ in self.stream(FIRST_PROMPT, 1):
                    return
            except (httpx.TransportError, httpx.HTTPStatusError):
                await asyncio.sleep(POLL_SECONDS)
        raise PeerFailed("llama-server did not answer.")


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[LlamaServer]:
    # A connection for each request: the server closes idle ones, and one that it is closing loses what is sent on it.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as client:
        yield LlamaServer(client)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
