"""The offline API: a model in this process, or in a child of it.

    llm = LLM("smollm2:135m")
    for completion in llm.generate(["Once upon", "The sky is"], SamplingParams(temperature=0, max_tokens=32)):
        print(completion.text)

Without sampling parameters, `SamplingParams()` holds as declared: the model's own distribution, until it ends its
answer or the context is full. A `Constraint` prescribes the form of the answer. A request that fails raises its error,
and what was submitted with it is cancelled.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from quire.config import Config
from quire.config import load as load_config
from quire.devices.base import Device
from quire.engine.client import Client, Deliver, Link, Restarts
from quire.engine.load import build
from quire.engine.local import LocalEngine
from quire.engine.messages import Configure, News, Tokens
from quire.engine.text_side import Answer, Message, Prompt, TextSide
from quire.text.template import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.types.answer import Completion, Delta
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, FinishReason, GenerateRequest, SamplingParams
from quire.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from quire.text.go_chat import GoChatTemplate

Prompts = str | Sequence[str] | Sequence[Sequence[int]] | Sequence[int]
Conversations = Sequence[Message] | Sequence[Sequence[Message]]
Sampling = SamplingParams | Sequence[SamplingParams] | None
Constraints = Constraint | Sequence[Constraint | None] | None
Resolve = Callable[[str], str | Path]  # a name of the store -> where the model lies

LONG_BATCH = 8  # prompts, from which on a terminal shows a progress bar


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs."""

    device: str | Device = "auto"  # a GPU if there is one, else the CPU
    in_process: bool = True
    entry: str = "quire.engine.process:main"  # what a child process runs


class Opened:
    """A model that is ready: the engine's client and the text side. What LLM and AsyncLLM have in common."""

    def __init__(self, model: str | Path, place: Place, resolve: Resolve | None, settings: Mapping[str, Any]) -> None:
        self.config = load_config(settings)
        path = Path(model)
        if not path.exists():
            path = Path((resolve or _from_store(self.config))(str(model)))
        checkpoint = open_checkpoint(path, self.config.weights.load_format)
        self.side = TextSide.of(checkpoint)

        def opens(deliver: Deliver) -> Link:
            if place.in_process:
                return LocalEngine(build(checkpoint, place.device, self.config), deliver)
            if not isinstance(place.device, str):
                raise InvalidRequest("A device for a child process is given by its name.", field="device")
            launch = import_module("quire.engine.launch")  # here, because the sockets' packages are needed for it alone
            link: Link = launch.ChildEngine(Configure(str(path), place.device, self.config), deliver, entry=place.entry)
            return link

        held = Restarts(self.config.scheduler.max_waiting)
        self.client = Client(opens, None if place.in_process else held)

    def answer(
        self, prompt: tuple[int, ...], sampling: SamplingParams | None, constraint: Constraint | None = None
    ) -> Answer:
        """An answer that has not begun. A stop string in its text ends the sample in the engine."""

        def stop_found(request_id: str, sample: int) -> None:
            self.client.cancel(request_id, FinishReason.STOP, sample)

        return Answer(self.side.request(prompt, sampling, constraint), self.side, stop_found)

    def answers(
        self, prompts: list[tuple[int, ...]], sampling: Sampling, constraint: Constraints = None
    ) -> list[Answer]:
        """One for each prompt, with the parameters and the form of all or each with its own."""
        params = _for_each(sampling, len(prompts), "sampling", "sampling parameters")
        forms = _for_each(constraint, len(prompts), "constraint", "constraints")
        return [self.answer(*each) for each in zip(prompts, params, forms, strict=True)]

    def encode(self, prompts: Prompts) -> list[tuple[int, ...]]:
        """Tokens of one prompt or of many."""
        if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], Integral)):
            return [self.side.encode(prompts)]  # type: ignore[arg-type]  # by now it is one prompt
        return [self.side.encode(prompt) for prompt in prompts]  # type: ignore[arg-type]

    def encode_chats(self, messages: Conversations, tools: Sequence[Message] | None) -> list[tuple[int, ...]]:
        """Tokens of one conversation or of many."""
        chats = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        return [self.side.encode_chat(chat, tools) for chat in chats]  # type: ignore[arg-type]

    def encode_one(self, prompt: Prompt | Sequence[Message], variables: Mapping[str, Any]) -> tuple[int, ...]:
        """Tokens of a text, of token ids, or of a conversation, whose template is given these variables."""
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            return self.side.encode_chat(prompt, variables=variables)  # type: ignore[arg-type]
        return self.side.encode(prompt)  # type: ignore[arg-type]


class Parts:
    """What an opened model lets its users look at."""

    _opened: Opened

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's; None if it came without one."""
        return self._opened.side.tokenizer

    @property
    def template(self) -> ChatTemplate | GoChatTemplate:
        """The model's chat template."""
        return self._opened.side.template

    @property
    def config(self) -> Config:
        """The settings as they were given."""
        return self._opened.config

    @property
    def client(self) -> Client:
        """The engine itself: its limits (`ready`), its counters, requests by token ids."""
        return self._opened.client


