"""The offline API for asyncio: the same verbs, with the engine in a child process, so that the loop never waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

from quire.devices.base import Device
from quire.engine.llm import Constraints, Conversations, Opened, Parts, Place, Prompts, Resolve, Sampling
from quire.engine.text_side import Answer, Message, Prompt
from quire.types.answer import Completion, Delta
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
        self, prompts: Prompts, sampling: Sampling = None, *, constraint: Constraints = None
    ) -> list[Completion]:
        """Complete each prompt, in their order."""
        return await self._complete(self._opened.answers(self._opened.encode(prompts), sampling, constraint))

    async def chat(
        self,
        messages: Conversations,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        tools: Sequence[Message] | None = None,
    ) -> list[Completion]:
        """Answer a conversation, or each of several."""
        prompts = self._opened.encode_chats(messages, tools)
        return await self._complete(self._opened.answers(prompts, sampling, constraint))

    async def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """An answer as it comes. Closing the iterator, or cancelling the task, cancels the request.

        `chat_template_kwargs` go to the chat template of a conversation, such as enable_thinking=False.
        """
        prompt_tokens = self._opened.encode_one(prompt, chat_template_kwargs or {})
        answer = self._opened.answer(prompt_tokens, sampling, constraint)
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
        room = asyncio.Semaphore(
            max(1, self.config.scheduler.max_waiting // max((a.request.sampling.n for a in answers), default=1))
        )

        async def one(answer: Answer) -> Completion:
            async with room, aclosing(self.client.generate(answer.request)) as news:
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
