"""Asks an engine of ours without HTTP: the same workloads and figures, so the difference is what a server costs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from quire.bench.asks import Ask
from quire.bench.heard import Heard, clock
from quire.bench.located import located
from quire.bench.measure import Measured, Plan, View
from quire.bench.outcome import Outcome, Result
from quire.engine.async_llm import AsyncLLM
from quire.types.errors import QuireError
from quire.types.request import Constraint, ConstraintKind, SamplingParams


class InProcess:
    """One opened model."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def ask(self, ask: Ask, due: float) -> Heard:
        """As a server would be asked."""
        heard = Heard(due, ask.max_tokens, not ask.wants_json, ask.wants_json, sent=clock())
        sampling = SamplingParams(max_tokens=ask.max_tokens, temperature=0.0, ignore_eos=not ask.wants_json)
        try:
            await self._hear(ask, sampling, heard)
        except QuireError as error:
            heard.error = error.public
        heard.ended = clock()
        return heard

    async def _hear(self, ask: Ask, sampling: SamplingParams, heard: Heard) -> None:
        prompt: Any = ask.messages if ask.body is None else ask.body.get("messages") or ask.body.get("prompt")
        async with aclosing(self._llm.stream(prompt, sampling, constraint=_form(ask))) as deltas:
            num_tokens = 0
            async for delta in deltas:
                num_tokens += len(delta.tokens)
                if delta.tokens:
                    heard.stamps.append(clock())
                    heard.text.append(delta.text)
                if delta.usage is not None:
                    heard.prompt_tokens, heard.cached_tokens = delta.usage.prompt, delta.usage.cached
            heard.output_tokens = num_tokens


async def measure_in_process(model: str, device: str, settings: Mapping[str, Any], plan: Plan, view: View) -> Outcome:
    """A plan on a model that is opened for it: in this process, as `LLM` opens it, with its steps in a thread."""
    load_before, began = os.getloadavg()[0], clock()
    path = located(model)
    async with await AsyncLLM.open(path, device=device, in_process=True, **settings) as llm:
        seconds = clock() - began
        points = await Measured("engine", InProcess(llm), plan, view, os.getpid()).run()
    result = Result("engine", f"in this process, on {device}", model, tuple(points), notes=(_opened(seconds),))
    return Outcome.of(plan, [result], load_before)


def _opened(seconds: float) -> str:
    return f"The model was opened in {seconds:.2f} s. Memory is that of engine and generator together."


def _form(ask: Ask) -> Constraint | None:
    form = ask.more.get("response_format")
    return None if form is None else Constraint(ConstraintKind.SCHEMA, json.dumps(form["json_schema"]["schema"]))
