"""Several processes' worth of clients on one engine: each hears of its own requests alone, whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")


from quire.config import load
from quire.engine.client import Client, RestartPolicy
from quire.engine.hub import Hub, HubLink
from quire.engine.launch import ChildEngine
from quire.engine.llm import LLM
from quire.engine.messages import (
    Configure,
    EngineDied,
    Explain,
    Explained,
    Failed,
    News,
)
from quire.engine.readers import LoopReader, ThreadReader
from quire.engine.recovery import Recovery
from quire.types.errors import ContextTooLong, DuplicateRequest
from quire.types.output import Finished, Tokens
from quire.types.request import CacheKey, GenerateRequest, SamplingParams
from tests.engine.child import LINGER
from tests.engine.test_process import link_of, wait_until
from tests.models.toys import some_tokens

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
ENTRY = "tests.engine.child:lingering"
LONG = SamplingParams(ignore_eos=True)  # as long as its context is


class World:
    """A hub in a loop of its own, an engine behind it, and fronts that are threads of this test."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.address = f"ipc://{folder}/hub"
        self.model = model
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.hub: Hub | None = None
        self.client: Client | None = None
        self.fronts: list[Client] = []

    def start_engine(self) -> None:
        configure = Configure(str(self.model), "cpu", load({"num_blocks": 400, "log_level": "debug"}, {}))
        make_reader = partial(LoopReader, loop=self.loop)
        restarts = RestartPolicy(post=self.loop.call_soon_threadsafe)
        self.client = Client(
            lambda deliver: ChildEngine(configure, deliver, entry=ENTRY, make_reader=make_reader), restarts
        )
        self.hub = self.call(self._make_hub(self.client))

    def front(self, name: str) -> Client:
        self.fronts.append(Client(lambda deliver: HubLink(self.address, name, deliver, ThreadReader)))
        return self.fronts[-1]

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def drop(self, name: str) -> None:
        async def drop() -> None:
            assert self.hub is not None
            self.hub.remove_front(name)

        self.call(drop())

    def close(self) -> None:
        for front in self.fronts:
            front.close()
        if self.client is not None:
            self.client.close()

        async def close() -> None:
            if self.hub is not None:
                self.hub.close()

        self.call(close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _make_hub(self, client: Client) -> Hub:
        return Hub(self.address, client, asyncio.get_running_loop())


@pytest.fixture
def world(toy_folder: Path, short_tmp: Path) -> Iterator[World]:
    made = World(toy_folder, short_tmp)
    yield made
    made.close()


def tokens_of(news: list[News]) -> list[int]:
    return [token for each in news if isinstance(each, Tokens | Finished) for token in each.tokens]


def has_ended(news: list[News]) -> bool:
    return bool(news) and isinstance(news[-1], Finished | Failed)


def ask(client: Client, name: str, prompt: list[int], way: SamplingParams = GREEDY) -> list[News]:
    news: list[News] = []
    client.submit(GenerateRequest(name, tuple(prompt), way), news.append)
    return news


def test_fronts_get_the_news_of_their_own_requests_alone(world: World, llm: LLM) -> None:
    world.start_engine()
    early, late = world.front("early"), world.front("late")
    assert early.ready == late.ready and world.client is not None and early.ready == world.client.ready
    prompts = [some_tokens(n) for n in (5, 17, 40)]
    heard = {(front, n): ask(front, f"{id(front)}-{n}", prompts[n]) for front in (early, late) for n in range(3)}
    wait_until(lambda: all(map(has_ended, heard.values())), 60)
    for n, whole in enumerate(llm.generate(prompts, GREEDY)):
        assert tokens_of(heard[early, n]) == tokens_of(heard[late, n]) == list(whole.tokens)
    assert {each.request_id for news in heard.values() for each in news} == {f"{id(f)}-{n}" for f, n in heard}


def test_a_front_is_answered_as_by_an_engine(world: World) -> None:
    world.start_engine()
    one, other = world.front("one"), world.front("other")
    too_long = ask(one, "long", some_tokens(1100))
    wait_until(lambda: has_ended(too_long))
    assert isinstance(too_long[-1], Failed) and isinstance(too_long[-1].error, ContextTooLong)
    assert too_long[-1].error.num_prompt == 1100
    running = ask(one, "a", [*LINGER, *some_tokens(9)], LONG)
    wait_until(lambda: len(running) > 3)
    taken = ask(other, "a", some_tokens(9))
    wait_until(lambda: has_ended(taken))
    assert isinstance(taken[-1], Failed) and isinstance(taken[-1].error, DuplicateRequest)
    assert one.cancel("a").result(60) is True and one.cancel("a").result(60) is False
    wait_until(lambda: has_ended(running))
    asked = [one.ask(Explain(tuple(some_tokens(9)), CacheKey())) for _ in range(3)]
    assert all(isinstance(answer.result(60), Explained) for answer in asked)
    assert other.counters(60).num_cancelled == 1


def test_requests_of_a_front_that_ends_are_cancelled(world: World, llm: LLM) -> None:
    world.start_engine()
    stays, goes = world.front("stays"), world.front("goes")
    kept = ask(stays, "kept", some_tokens(9))
    lost = [ask(goes, f"lost-{n}", [*LINGER, *some_tokens(20 + n)], replace(LONG, n=2)) for n in range(4)]
    wait_until(lambda: all(len(news) > 5 for news in lost))
    for name in ("goes", "goes", "nobody"):
        world.drop(name)
    wait_until(lambda: has_ended(kept), 60)
    assert tokens_of(kept) == list(llm.generate(some_tokens(9), GREEDY)[0].tokens)
    wait_until(lambda: stays.counters(60).num_held_blocks == 0)
    assert stays.counters(60).num_cancelled == 8
    assert not any(map(has_ended, lost)), "nobody is told"


def test_fronts_see_a_dead_engine_only_as_loading(world: World, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = threading.Event()
    monkeypatch.setattr(Recovery, "pause", property(lambda self: may_start.wait(60) - 1))
    world.start_engine()
    assert world.client is not None
    fronts = [world.front(str(n)) for n in range(2)]
    heard = [ask(fronts[n % 2], f"r{n}", some_tokens(5 + n)) for n in range(8)]
    wait_until(lambda: all(len(news) > 5 for news in heard))
    os.kill(link_of(world.client).pid, signal.SIGKILL)
    wait_until(lambda: not any(front.is_alive for front in fronts))
    with pytest.raises(EngineDied):
        fronts[0].counters()
    heard.append(ask(fronts[1], "meanwhile", some_tokens(13)))
    may_start.set()
    wait_until(lambda: all(map(has_ended, heard)), 60)
    wholes = llm.generate([*(some_tokens(5 + n) for n in range(8)), some_tokens(13)], GREEDY)
    assert [tokens_of(news) for news in heard] == [list(whole.tokens) for whole in wholes]
    wait_until(lambda: all(front.is_alive for front in fronts))
    assert fronts[0].counters(60).num_restarts == 1


def test_when_the_hub_dies_all_requests_fail(world: World) -> None:
    world.start_engine()
    front = world.front("one")
    news = ask(front, "a", [*LINGER, *some_tokens(9)], LONG)
    wait_until(lambda: len(news) > 3)
    link = front._link
    assert isinstance(link, HubLink)
    link.on_hub_death()
    assert isinstance(news[-1], Failed) and news[-1].error.code == "engine_died" and not front.is_alive
