"""The Python API: a model in this process, or in a child process.

    llm = LLM("smollm2:135m")
    for completion in llm.generate(["Once upon", "The sky is"], SamplingParams(temperature=0, max_tokens=32)):
        print(completion.text)

A sampling parameter that is not given is the Modelfile's, else the model's own default, else that of `SamplingParams`.
Conversations are read as by the server, with the same text pipeline (`text/`). If a request fails, its error is raised
and those submitted with it are cancelled. vLLM's names of arguments work too (`types/vllm_words.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from quire.config import Config
from quire.config import load as load_config
from quire.devices.base import Device
from quire.engine.chat_forms import ChatWords, MessageForm, take_chat_options
from quire.engine.client import Client, Deliver, EngineLink, RestartPolicy
from quire.engine.load import build_engine
from quire.engine.local import LocalEngine
from quire.engine.messages import Configure
from quire.engine.model_files import read_model_text
from quire.engine.offline import QueueSlots, complete_all
from quire.engine.pending_answer import PendingAnswer
from quire.engine.prompt_forms import (
    Conversations,
    OnePrompt,
    Prompts,
    chat_requests,
    completion_requests,
    prompt_or_chat_request,
)
from quire.engine.vector_calls import VectorCalls
from quire.text.answer_decoder import AnswerDecoder
from quire.text.output_format import constraint_of, output_format_of
from quire.text.preset import with_model_settings
from quire.text.prompts import drop_forbidden_tools, encode_prompts, fill_defaults
from quire.text.template import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.types import vllm_words
from quire.types.answer import Completion, Delta
from quire.types.chat import Ask, Tool
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, FinishReason, GenerateRequest, SamplingParams
from quire.types.sampling_values import is_unicode, refusal
from quire.types.speech import SpeechOptions, Transcript
from quire.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from quire.text.go_chat import GoChatTemplate

Sampling = SamplingParams | Sequence[SamplingParams] | None
Constraints = Constraint | Sequence[Constraint | None] | None
Resolve = Callable[[str], str | Path]  # a name of the store -> path of the model

_REQUEST_NUMBERS = itertools.count()


class GenerateWords(TypedDict, total=False):
    """vLLM's names for arguments of `generate` and `chat`. Its other names are refused with a hint."""

    sampling_params: Sampling
    use_tqdm: bool


class ChatCallWords(GenerateWords, ChatWords, total=False):
    """Further arguments of `chat`."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where an engine runs."""

    device: str | Device = "auto"  # a GPU if there is one, else the CPU
    in_process: bool = True
    entry: str = "quire.engine.process:main"  # what a child process runs


class CallArguments:
    """The arguments of `generate` and `chat` for which vLLM has other names."""

    def __init__(self, sampling: Sampling, progress: bool | None, words: Mapping[str, Any]) -> None:
        ours = vllm_words.translate(vllm_words.CALL, words)
        for name, value in (("sampling", sampling), ("progress", progress)):
            if value is not None and name in ours:
                raise InvalidRequest(f"{name} was given twice.", field=name)
        self.sampling: Sampling = ours.pop("sampling", sampling)
        self.progress: bool | None = ours.pop("progress", progress)
        for name in sorted(ours):
            hint = f": give SamplingParams({name}=…)" if name in SamplingParams.__dataclass_fields__ else ""
            raise InvalidRequest(f"There is no argument {name!r}{hint}.", field=name)


