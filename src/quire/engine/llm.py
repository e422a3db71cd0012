"""The offline API: a model in this process, or in a child of it.

    llm = LLM("smollm2:135m")
    for completion in llm.generate(["Once upon", "The sky is"], SamplingParams(temperature=0, max_tokens=32)):
        print(completion.text)

A sampling parameter that is not given is the Modelfile's, else the model's own default, else that of `SamplingParams`.
A `Constraint` prescribes the form of the answer. A request that fails raises its error, and what was submitted with it
is cancelled. vLLM's words for arguments are taken as `types/vllm_words.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from quire.config import Config
from quire.config import load as load_config
from quire.devices.base import Device
from quire.engine.client import Client, Deliver, EngineLink, RestartPolicy
from quire.engine.load import build_engine
from quire.engine.local import LocalEngine
from quire.engine.messages import Configure
from quire.engine.offline import Room, complete
from quire.engine.prompt_forms import (
    Conversations,
    Encoded,
    OnePrompt,
    Prompts,
    encode_any,
    encode_chats,
    encode_prompts,
)
from quire.engine.text_side import Answer, Message, TextSide
from quire.text.preset import with_num_ctx
from quire.text.template import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.types import vllm_words
from quire.types.answer import Completion, Delta
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, FinishReason, SamplingParams
from quire.types.sampling_values import is_unicode, refusal
from quire.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from quire.text.go_chat import GoChatTemplate

Sampling = SamplingParams | Sequence[SamplingParams] | None
Constraints = Constraint | Sequence[Constraint | None] | None
Resolve = Callable[[str], str | Path]  # a name of the store -> where the model lies


class CallWords(TypedDict, total=False):
    """vLLM's words for arguments of `generate` and `chat`; others of its words are answered when they are used."""

    sampling_params: Sampling
    use_tqdm: bool


