"""The offline API for asyncio: the same verbs, with the engine in a child process, so that the loop never waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from quire.devices.base import Device
from quire.engine.llm import Call, CallWords, ChatWords, Constraints, Opened, Parts, Place, Resolve, Sampling
from quire.engine.prompt_forms import Conversations, OnePrompt, Prompts, encode_any, encode_chats, encode_prompts
from quire.engine.text_side import Answer, Message
from quire.types.answer import Completion, Delta
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, SamplingParams


class AsyncLLM(Parts):
    """LLM's twin. Loading blocks; `await AsyncLLM.open(...)` loads beside the loop."""

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | Device = "auto",
        in_process: bool = False,
        resolve: Resolve | None = None,
        **settings: Any,
    ) -> None:
        self._opened = Opened(model, Place(device, in_process), resolve, settings)

    @classmethod
    async def open(cls, model: str | Path, **arguments: Any) -> Self:
        """Load without holding up the loop."""
        return await asyncio.to_thread(cls, model, **arguments)

    async def generate(
        self,
        prompts: Prompts,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        **words: Unpack[CallWords],
    ) -> list[Completion]:
        """Complete each prompt, in their order."""
        call, encoded = _call(sampling, words), encode_prompts(self._opened.side, prompts)
        return await self._complete(self._opened.answers(encoded, call.sampling, constraint))

    async def chat(
        self,
        messages: Conversations,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        tools: Sequence[Message] | None = None,
        **words: Unpack[ChatWords],
    ) -> list[Completion]:
        """Answer a conversation, or each of several. A text is what the user says."""
        variables = words.pop("chat_template_kwargs", None)
        call, encoded = _call(sampling, words), encode_chats(self._opened.side, messages, tools, variables)
        return await self._complete(self._opened.answers(encoded, call.sampling, constraint))

    async def stream(
        self,
        prompt: OnePrompt | Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """An answer as it comes. Closing the iterator, or cancelling the task, cancels the request.

        `chat_template_kwargs` go to the chat template of a conversation, such as enable_thinking=False.
        """
        encoded = encode_any(self._opened.side, prompt, chat_template_kwargs)
        answer = self._opened.answer(encoded, sampling, constraint)
        async with aclosing(self.client.generate(answer.request)) as news:
            async for each in news:
                delta = answer.take(each)
                if delta is not None:
                    yield delta
                if answer.is_over:
                    return

    async def aclose(self) -> None:
        """End the engine and free its memory."""
        await asyncio.to_thread(self.client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def _complete(self, answers: list[Answer]) -> list[Completion]:
        """Run all of them together; if one fails, the others are cancelled."""

        async def one(answer: Answer) -> Completion:
            async with (
                self._place_for(answer.request.sampling.n),
                aclosing(self.client.generate(answer.request)) as news,
            ):
                async for each in news:
                    answer.take(each)
                    if answer.is_over:
                        break
            return answer.completion()

        tasks = [asyncio.ensure_future(one(answer)) for answer in answers]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    @asynccontextmanager
    async def _place_for(self, count: int) -> AsyncIterator[None]:
        """Hold so many places in the engine's queue, for all callers of this model."""
        room, loop = self._opened.room, asyncio.get_running_loop()
        while not room.take(count, wait=False):
            freed = loop.create_future()
            room.when_freed(partial(loop.call_soon_threadsafe, _wake, freed))
            await freed
        try:
            yield
        finally:
            room.give(count)


def _call(sampling: Sampling, words: CallWords) -> Call:
    call = Call(sampling, None, words)
    if call.progress:
        raise InvalidRequest("AsyncLLM shows no progress bar: leave use_tqdm out, or use LLM.", field="use_tqdm")
    return call


def _wake(freed: asyncio.Future[None]) -> None:
    if not freed.done():
        freed.set_result(None)
