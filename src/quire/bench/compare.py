"""Measures engines one after the other, each with the same plan. One that is given as a command is started for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quire.bench.measure import Measured, Plan, View
from quire.bench.outcome import Outcome, Result
from quire.bench.over_http import OverHttp, Target, reach
from quire.bench.started import started
from quire.types.errors import InvalidRequest, QuireError


@dataclass(frozen=True, slots=True)
class Engine:
    """One of them: an address, or a command. With both, the command serves at the address."""

    name: str
    url: str = ""
    command: str = ""
    model: str = ""

    @property
    def what(self) -> str:
        """For people."""
        return self.command or self.url


def parse_engine(text: str) -> Engine:
    """NAME=URL, NAME=URL#MODEL or NAME=COMMAND."""
    name, is_set, what = text.partition("=")
    if not is_set or not name or not what or " " in name or "://" in name:
        raise InvalidRequest(f"{text!r} is no engine: write NAME=URL or NAME='COMMAND'.", field="engine")
    if what.startswith(("http://", "https://")):
        url, _, model = what.partition("#")
        return Engine(name, url=url, model=model)
    return Engine(name, command=what)


async def compare(engines: Sequence[Engine], plan: Plan, target: Target, folder: Path, view: View) -> Outcome:
    """All of them. One that fails is told and left out, unless it is the last that could be measured."""
    load_before, results = os.getloadavg()[0], []
    for engine in engines:
        try:
            results.append(await measure_engine(engine, plan, target, folder, view))
        except QuireError as error:
            if len(engines) == 1:
                raise
            view.say(f"{engine.name}: {error.public}")
    if not results:
        raise InvalidRequest("None of the engines could be measured.", field="engine")
    return Outcome.of(plan, results, load_before)


async def measure_engine(engine: Engine, plan: Plan, target: Target, folder: Path, view: View) -> Result:
    """One of them."""
    target = replace(target, url=engine.url, model=engine.model or target.model)
    if not engine.command:
        return await _measured(engine, target, plan, view)
    folder.mkdir(parents=True, exist_ok=True)
    view.say(f"{engine.name}: starting {engine.command}")
    async with started(engine.command, target, folder / f"{engine.name}.log") as running:
        view.say(f"{engine.name}: the first token came after {running.start_seconds:.2f} s")
        result = await _measured(engine, running.target, plan, view, running.process)
        return replace(result, start_seconds=running.start_seconds)


async def _measured(engine: Engine, target: Target, plan: Plan, view: View, process: int | None = None) -> Result:
    target, notes = await reach(target)
    server = OverHttp(target)
    try:
        points = await Measured(engine.name, server, plan, view, process).run()
    finally:
        server.close()
    return Result(engine.name, engine.what, target.model, tuple(points), notes=tuple(notes))
