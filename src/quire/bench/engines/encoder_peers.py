"""Embed sentences with other engines: sentence-transformers on torch, ONNX Runtime, and llama.cpp's server.

All have the same weights in float32, the same sentences, and batches of as many. Each returns, for each length,
sentences per second of time and of processor time, and the first vector.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from quire.bench.engines import onnx_encoder_driver
from quire.bench.engines.child_process import ChildFailed, run_in_child
from quire.bench.engines.encoder_gguf import write_encoder_gguf
from quire.bench.engines.encoder_runs import BATCH, WARM_UP, run_sentence_transformers, sentences
from quire.bench.engines.encoder_shapes import LONGEST, EncoderShape
from quire.bench.engines.llama_cpp_build import LlamaCppBuild, get_llama_cpp
from quire.bench.engines.peer import PeerFailed, PeerUnavailable, Say
from quire.bench.engines.peer_environment import PeerPackage, get_environment
from quire.bench.engines.server_process import free_port, stop_process
from quire.bench.machine.processes import processor_seconds

TORCH, ONNX_RUNTIME, LLAMA_CPP = "torch", "onnxruntime", "llama.cpp"
PACKAGE = PeerPackage("onnxruntime", "1.31.1", "import onnxruntime, onnx, tokenizers", "300 MB", ("onnx", "tokenizers"))
DRIVER = Path(onnx_encoder_driver.__file__)
STEP_TOKENS = 4096  # of llama.cpp: its largest batch
START_SECONDS, POLL_SECONDS, DRIVER_SECONDS = 120, 0.05, 3600

Results = list[list[float]]


@dataclass(frozen=True, slots=True)
class EncoderLoad:
    """A model, and how many sentences of each length it embeds."""

    folder: Path
    shape: EncoderShape
    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    num_threads: int

    def texts(self) -> list[list[str]]:
        """Return the sentences of each length."""
        return [sentences(length, count) for length, count in zip(self.lengths, self.counts, strict=True)]


def measure_torch(load: EncoderLoad, home: Path, say: Say) -> Results:
    """Run sentence-transformers, which is one of the packages for our tests."""
    if find_spec("sentence_transformers") is None:
        raise PeerUnavailable("sentence-transformers is not installed: install Quire with its `test` extra.")
    sizes = str(load.folder), list(load.lengths), list(load.counts)
    try:
        return run_in_child(run_sentence_transformers, Results, *sizes)[0]
    except ChildFailed as error:
        raise PeerFailed(str(error)) from error


def measure_onnx_runtime(load: EncoderLoad, home: Path, say: Say) -> Results:
    """Run ONNX Runtime in its own environment."""
    environment = get_environment(PACKAGE, home, say)
    call = {"folder": str(load.folder), "num_heads": load.shape.num_heads, "texts": load.texts(), "warm_up": WARM_UP}
    call |= {"batch": BATCH, "num_threads": load.num_threads}
    command = [str(environment.python), "-I", str(DRIVER)]
    done = subprocess.run(
        command, input=json.dumps(call), capture_output=True, text=True, timeout=DRIVER_SECONDS, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PeerFailed(f"ONNX Runtime failed ({last}).")
    results: Results = json.loads(done.stdout)
    return results


def measure_llama_cpp(load: EncoderLoad, home: Path, say: Say) -> Results:
    """Run llama-server with a GGUF file of the same weights. It is sent token ids, so it tokenizes nothing."""
    build = get_llama_cpp(home, say)
    model = write_encoder_gguf(load.folder, load.shape)
    tokenizer = Tokenizer.from_file(str(load.folder / "tokenizer.json"))
    results = []
    with _server(build, model, load.num_threads) as (process, http):
        for texts in load.texts():
            ids = [each.ids for each in tokenizer.encode_batch(texts)]
            _embed(http, ids[:WARM_UP])
            began, busy = time.perf_counter(), processor_seconds(process.pid)
            vectors = [each for at in range(0, len(ids), BATCH) for each in _embed(http, ids[at : at + BATCH])]
            seconds, used = time.perf_counter() - began, processor_seconds(process.pid)
            of_processor = len(ids) / (used - busy) if busy is not None and used else float("nan")
            results.append([len(ids) / seconds, of_processor, *vectors[0]])
    return results


@contextmanager
def _server(
    build: LlamaCppBuild, model: Path, num_threads: int
) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Run llama-server until the context is left, from the moment it is ready."""
    port, threads = free_port(), str(num_threads)
    command = [str(build.tool("llama-server")), "-m", str(model), "--embedding", "--pooling", "mean"]
    command += ["-t", threads, "-tb", threads, "-np", str(BATCH), "-c", str(BATCH * LONGEST)]
    command += ["-b", str(STEP_TOKENS), "-ub", str(STEP_TOKENS), "--host", "127.0.0.1", "--port", str(port)]
    log = build.folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=None, trust_env=False) as http:
            _wait_until_ready(process, http, log)
            yield process, http
    finally:
        stop_process(process)


def _wait_until_ready(process: subprocess.Popen[bytes], http: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if http.get("/health").is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(POLL_SECONDS)
    raise PeerFailed(f"llama-server did not start: see {log}.")


def _embed(http: httpx.Client, ids: list[list[int]]) -> list[list[float]]:
    """Return the vectors of some texts, in their order."""
    try:
        response = http.post("/v1/embeddings", json={"input": ids})
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise PeerFailed(f"llama-server did not embed ({error}).") from error
    return [each["embedding"] for each in sorted(response.json()["data"], key=lambda each: int(each["index"]))]


MEASURE: dict[str, Callable[[EncoderLoad, Path, Say], Results]] = {
    TORCH: measure_torch,
    ONNX_RUNTIME: measure_onnx_runtime,
    LLAMA_CPP: measure_llama_cpp,
}