class LLM(Parts):
    """A model to call. Use it as a context manager, or close it. May be used by several threads at once.

    `model` is a file, a folder, or a name as `quire run` takes it; `resolve` gives names another meaning. `settings`
    are those of `quire.config` by their names, such as max_context=4096 or num_blocks=2000.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | Device = "auto",
        in_process: bool = True,
        resolve: Resolve | None = None,
        **settings: Any,
    ) -> None:
        self._opened = Opened(model, Place(device, in_process), resolve, settings)

    def generate(
        self,
        prompts: Prompts,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        progress: bool | None = None,
    ) -> list[Completion]:
        """Complete each prompt, in their order. Text goes to the model as it is; for a conversation see `chat`."""
        return self._complete(self._opened.answers(self._opened.encode(prompts), sampling, constraint), progress)

    def chat(
        self,
        messages: Conversations,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        tools: Sequence[Message] | None = None,
    ) -> list[Completion]:
        """Answer a conversation, or each of several."""
        prompts = self._opened.encode_chats(messages, tools)
        return self._complete(self._opened.answers(prompts, sampling, constraint), None)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Generator[Delta, None, None]:
        """An answer as it comes. Closing the iterator cancels the request.

        `chat_template_kwargs` go to the chat template of a conversation, such as enable_thinking=False.
        """
        prompt_tokens = self._opened.encode_one(prompt, chat_template_kwargs or {})
        answer = self._opened.answer(prompt_tokens, sampling, constraint)
        news = self.client.stream(answer.request)
        try:
            for each in news:
                delta = answer.take(each)
                if delta is not None:
                    yield delta
                if answer.is_over:
                    return
        finally:
            news.close()

    def close(self) -> None:
        """End the engine and free its memory."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _complete(self, answers: list[Answer], progress: bool | None) -> list[Completion]:
        """Run all of them together, no more at once than the engine's queue takes."""
        news: queue.SimpleQueue[Sequence[News]] = queue.SimpleQueue()
        waiting, live = iter(answers), dict[str, Answer]()
        room = self.config.scheduler.max_waiting

        def submit_more() -> None:
            nonlocal room
            while room > 0 and (answer := next(waiting, None)) is not None:
                live[answer.request.id] = answer
                room -= answer.request.sampling.n
                self.client.submit(answer.request, _Held(answer.request, news.put))

        try:
            with _progress(len(answers), progress) as advance:
                submit_more()
                while live:
                    for each in news.get():
                        answer = live.get(each.request_id)
                        if answer is None:
                            continue  # its text has ended already; the engine was told
                        answer.take(each)
                        if answer.is_over:
                            del live[each.request_id]
                            room += answer.request.sampling.n
                            advance()
                            submit_more()
        finally:
            for request_id, answer in live.items():
                if not answer.is_over:
                    self.client.cancel(request_id)
        return [answer.completion() for answer in answers]


class _Held:
    """News of a request whose text nobody reads while it comes: its first tokens, then all others with its end.

    Whoever is woken for each token takes a core from the engine. Only a stop string has to be looked for at once.
    """

    def __init__(self, request: GenerateRequest, send: Callable[[Sequence[News]], None]) -> None:
        self._send = send
        self._is_watched = bool(request.sampling.stop)
        self._is_quiet = False  # it has begun
        self._held: list[News] = []

    def __call__(self, news: News) -> None:
        self._held.append(news)
        if type(news) is Tokens:
            if self._is_quiet:
                return
            self._is_quiet = not self._is_watched
        held, self._held = self._held, []
        self._send(held)


def _for_each(given: Any, count: int, field: str, what: str) -> list[Any]:
    """One for all, or one each."""
    each = list(given) if isinstance(given, Sequence) else [given] * count
    if len(each) != count:
        raise InvalidRequest(f"There are {count} prompts and {len(each)} {what}: give one for all, or one each.", field)
    return each


def _from_store(config: Config) -> Resolve:
    """Names mean what they mean to `quire run`: a model that is not here yet is fetched."""
    store = import_module("quire.store.store")  # here, because a path needs none of what fetches models
    resolve: Resolve = store.open_store(config).resolve
    return resolve


@contextmanager
def _progress(total: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A bar on stderr: if it is asked for, or if someone looks and has reason to."""
    shown = wanted if wanted is not None else total >= LONG_BATCH and sys.stderr.isatty()
    if not shown or find_spec("rich") is None:
        yield lambda: None
        return
    rich_progress, rich_console = import_module("rich.progress"), import_module("rich.console")
    columns = rich_progress.MofNCompleteColumn(), rich_progress.TimeElapsedColumn()
    console = rich_console.Console(stderr=True)
    with rich_progress.Progress(*rich_progress.Progress.get_default_columns(), *columns, console=console) as bar:
        task = bar.add_task("prompts", total=total)
        yield lambda: bar.advance(task)