class ChatWords(CallWords, total=False):
    """Those of `chat` alone."""

    chat_template_kwargs: Mapping[str, Any] | None  # variables of the chat template, such as enable_thinking


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs."""

    device: str | Device = "auto"  # a GPU if there is one, else the CPU
    in_process: bool = True
    entry: str = "quire.engine.process:main"  # what a child process runs


class Call:
    """The arguments of `generate` and `chat` that vLLM has other words for."""

    def __init__(self, sampling: Sampling, progress: bool | None, words: Mapping[str, Any]) -> None:
        ours = vllm_words.translate(vllm_words.CALL, words)
        for name, value in (("sampling", sampling), ("progress", progress)):
            if value is not None and name in ours:
                raise InvalidRequest(f"{name} was given twice.", field=name)
        self.sampling: Sampling = ours.pop("sampling", sampling)
        self.progress: bool | None = ours.pop("progress", progress)
        for name in sorted(ours):
            cure = f": give SamplingParams({name}=…)" if name in SamplingParams.__dataclass_fields__ else ""
            raise InvalidRequest(f"There is no argument {name!r}{cure}.", field=name)


class Opened:
    """A model that is ready: the engine's client and the text side. What LLM and AsyncLLM have in common."""

    def __init__(self, model: str | Path, place: Place, resolve: Resolve | None, settings: Mapping[str, Any]) -> None:
        config = load_config(vllm_words.translate(vllm_words.LLM, settings))
        path = _path(model, resolve, config)
        checkpoint = open_checkpoint(path, config.weights.load_format)
        self.side = TextSide.of(checkpoint, config.sampling.sampling_defaults)
        self.config = config = with_num_ctx(config, self.side.preset)
        self.room = Room(config.scheduler.max_waiting)

        def opens(deliver: Deliver) -> EngineLink:
            if place.in_process:
                return LocalEngine(build_engine(checkpoint, place.device, config), deliver)
            if not isinstance(place.device, str):
                raise InvalidRequest("A device for a child process is given by its name.", field="device")
            launch = import_module("quire.engine.launch")  # here, because the sockets' packages are needed for it alone
            link: EngineLink = launch.ChildEngine(
                Configure(str(path), place.device, config), deliver, entry=place.entry
            )
            return link

        held = RestartPolicy(config.scheduler.max_waiting)
        self.client = Client(opens, None if place.in_process else held)

    def answer(self, prompt: Encoded, sampling: SamplingParams | None, constraint: Constraint | None = None) -> Answer:
        """An answer that has not begun. A stop string in its text ends the sample in the engine."""
        if sampling is not None and not isinstance(sampling, SamplingParams):
            raise InvalidRequest(f"sampling is a {type(sampling).__name__}; give SamplingParams(…).", field="sampling")
        if constraint is not None and not isinstance(constraint, Constraint):
            raise InvalidRequest(
                f"constraint is a {type(constraint).__name__}; give Constraint(…).", field="constraint"
            )
        if constraint is not None and not all(map(is_unicode, (constraint.text, *constraint.choices))):
            raise refusal("constraint", constraint, "text without halves of surrogate pairs")
        if sampling is not None and sampling.n > self.room.size:
            raise InvalidRequest(
                f"n is {sampling.n}, and the queue holds {self.room.size} samples: give several prompts, or raise "
                "max_waiting.",
                field="n",
            )

        def stop_found(request_id: str, sample: int) -> None:
            self.client.cancel(request_id, FinishReason.STOP, sample)

        request = self.side.request(prompt.tokens, sampling, constraint)
        return Answer(request, self.side, stop_found, prompt.text)

    def answers(self, prompts: list[Encoded], sampling: Sampling, constraint: Constraints = None) -> list[Answer]:
        """One for each prompt, with the parameters and the form of all or each with its own."""
        params = _for_each(sampling, len(prompts), "sampling", "sampling parameters")
        forms = _for_each(constraint, len(prompts), "constraint", "constraints")
        return [self.answer(*each) for each in zip(prompts, params, forms, strict=True)]


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

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The parameters that hold where a request gives none: the Modelfile's and the model's own."""
        return self._opened.side.defaults.values

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, as vLLM's users ask for it. Raises if the model came without one."""
        return self._opened.side.needed_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a request that gives none."""
        return self._opened.side.defaults.fill(SamplingParams(), ())


class LLM(Parts):
    """A model to call. Use it as a context manager, or close it. May be used by several threads at once.

    `model` is a file, a folder, or a name as `quire run` takes it; `resolve` gives names another meaning. `settings`
    are those of `quire.config` by their names, such as max_context=4096 or num_blocks=2000, or by vLLM's.
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
        **words: Unpack[CallWords],
    ) -> list[Completion]:
        """Complete each prompt, in their order. Text goes to the model as it is; for a conversation see `chat`."""
        call, encoded = Call(sampling, progress, words), encode_prompts(self._opened.side, prompts)
        return self._complete(self._opened.answers(encoded, call.sampling, constraint), call.progress)

    def chat(
        self,
        messages: Conversations,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        tools: Sequence[Message] | None = None,
        progress: bool | None = None,
        **words: Unpack[ChatWords],
    ) -> list[Completion]:
        """Answer a conversation, or each of several. A text is what the user says."""
        variables = words.pop("chat_template_kwargs", None)
        call, encoded = Call(sampling, progress, words), encode_chats(self._opened.side, messages, tools, variables)
        return self._complete(self._opened.answers(encoded, call.sampling, constraint), call.progress)

    def stream(
        self,
        prompt: OnePrompt | Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Generator[Delta, None, None]:
        """An answer as it comes. Closing the iterator cancels the request.

        `chat_template_kwargs` go to the chat template of a conversation, such as enable_thinking=False.
        """
        encoded = encode_any(self._opened.side, prompt, chat_template_kwargs)
        answer = self._opened.answer(encoded, sampling, constraint)
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
        return complete(self.client, self._opened.room, answers, progress)


def _for_each(given: Any, count: int, field: str, what: str) -> list[Any]:
    """One for all, or one each."""
    each = list(given) if isinstance(given, Sequence) else [given] * count
    if len(each) != count:
        raise InvalidRequest(f"There are {count} prompts and {len(each)} {what}: give one for all, or one each.", field)
    return each


def _path(model: str | Path, resolve: Resolve | None, config: Config) -> Path:
    """Where the model lies. A name that is no path is fetched if it is not here yet."""
    if not isinstance(model, str | Path) or not str(model):
        raise InvalidRequest(f"model is {model!r}; give a name, or the path of a file or folder.", field="model")
    path = Path(model)
    if path.exists():
        return path
    return Path((resolve or _from_store(config))(str(model)))


def _from_store(config: Config) -> Resolve:
    """Names mean what they mean to `quire run`: a model that is not here yet is fetched."""
    store = import_module("quire.store.store")  # here, because a path needs none of what fetches models
    resolve: Resolve = store.open_store(config).resolve
    return resolve
