"""Engines that exchange KV blocks, each in a thread of this process: with native kernels, or on another device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from quire.config import load as load_config
from quire.devices.base import Device
from quire.engine.client import Client
from quire.engine.load import build_engine
from quire.engine.local import LocalEngine
from quire.engine.messages import Counters, Failed, ReadLoad
from quire.engine.transfers import TransferCore
from quire.types.output import Finished
from quire.types.request import GenerateRequest, SamplingParams
from quire.types.transfer import PrefixSource
from tests.models.toys import Toy, make_toy

SETTINGS = {
    **{"num_blocks": 200, "max_rows": 8, "max_step_tokens": 48, "max_context": 1024, "speculate": "off"},
    **{"transfer_secret": "a secret of the two engines", "transfer_patience": 5.0},
}
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=2)
_numbers = count()


class Replica:
    """One engine."""

    def __init__(self, case: str | Toy = "llama", device: str | Device = "cpu", **settings: Any) -> None:
        given = {name: value for name, value in (SETTINGS | settings).items() if value is not None}
        toy = make_toy(case) if isinstance(case, str) else case
        loaded = build_engine(toy.checkpoint, device, load_config(given, {}))
        self.core = loaded.core
        self.core.checks_when_idle = True
        self.client = Client(lambda deliver: LocalEngine(loaded, deliver))

    @property
    def port(self) -> int:
        """Where it sends blocks."""
        assert isinstance(self.core, TransferCore)
        return int(self.client.ask(ReadLoad()).result(10).transfer_port)

    def counters(self) -> Counters:
        return self.client.counters()

    def request(
        self, prompt: Sequence[int], source: PrefixSource | None = None, sampling: SamplingParams = GREEDY, **more: Any
    ) -> GenerateRequest:
        return GenerateRequest(f"r{next(_numbers)}", tuple(prompt), sampling, prefix_source=source, **more)

    def answer(self, prompt: Sequence[int], source: PrefixSource | None = None, **more: Any) -> Answer:
        return answer_of(self, self.request(prompt, source, **more))


class Answer:
    """Tokens and logprobs, to the bit."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Any] = []
        self.num_hit = 0
        self.end: Finished | Failed | None = None

    def said(self) -> tuple[list[int], list[Any]]:
        assert isinstance(self.end, Finished), self.end
        return self.tokens, self.logprobs


def answer_of(replica: Replica, request: GenerateRequest) -> Answer:
    answer = Answer()
    for news in replica.client.stream(request):
        if isinstance(news, Finished | Failed):
            answer.end = news
        if not isinstance(news, Failed) and hasattr(news, "tokens"):
            answer.tokens += news.tokens
            answer.logprobs += news.logprobs
            answer.num_hit = max(answer.num_hit, news.num_hit)
    return answer


def source_of(replica: Replica, prompt: Sequence[int], computes: bool = True, port: int | None = None) -> PrefixSource:
    return PrefixSource("127.0.0.1", port or replica.port, computes, len(prompt))


@contextmanager
def replicas(num: int = 2, case: str | Toy = "llama", **settings: Any) -> Iterator[list[Replica]]:
    opened = [Replica(case, **settings) for _ in range(num)]
    try:
        yield opened
    finally:
        for each in opened:
            each.client.close()
