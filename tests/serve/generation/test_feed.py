"""The buffer between the engine and the task that writes: nothing is lost, and its size is bounded."""

from __future__ import annotations

import asyncio

import pytest

from quire.engine.client import Client
from quire.engine.messages import Accepted, Cancel, EngineDied, Failed, Inward, Ready, Submit
from quire.serve.generation.feed import MAX_PIECES, Feed, merge_outputs
from quire.serve.http.exchange import ClientGone
from quire.types.errors import Overloaded
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import TokenLogprobs

pytestmark = pytest.mark.pure

STOP = FinishReason.STOP


class Link:
    """Says nothing, and remembers what it was told."""

    ready = Ready("none", "none", 100, 100, 1, 16, 0.0)

    def __init__(self) -> None:
        self.told: list[Inward] = []

    def send(self, message: Inward) -> None:
        self.told.append(message)

    def close(self) -> None: ...


class World:
    """A client whose engine is the test."""

    def __init__(self, *requests: GenerateRequest, wakes_late: bool = False) -> None:
        self.link = Link()
        self.client = Client(lambda deliver: self.link)
        self.gaps: list[int] = []
        self.feed = Feed(self.client, requests, lambda seconds, count: self.gaps.append(count), wakes_late)
        self.feed.submit()

    def say(self, *messages) -> None:
        self.client._deliver(messages)

    @property
    def cancelled(self) -> list[str]:
        return [message.request_id for message in self.link.told if isinstance(message, Cancel)]


def request(id: str = "a", n: int = 1) -> GenerateRequest:
    return GenerateRequest(id, (1, 2), SamplingParams(n=n, seed=1))


def test_output_is_merged_to_one_piece_for_each_sample():
    logprobs = tuple(TokenLogprobs(token, -1.0) for token in (5, 6, 7))
    news = [Tokens("a", 0, (5,), logprobs[:1], 4), Tokens("a", 1, (8,)), Tokens("a", 0, (6, 7), logprobs[1:])]
    assert merge_outputs([*news, Finished("a", 1, STOP, (9,))]) == [
        Tokens("a", 0, (5, 6, 7), logprobs, 4),
        Tokens("a", 1, (8,)),
        Finished("a", 1, STOP, (9,)),
    ]


def test_take_returns_the_buffered_output_and_then_waits():
    async def scene() -> None:
        world = World(request())
        world.say(Accepted("a"), Tokens("a", 0, (3,)), Tokens("a", 0, (4,)))
        assert await world.feed.take() == [Tokens("a", 0, (3, 4))]
        waiting = asyncio.ensure_future(world.feed.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        world.say(Finished("a", 0, STOP, (5,)))
        assert await waiting == [Finished("a", 0, STOP, (5,))]
        assert world.cancelled == [] and world.feed.first_token is not None and world.gaps == [1, 1]
        world.feed.cancel()
        assert world.cancelled == [], "it has ended by itself"

    asyncio.run(scene())


def test_take_returns_nothing_after_its_timeout():
    async def scene() -> None:
        assert await World(request()).feed.take(0.01) == []

    asyncio.run(scene())


def test_a_task_that_needs_the_whole_answer_is_woken_once():
    async def scene() -> None:
        world = World(request("a", n=2), request("b"), wakes_late=True)
        waiting = asyncio.ensure_future(world.feed.take())
        for _ in range(3):
            world.say(Tokens("a", 0, (3,)), Tokens("a", 1, (4,)), Tokens("b", 0, (5,)))
            await asyncio.sleep(0)
        world.say(Finished("a", 0, STOP), Finished("a", 1, STOP))
        await asyncio.sleep(0)
        assert not waiting.done()
        world.say(Finished("b", 0, STOP))
        assert len(await waiting) == 6

    asyncio.run(scene())


@pytest.mark.parametrize("wakes_late", [False, True])
def test_an_error_is_raised_after_earlier_output_and_the_other_requests_can_be_cancelled(wakes_late):
    async def scene() -> None:
        world = World(request("a"), request("b"), wakes_late=wakes_late)
        world.say(Tokens("b", 0, (3,)), Failed("a", None, Overloaded("Full.", 1.0)))
        assert await world.feed.take() == [Tokens("b", 0, (3,))]
        with pytest.raises(Overloaded):
            await world.feed.take()
        world.feed.cancel()
        assert world.cancelled == ["b"]

    asyncio.run(scene())


def test_the_death_of_the_engine_fails_all_requests():
    async def scene() -> None:
        world = World(request("a"), request("b"))
        world.client._on_engine_death(EngineDied("It is gone."))
        with pytest.raises(EngineDied):
            await world.feed.take()

    asyncio.run(scene())


def test_requests_of_a_disconnected_client_are_cancelled_at_once():
    async def scene() -> None:
        world = World(request("a"), request("b", n=2))
        waiting = asyncio.ensure_future(world.feed.take())
        await asyncio.sleep(0)
        world.say(Finished("b", 0, STOP))
        world.feed.abandon()
        assert sorted(world.cancelled) == ["a", "b"]
        with pytest.raises(ClientGone):
            await waiting
        world.say(Tokens("a", 0, (3,)), Finished("a", 0, FinishReason.CANCELLED))
        with pytest.raises(ClientGone):
            await world.feed.take()

    asyncio.run(scene())


def test_output_that_accumulates_is_merged():
    async def scene() -> None:
        world = World(request("a"))
        for token in range(20 * MAX_PIECES):
            world.say(Tokens("a", 0, (token % 90,)))
        assert len(world.feed._outputs) < MAX_PIECES
        (piece,) = await world.feed.take()
        assert len(piece.tokens) == 20 * MAX_PIECES and piece.tokens[91] == 1

    asyncio.run(scene())


def test_if_one_request_is_refused_the_others_are_cancelled():
    async def scene() -> None:
        world = World(request("a"))
        twice = Feed(world.client, [request("b"), request("a")], lambda seconds, count: None)
        with pytest.raises(Exception, match="still running"):
            twice.submit()
        assert world.cancelled == ["b"]
        assert [message.request.id for message in world.link.told if isinstance(message, Submit)] == ["a", "b"]

    asyncio.run(scene())
