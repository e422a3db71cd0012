"""The Python API for asyncio: the same methods, with the engine in a child process, so that the loop never blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from quire.devices.base import Device
from quire.engine.async_vector_calls import AsyncVectorCalls
from quire.engine.chat_forms import ChatWords, MessageForm, take_chat_options
from quire.engine.llm import (
    CallArguments,
    ChatCallWords,
    Constraints,
    EnginePlace,
    GenerateWords,
    LoadedModel,
    ModelParts,
    Resolve,
    Sampling,
    stream_request,
)
from quire.engine.pending_answer import PendingAnswer
from quire.engine.prompt_forms import Conversations, OnePrompt, Prompts, chat_requests, completion_requests
from quire.types.answer import Completion, Delta
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, SamplingParams
from quire.types.speech import SpeechOptions, Transcript


class AsyncLLM(AsyncVectorCalls, ModelParts):
    """LLM for asyncio. Loading blocks; `await AsyncLLM.open(...)` loads in a thread."""

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | Device = "auto",
        in_process: bool = False,
        resolve: Resolve | None = None,
        **settings: Any,
    ) -> None:
        self._model = LoadedModel(model, EnginePlace(device, in_process), resolve, settings)

    @classmethod
    async def open(cls, model: str | Path, **arguments: Any) -> Self:
        """Load in a thread, without blocking the loop."""
        return await asyncio.to_thread(cls, model, **arguments)

    async def generate(
        self,
        prompts: Prompts,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        **words: Unpack[GenerateWords],
    ) -> list[Completion]:
        """Complete each prompt, in their order."""
        call, asks = _arguments(sampling, words), completion_requests(prompts)
        return await self._complete(self._model.answers(asks, call.sampling, constraint))

    async def chat(
        self,
        messages: Conversations,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        **words: Unpack[ChatCallWords],
    ) -> list[Completion]:
        """Answer a conversation, or each of several. A text is one message of the user."""
        others: dict[str, Any] = {**words}
        options = take_chat_options(others)
        call, asks = _arguments(sampling, others), chat_requests(messages, options)
        return await self._complete(self._model.answers(asks, call.sampling, constraint))

    async def transcribe(
        self,
        audio: Any,
        *,
        language: str | None = None,
        translate: bool = False,
        prompt: str | None = None,
        temperature: float | None = None,
        words: bool = False,
    ) -> list[Transcript]:
        """Transcribe each recording, in a thread. The arguments are those of `LLM.transcribe`."""
        options = SpeechOptions(language, translate, prompt or "", temperature, has_words=words)
        return await asyncio.to_thread(self._transcribe, audio, options)

    async def stream(
        self,
        prompt: OnePrompt | Sequence[MessageForm],
        sampling: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        **words: Unpack[ChatWords],
    ) -> AsyncGenerator[Delta, None]:
        """Stream the answer to a prompt or a conversation.

        Closing the iterator, or cancelling the task, cancels the request. `words` are those of conversations, as in
        `chat`.
        """
        answer = self._model.answer(stream_request(prompt, {**words}), sampling, constraint)
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

    async def _complete(self, answers: list[PendingAnswer]) -> list[Completion]:
        """Run all requests together; if one fails, cancel the others."""

        async def one(answer: PendingAnswer) -> Completion:
            async with (
                self._queue_slots(answer.request.sampling.n),
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
    async def _queue_slots(self, count: int) -> AsyncIterator[None]:
        """Hold `count` slots of the engine's queue, which all callers of this model share."""
        slots, loop = self._model.slots, asyncio.get_running_loop()
        while not slots.take(count, wait=False):
            freed = loop.create_future()
            slots.when_freed(partial(loop.call_soon_threadsafe, _wake, freed))
            await freed
        try:
            yield
        finally:
            slots.give(count)


def _arguments(sampling: Sampling, words: Mapping[str, Any]) -> CallArguments:
    arguments = CallArguments(sampling, None, words)
    if arguments.progress:
        raise InvalidRequest("AsyncLLM shows no progress bar: leave use_tqdm out, or use LLM.", field="use_tqdm")
    return arguments


def _wake(freed: asyncio.Future[None]) -> None:
    if not freed.done():
        freed.set_result(None)
