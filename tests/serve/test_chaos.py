"""Engines that die, prompts that kill, clients that leave in crowds: what was promised is kept."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from quire.serve.residency.engines import EngineLauncher
from tests.engine.child import POISON, SLOW_POISON
from tests.serve.running import Running, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

Body = dict[str, Any]
GREEDY: Body = {"temperature": 0, "ignore_eos": True, "max_tokens": 40, "stream": True}
TOPICS = ["the sea", "a lighthouse", "two foxes", "an old map", "winter", "a train", "the moon", "seven bakers"]


@pytest.fixture(scope="module")
def server(model_file) -> Iterator[Running]:
    """An idle engine of this one proves its invariants, and some prompts kill it."""
    launcher = EngineLauncher(entry="tests.engine.child:mortal_cpu")
    with running(model_file, launcher=launcher, max_rows=32, log_level="debug") as started:
        yield started


def story(number: int, **more: Any) -> Body:
    return GREEDY | {"prompts": [f"Story {number}, about {TOPICS[number % len(TOPICS)]}: once upon a time"]} | more


class Stream:
    """One answer as it comes."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.status = 0
        self.events: list[Body] = []

    async def run(self, http: httpx.AsyncClient) -> None:
        async with http.stream("POST", "/plain/complete", json=self.body) as response:
            self.status = response.status_code
            async for line in response.aiter_lines():
                self.events.append(json.loads(line))

    @property
    def num_tokens(self) -> int:
        return sum(len(each["TextDelta"]["tokens"]) for each in self.events if "TextDelta" in each)

    @property
    def answer(self) -> list[Any]:
        """Text, tokens and scores of each choice, how it ended, and what it cost."""
        choices: dict[int, list[Any]] = {}
        for each in self.events:
            (kind, fields) = next(iter(each.items()))
            if kind == "TextDelta":
                choice = choices.setdefault(fields["choice"], ["", [], [], None])
                choice[0] += fields["text"]
                choice[1] += fields["tokens"]
                choice[2] += fields["logprobs"]
            elif kind == "Finish":
                choices[fields["choice"]][3] = fields["ending"]
        usage = self.events[-1].get("usage", {})
        costs = [usage.get(name) for name in ("prompt", "output", "forced")]
        return [sorted(choices.items()), [each for each in self.events if "PromptEcho" in each], costs]


def stream_all(
    server: Running, bodies: list[Body], meanwhile: Callable[[list[Stream]], Awaitable[None]] | None = None
) -> list[Stream]:
    """All at once, each on a connection of its own."""

    async def run() -> list[Stream]:
        streams = [Stream(body) for body in bodies]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=240, trust_env=False, limits=limits) as http:
            tasks = [asyncio.create_task(stream.run(http)) for stream in streams]
            if meanwhile is not None:
                await meanwhile(streams)
            await asyncio.gather(*tasks)
        return streams

    return asyncio.run(run())


async def until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def client_of(server: Running) -> Any:
    return server.client_of("toy")


def kill_engine(server: Running) -> None:
    os.kill(client_of(server)._link.pid, signal.SIGKILL)


def kills_at(server: Running, *nums_tokens: int) -> Callable[[list[Stream]], Awaitable[None]]:
    """Kill the engine whenever every stream has so many tokens."""

    async def meanwhile(streams: list[Stream]) -> None:
        for num_tokens in nums_tokens:
            await until(lambda: all(stream.num_tokens >= num_tokens for stream in streams))  # noqa: B023  # awaited here
            before = client_of(server).num_restarts
            kill_engine(server)
            await until(lambda: client_of(server).num_restarts > before)  # noqa: B023

    return meanwhile


def all_is_idle(server: Running) -> bool:
    now = server.counters()
    return now.num_running == now.num_waiting == now.num_held_blocks == 0


def test_16_greedy_streams_end_with_the_text_they_have_alone_when_the_engine_is_killed(server: Running) -> None:
    alone = [stream_all(server, [story(number)])[0] for number in range(16)]
    seen: list[tuple[int, int]] = []

    async def kill(streams: list[Stream]) -> None:
        await until(lambda: all(stream.num_tokens >= 5 for stream in streams))
        assert not any(stream.num_tokens >= 40 for stream in streams), "they are in the middle"
        kill_engine(server)
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            await until(lambda: not client_of(server).is_alive)
            seen.append(tuple([(await http.get(path)).status_code for path in ("/ready", "/health")]))
            await until(lambda: client_of(server).is_alive)
            seen.append(tuple([(await http.get(path)).status_code for path in ("/ready", "/health")]))

    killed = stream_all(server, [story(number, speculate="off") for number in range(16)], kill)
    assert [stream.answer for stream in killed] == [stream.answer for stream in alone]
    assert all(stream.num_tokens == 40 and "usage" in stream.events[-1] for stream in killed)
    assert seen == [(503, 200), (200, 200)]
    assert 'quire_engine_restarts_total{model="toy"} 1.0' in server.http.get("/metrics").text
    assert all_is_idle(server)