class LoadedModel:
    """A model that is ready: the engine's client and the model's text side. Shared by LLM and AsyncLLM."""

    def __init__(
        self, model: str | Path, place: EnginePlace, resolve: Resolve | None, settings: Mapping[str, Any]
    ) -> None:
        config = load_config(vllm_words.translate(vllm_words.LLM, settings))
        path = _path(model, resolve, config)
        config = _with_draft(config, resolve)
        checkpoint = open_checkpoint(path, config.weights.load_format)
        self.model_text = read_model_text(checkpoint, config.sampling.sampling_defaults)
        self.config = config = with_model_settings(config, self.model_text.preset)
        self.slots = QueueSlots(config.scheduler.max_waiting)

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

        restarts = RestartPolicy(config.scheduler.max_waiting)
        self.client = Client(opens, None if place.in_process else restarts)

    def answer(self, ask: Ask, sampling: SamplingParams | None, constraint: Constraint | None = None) -> PendingAnswer:
        """Prepare a request: encode its prompt, and choose the format of its answer. It is not submitted yet."""
        self._check(sampling, constraint)
        sampling = SamplingParams() if sampling is None else sampling
        ask = replace(ask, sampling=sampling, sampling_fields=sampling.given, constraint=constraint)
        ask = fill_defaults(drop_forbidden_tools(ask), self.model_text.defaults)
        (prompt,) = encode_prompts(ask, self.model_text)
        output_format = replace(output_format_of(ask, (prompt,), self.model_text), with_scores=False)
        request = GenerateRequest(
            f"r{next(_REQUEST_NUMBERS)}",
            prompt.tokens,
            ask.sampling,
            self.model_text.eos_ids + prompt.ends,
            constraint=constraint_of(ask, prompt, self.model_text, self._exact_parameters),
            source=prompt.source,
            speech=prompt.rules,
        )
        return PendingAnswer(request, AnswerDecoder(prompt, output_format, self._stop_sample))

    def answers(self, asks: Sequence[Ask], sampling: Sampling, constraint: Constraints = None) -> list[PendingAnswer]:
        """Prepare several requests, with one set of parameters and one constraint for all, or one for each."""
        params = _for_each(sampling, len(asks), "sampling", "sampling parameters")
        constraints = _for_each(constraint, len(asks), "constraint", "constraints")
        return [self.answer(*each) for each in zip(asks, params, constraints, strict=True)]

    def _check(self, sampling: Any, constraint: Any) -> None:
        if sampling is not None and not isinstance(sampling, SamplingParams):
            raise InvalidRequest(f"sampling is a {type(sampling).__name__}; give SamplingParams(…).", field="sampling")
        if constraint is not None and not isinstance(constraint, Constraint):
            raise InvalidRequest(
                f"constraint is a {type(constraint).__name__}; give Constraint(…).", field="constraint"
            )
        if constraint is not None and not all(map(is_unicode, (constraint.text, *constraint.choices))):
            raise refusal("constraint", constraint, "text without halves of surrogate pairs")
        if sampling is not None and sampling.n > self.slots.size:
            raise InvalidRequest(
                f"n is {sampling.n}, and the queue holds {self.slots.size} samples: give several prompts, or raise "
                "max_waiting.",
                field="n",
            )

    def _exact_parameters(self, tool: Tool) -> Mapping[str, Any]:
        schemas = import_module("quire.grammar.tool_schemas")  # at first use: few requests require a call
        exact: Mapping[str, Any] = schemas.exact_parameters(self.config.grammar.open_objects, tool)
        return exact

    def _stop_sample(self, request_id: str, sample: int) -> None:
        self.client.cancel(request_id, FinishReason.STOP, sample)


class ModelParts:
    """The parts of a loaded model that its users may look at."""

    _model: LoadedModel

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None if it came without one."""
        return self._model.model_text.tokenizer

    @property
    def template(self) -> ChatTemplate | GoChatTemplate:
        """The model's chat template."""
        return self._model.model_text.template

    @property
    def config(self) -> Config:
        """The settings."""
        return self._model.config

    @property
    def client(self) -> Client:
        """The engine itself: its limits (`ready`), its counters, requests by token ids."""
        return self._model.client

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The sampling parameters of the Modelfile and the model, for requests that do not give them."""
        return self._model.model_text.defaults.values

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, under vLLM's name. Raises if the model came without one."""
        return self._model.model_text.needed_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a request that gives none, under vLLM's name."""
        return self._model.model_text.defaults.fill(SamplingParams(), ())

    def _transcribe(self, audio: Any, options: SpeechOptions) -> list[Transcript]:
        recordings = audio if isinstance(audio, list) else [audio]
        driver = import_module("quire.engine.transcription")  # at first use: few models transcribe
        model = self._model.model_text.needed_speech(self.client.ready.kinds)
        found: list[Transcript] = driver.transcribe_all(self.client, model, recordings, options)
        return found


