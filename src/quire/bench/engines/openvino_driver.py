"""Run OpenVINO GenAI as an engine that reads requests from standard input and writes its events to standard output.

A script for the interpreter of OpenVINO's own environment: it imports nothing of ours.

    ->  {"model": "m.gguf", "num_threads": 2, "num_streams": 32}    the first line
    <-  []                                                          the model is loaded
    ->  {"id": 7, "prompt": [token ids], "max_tokens": 64}          a line for each request
    <-  [[7, 1, false], [9, 1, true]]                               a line for each step: id, new tokens, has it ended

It ends when standard input is closed. Requests are greedy and ignore the end of text.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from importlib import import_module
from typing import Any, TextIO

CACHE_GIGABYTES = 2  # of its KV cache: enough for 32 streams of all models that are measured
STEP_TOKENS = 512  # most tokens of a step
NEXT_REQUEST_SECONDS = 0.005  # for a client that was answered to send its next request before the next step

Events = list[tuple[int, int, bool]]


class Engine:
    """A pipeline with continuous batching, and its running requests."""

    def __init__(self, model: str, num_threads: int, num_streams: int) -> None:
        self._genai, self._openvino, self._numpy = map(import_module, ("openvino_genai", "openvino", "numpy"))
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIGABYTES
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.max_num_seqs = num_streams
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        settings = {"INFERENCE_NUM_THREADS": num_threads}
        self._pipeline = self._genai.ContinuousBatchingPipeline(model, scheduler, "CPU", settings)
        self.running: dict[int, Any] = {}

    def add(self, request: dict[str, Any]) -> None:
        """Add a request to the next step."""
        settings = self._genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos, settings.do_sample = request["max_tokens"], True, False
        tokens = self._openvino.Tensor(self._numpy.array([request["prompt"]], dtype=self._numpy.int64))
        self.running[request["id"]] = self._pipeline.add_request(request["id"], tokens, settings)

    def step(self) -> Events:
        """Compute one step. Return its events."""
        self._pipeline.step()
        events: Events = []
        for number, handle in list(self.running.items()):
            has_ended = handle.get_status() != self._genai.GenerationStatus.RUNNING
            num_tokens = 0
            while handle.can_read():
                num_tokens += sum(len(output.generated_ids) for output in handle.read().values())
            if num_tokens or has_ended:
                events.append((number, num_tokens, has_ended))
            if has_ended:
                del self.running[number]
        return events


def answer_commands(engine: Any, lines: TextIO, out: TextIO) -> None:
    """Answer requests until there are no more lines and every request has ended."""
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None: the end of the lines

    def read_lines() -> None:
        for line in lines:
            waiting.put(line)
        waiting.put(None)

    threading.Thread(target=read_lines, daemon=True).start()
    num_ended, is_closed = 0, False
    while not is_closed or engine.running:
        while not is_closed:
            seconds = None if not engine.running else NEXT_REQUEST_SECONDS if num_ended else 0
            try:
                line = waiting.get(timeout=seconds) if seconds != 0 else waiting.get_nowait()
            except queue.Empty:
                break
            if line is None:
                is_closed = True
            else:
                engine.add(json.loads(line))
                num_ended = max(0, num_ended - 1)
        if engine.running:
            events = engine.step()
            num_ended = sum(has_ended for _, _, has_ended in events)
            write_line(out, events)


def write_line(out: TextIO, value: Any) -> None:
    """Write a value as one line of JSON."""
    out.write(json.dumps(value) + "\n")
    out.flush()


def main() -> None:
    """Load the model and serve. What libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = Engine(**json.loads(sys.stdin.readline()))
    write_line(out, [])
    answer_commands(engine, sys.stdin, out)


if __name__ == "__main__":
    main()