@pytest.mark.slow
def test_16_streams_outlast_kills_that_come_as_soon_as_there_is_an_engine(server: Running) -> None:
    """Every kill hits requests that are tried alone; none of them is to blame."""
    alone = [stream_all(server, [story(number)])[0] for number in range(16)]
    killed = stream_all(server, [story(number) for number in range(16)], kills_at(server, 3, 3, 3, 3))
    assert [stream.answer for stream in killed] == [stream.answer for stream in alone]
    assert all_is_idle(server)


@pytest.mark.slow
def test_an_engine_that_is_stopped_is_told_of_and_its_streams_go_on(server: Running) -> None:
    (alone,) = stream_all(server, [story(3)])
    seen: list[tuple[int, str, str]] = []

    async def stop(streams: list[Stream]) -> None:
        await until(lambda: streams[0].num_tokens >= 5)
        os.kill(client_of(server)._link.pid, signal.SIGSTOP)
        await until(lambda: not client_of(server).is_alive)
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            ready, health = await http.get("/ready"), await http.get("/health")
        seen.append((ready.status_code, ready.json()["error"]["message"], health.json()["status"]))

    (stopped,) = stream_all(server, [story(3)], stop)
    assert stopped.answer == alone.answer
    ((status, message, health),) = seen
    assert status == 503 and "has not responded for" in message and health == "degraded"
    wait_until(lambda: server.http.get("/health").json() == {"status": "ok"})


def test_answers_of_every_kind_go_on_exactly_though_the_engine_is_killed_twice(server: Running) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 60}}, "required": ["name"]}
    sampled = {"temperature": 0.9, "top_p": 0.95}
    bodies = [
        story(1, **sampled, seed=7),
        story(2, **sampled, seed=8, n=3, frequency_penalty=0.5),
        story(3, logprobs=2, prompt_logprobs=1, echo=True),
        story(
            4,
            **sampled,
            seed=9,
            max_tokens=60,
            ignore_eos=False,
            constraint={"kind": "json_schema", "text": json.dumps(schema)},
        ),
        story(5, stop=[" there"], max_tokens=80),
        story(6, min_tokens=30, repetition_penalty=1.3),
        GREEDY | {"prompts": ["One", "Two and"], "n": 2, "seed": 3, **sampled},
    ]
    before = stream_all(server, bodies)
    after = stream_all(server, bodies, kills_at(server, 4, 8))
    assert [stream.answer for stream in after] == [stream.answer for stream in before]
    assert all_is_idle(server)


@pytest.mark.slow  # tests/engine/test_restart.py has the same without a server
@pytest.mark.parametrize("token", [POISON, SLOW_POISON])
def test_a_prompt_that_kills_is_refused_alone_and_the_others_notice_nothing(server: Running, token: int) -> None:
    bodies = [story(number) for number in range(8)]
    before = stream_all(server, bodies)
    poison = GREEDY | {"prompts": [[5, 6, 7, token]], "stream": False}
    *others, refused = stream_all(server, [*bodies, poison])
    assert [stream.answer for stream in others] == [stream.answer for stream in before]
    assert refused.status == 500 and refused.events[0]["plain_error"] == "poison_request"
    assert "ended the engine 2 times" in refused.events[0]["message"]
    again = server.http.post("/plain/complete", json=poison)
    assert (again.status_code, again.headers["x-should-retry"]) == (500, "false")
    assert server.http.post("/plain/complete", json=story(1, stream=False)).status_code == 200
    assert all_is_idle(server)


def test_200_clients_that_leave_in_the_middle_leave_nothing_behind(server: Running) -> None:
    before = server.counters()

    async def run() -> list[Stream]:
        streams = [Stream(story(number, max_tokens=400, n=1 + number % 2)) for number in range(200)]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=240, trust_env=False, limits=limits) as http:
            tasks = [asyncio.create_task(stream.run(http)) for stream in streams]
            await until(lambda: sum(stream.num_tokens > 2 for stream in streams) >= 20)
            busy = server.counters()
            assert busy.num_running == 32 and busy.num_held_blocks > 32
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: all_is_idle(server))
        return streams

    streams = asyncio.run(run())
    after = server.counters()
    assert len(streams) == 200 and not any("usage" in stream.events[-1] for stream in streams if stream.events)
    assert after.num_free_blocks + after.num_cached_blocks == after.num_blocks
    assert before.num_free_blocks + before.num_cached_blocks == before.num_blocks
    assert after.num_cancelled - before.num_cancelled >= 200
    assert stream_all(server, [story(3)])[0].num_tokens == 40