class LLM(ModelParts, VectorCalls):
    """A model to call. Use it as a context manager, or close it. Threads may share it.

    `model` is a file, a folder, or a name as for `quire run`; `resolve` replaces the lookup of names. `settings` are
    those of `quire.config` by name, such as max_context=4096 or num_blocks=2000, or by vLLM's names.
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
        self._model = LoadedModel(model, EnginePlace(device, in_process), resolve, settings)

    def generate(
        self,
        prompts: Prompts,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        progress: bool | None = None,
        **words: Unpack[GenerateWords],
    ) -> list[Completion]:
        """Complete each prompt, in their order. Text goes to the model as it is; for a conversation see `chat`."""
        call, asks = CallArguments(sampling, progress, words), completion_requests(prompts)
        return self._complete(self._model.answers(asks, call.sampling, constraint), call.progress)

    def chat(
        self,
        messages: Conversations,
        sampling: Sampling = None,
        *,
        constraint: Constraints = None,
        progress: bool | None = None,
        **words: Unpack[ChatCallWords],
    ) -> list[Completion]:
        """Answer a conversation, or each of several. A text is one message of the user."""
        others: dict[str, Any] = {**words}
        options = take_chat_options(others)
        call, asks = CallArguments(sampling, progress, others), chat_requests(messages, options)
        return self._complete(self._model.answers(asks, call.sampling, constraint), call.progress)

    def transcribe(
        self,
        audio: Any,
        *,
        language: str | None = None,
        translate: bool = False,
        prompt: str | None = None,
        temperature: float | None = None,
        words: bool = False,
    ) -> list[Transcript]:
        """Transcribe each recording: a path, the bytes of a sound file, (samples, rate), or a list of these.

        `language` is a code such as "en"; without it, it is detected. `translate`: into English. `prompt`: text with
        names and spellings to expect. `temperature`: None: 0, and higher ones if the text is repetitive or unlikely.
        `words`: segments have the times of their words.
        """
        options = SpeechOptions(language, translate, prompt or "", temperature, has_words=words)
        return self._transcribe(audio, options)

    def stream(
        self,
        prompt: OnePrompt | Sequence[MessageForm],
        sampling: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        **words: Unpack[ChatWords],
    ) -> Generator[Delta, None, None]:
        """Stream the answer to a prompt or a conversation. Closing the iterator cancels the request.

        `words` are those of conversations, as in `chat`.
        """
        answer = self._model.answer(stream_request(prompt, {**words}), sampling, constraint)
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

    def _complete(self, answers: list[PendingAnswer], progress: bool | None) -> list[Completion]:
        return complete_all(self.client, self._model.slots, answers, progress)


def stream_request(prompt: Any, words: dict[str, Any]) -> Ask:
    """Read the arguments of `stream`."""
    options = take_chat_options(words)
    CallArguments(None, None, words)  # refuses what is left
    return prompt_or_chat_request(prompt, options)


def _for_each(given: Any, count: int, field: str, what: str) -> list[Any]:
    """Repeat one value, or check that there is one for each prompt."""
    each = list(given) if isinstance(given, Sequence) else [given] * count
    if len(each) != count:
        raise InvalidRequest(f"There are {count} prompts and {len(each)} {what}: give one for all, or one each.", field)
    return each


def _path(model: str | Path, resolve: Resolve | None, config: Config) -> Path:
    """The path of the model. A name that is not a path is looked up, and fetched if it is not stored yet."""
    if not isinstance(model, str | Path) or not str(model):
        raise InvalidRequest(f"model is {model!r}; give a name, or the path of a file or folder.", field="model")
    path = Path(model)
    if path.exists():
        return path
    return Path((resolve or _from_store(config))(str(model)))


def _with_draft(config: Config, resolve: Resolve | None) -> Config:
    """Return the settings with the path of the draft model."""
    if config.speculation.draft is None:
        return config
    path = _path(config.speculation.draft, resolve, config)
    return replace(config, speculation=replace(config.speculation, draft=str(path)))


def _from_store(config: Config) -> Resolve:
    """Look names up as `quire run` does: a model that is not stored yet is fetched."""
    store = import_module("quire.store.store")  # at first use: a path does not need the store
    resolve: Resolve = store.open_store(config).resolve
    return resolve
