"""Words on one side, tokens on the other: prompts become requests, and news of requests become text.

What runs here runs beside the engine, not in it: encoding, templates, stop strings and detokenization cost the step
loop nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from quire.engine.messages import Accepted, Failed, Finished, News, Tokens
from quire.models.config import read_config
from quire.models.registry import find_architecture
from quire.text.checkpoint_files import GENERATION, TOKENIZER, read_object
from quire.text.detokenize import Detokenizer
from quire.text.infill import Infill, find_infill
from quire.text.preset import begun, read_preset
from quire.text.sampling_defaults import read_sampling_defaults
from quire.text.template import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.types.answer import Completion, Delta, Sample, Usage
from quire.types.defaults import SamplingDefaults
from quire.types.errors import InvalidRequest, QuireError
from quire.types.message import Message as GivenMessage
from quire.types.preset import Preset
from quire.types.request import Constraint, FinishReason, GenerateRequest, SamplingParams
from quire.types.step import TokenLogprobs
from quire.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from quire.text.go_chat import GoChatTemplate

Message = Mapping[str, Any]
Prompt = str | Sequence[int]
StopFound = Callable[[str, int], None]  # request id, sample

NO_PRESET, NO_DEFAULTS = Preset(), SamplingDefaults()
_COUNT = itertools.count()


class TextSide:
    """One model's tokenizer, template and ends. Without a tokenizer, prompts and answers are token ids."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | GoChatTemplate,
        eos_ids: Sequence[int],
        preset: Preset = NO_PRESET,
        defaults: SamplingDefaults = NO_DEFAULTS,
        infill: Infill | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.infill = infill
        self.template = _stored_template(preset.template) if preset.template else template
        self.preset = preset
        self.defaults = defaults
        self.eos_ids = tuple(sorted({*eos_ids, *(tokenizer.eos_ids if tokenizer else ())}))

    @classmethod
    def of(cls, checkpoint: Checkpoint, sampling_defaults: str = "model") -> TextSide:
        """From the files of a checkpoint, and of a preset beside them. `sampling_defaults` is the setting."""
        folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
        defaults_of = partial(
            read_sampling_defaults, folder, checkpoint.metadata, of_model=sampling_defaults == "model"
        )
        preset = read_preset(folder)
        eos_ids = read_config(checkpoint, find_architecture(checkpoint).keys).eos_ids
        if checkpoint.container == "gguf":
            tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
            template = ChatTemplate.from_gguf(checkpoint.metadata, tokenizer.named_tokens)
            infill = find_infill(tokenizer, checkpoint.metadata)
            return cls(tokenizer, template, eos_ids, preset, defaults_of(preset), infill)
        found, template = _from_folder(folder)
        infill = None if found is None else find_infill(found, {})
        return cls(found, template, eos_ids, preset, defaults_of(preset), infill)

    def encode(self, prompt: Prompt, framed: bool = True, max_tokens: int | None = None) -> tuple[int, ...]:
        """A prompt's tokens. Names of special tokens in a text are just text.

        `framed`: with the tokens that the model's own rule puts before and after a text.
        `max_tokens`: a text that is far longer is refused before all of it is encoded.
        """
        if not isinstance(prompt, str):
            return tuple(map(int, prompt))  # also out of an array
        return tuple(self.needed_tokenizer().encode(prompt, add_bos=framed, add_eos=framed, max_tokens=max_tokens))

    def encode_infill(self, prefix: Prompt, suffix: str, max_tokens: int | None = None) -> tuple[int, ...]:
        """Tokens that ask for the text between the two."""
        tokenizer = self.needed_tokenizer()
        if self.infill is None:
            raise InvalidRequest(
                "suffix is not supported by this model: its vocabulary has no tokens for filling in the middle. Use a "
                "code model that has them, such as Qwen2.5-Coder, or leave suffix out.",
                field="suffix",
            )
        before = self.encode(prefix, framed=False, max_tokens=max_tokens)
        tokens = self.infill.prompt(before, tokenizer.encode_after(suffix, max_tokens))
        return (*tokenizer.prefix, *tokens)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> tuple[int, ...]:
        """A conversation's tokens, up to where the answer begins. The template alone decides how it begins."""
        return self.encode_rendered(self.render(messages, tools))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """A conversation's text, after what the preset begins it with, up to where the answer begins."""
        talk = begun(messages, self.preset, lambda each: each.get("role"), _as_mapping)
        return self.template.render(talk, tools=tools, variables=variables)

    def encode_rendered(self, text: str, max_tokens: int | None = None) -> tuple[int, ...]:
        """Tokens of what the template wrote. `max_tokens`: as in `encode`."""
        add_bos = not self.template.writes_bos
        encode = self.needed_tokenizer().encode
        return tuple(encode(text, special=True, add_bos=add_bos, add_eos=False, max_tokens=max_tokens))

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text, special tokens by their names; none without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(tokens, skip_special=False)

    def detokenizer(
        self, sampling: SamplingParams, *, continues: bool = False, shown: Collection[int] = ()
    ) -> Detokenizer | NullDetokenizer:
        """For one answer, as `Detokenizer` says."""
        if self.tokenizer is None:
            return NullDetokenizer()
        stop, least = tuple(sampling.stop), sampling.min_tokens
        return Detokenizer(self.tokenizer, stop, min_tokens=least, continues=continues, shown=shown)

    def request(
        self, prompt: tuple[int, ...], sampling: SamplingParams | None, constraint: Constraint | None = None
    ) -> GenerateRequest:
        """A request with an id of its own, and with the model's defaults for parameters that are not given."""
        sampling = SamplingParams() if sampling is None else sampling
        sampling = self.defaults.fill(sampling, sampling.given)
        if sampling.stop:
            self.needed_tokenizer()
        return GenerateRequest(f"r{next(_COUNT)}", prompt, sampling, self.eos_ids, constraint=constraint)

    def needed_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises if the model came without one."""
        if self.tokenizer is None:
            raise InvalidRequest("The model came without a tokenizer: give token ids, not text.", field="prompt")
        return self.tokenizer


def _stored_template(source: str) -> GoChatTemplate:
    """A preset's, in Go's dialect."""
    go_chat = import_module("quire.text.go_chat")  # here, because most models bring no such template
    template: GoChatTemplate = go_chat.GoChatTemplate(source)
    return template


def _as_mapping(message: GivenMessage) -> Message:
    return {"role": message.role, "content": message.text}


def _from_folder(folder: Path) -> tuple[Tokenizer | None, ChatTemplate]:
    """tokenizer.json and what stands beside it."""
    if not (folder / TOKENIZER).is_file():
        return None, ChatTemplate(None)
    ends = read_object(folder / GENERATION).get("eos_token_id") or []
    tokenizer = Tokenizer.from_folder(folder, ends if isinstance(ends, list) else [ends])
    return tokenizer, ChatTemplate.from_folder(folder, tokenizer.named_tokens)


class NullDetokenizer:
    """Stands for a detokenizer where there is no tokenizer: tokens are counted, and no text comes of them."""

    stopped_by: str | None = None

    def __init__(self) -> None:
        self.num_tokens = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Nothing."""
        self.num_tokens += len(tokens)
        return ""

    def flush(self) -> str:
        """Nothing either."""
        return ""


@dataclass(slots=True)
class _Sample:
    """One sample while it grows."""

    detokenizer: Detokenizer | NullDetokenizer
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None


class Answer:
    """One request's answer while it comes: `take` turns news into deltas, `completion` is the whole.

    A stop string is found here, so the engine is asked to end that sample (`stop_found`); what still comes is dropped.
    """

    def __init__(
        self, request: GenerateRequest, side: TextSide, stop_found: StopFound, prompt_text: str | None = None
    ) -> None:
        self.request = request
        self._prompt_text = prompt_text
        self._stop_found = stop_found
        self._began = self._latest = time.monotonic()
        self._first: float | None = None
        self._num_hit = 0
        self._num_forced = 0
        self._end_ids = frozenset((*request.sampling.stop_token_ids, *request.eos_token_ids))
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._samples = [_Sample(side.detokenizer(request.sampling)) for _ in range(request.sampling.n)]
        self.error: QuireError | None = None

    @property
    def is_over(self) -> bool:
        """Has every sample ended?"""
        return self.error is not None or all(sample.finish is not None for sample in self._samples)

    def take(self, news: News) -> Delta | None:
        """What these news add. Raises what the engine says the request failed of."""
        if isinstance(news, Accepted):
            return None
        if isinstance(news, Failed):
            self.error = news.error
            raise news.error
        self._num_hit = max(self._num_hit, news.num_hit)
        if not isinstance(news, Finished):
            self._prompt_logprobs += news.prompt_logprobs
        sample = self._samples[news.sample]
        if sample.finish is not None or (not news.tokens and not isinstance(news, Finished)):
            return None
        self._latest = time.monotonic()
        if self._first is None and news.tokens:
            self._first = self._latest
        return self._grow(sample, news.sample, news)

    def _grow(self, sample: _Sample, index: int, news: Tokens | Finished) -> Delta:
        before, shown = sample.detokenizer.num_tokens, news.tokens
        if isinstance(news, Finished) and news.reason is FinishReason.STOP and shown and shown[-1] in self._end_ids:
            shown = shown[:-1]  # like a stop string, the token that ends an answer is not part of its text
        text = sample.detokenizer.push(shown)
        if isinstance(news, Finished):
            text += sample.detokenizer.flush()
            sample.finish = news.reason
        if sample.detokenizer.stopped_by is not None:
            sample.finish = FinishReason.STOP
            if not isinstance(news, Finished):
                self._stop_found(self.request.id, index)
        count = sample.detokenizer.num_tokens - before  # those after a stop string are not part of the answer
        if sample.detokenizer.stopped_by is None:
            count = len(news.tokens)
        tokens, logprobs = news.tokens[:count], news.logprobs[:count]
        self._num_forced += min(news.num_forced, count)
        sample.text.append(text)
        sample.tokens += tokens
        sample.logprobs += logprobs
        usage = self.usage() if sample.finish is not None else None
        return Delta(text, tokens, logprobs, sample.finish, usage, index)

    def usage(self) -> Usage:
        """What it cost so far."""
        return Usage(
            prompt=len(self.request.prompt),
            cached=self._num_hit,
            output=sum(len(sample.tokens) for sample in self._samples),
            first_token_seconds=(self._first or self._latest) - self._began,
            seconds=self._latest - self._began,
            forced=self._num_forced,
        )

    def completion(self) -> Completion:
        """The whole answer, once it is over."""
        samples = [
            Sample("".join(s.text), tuple(s.tokens), s.finish or FinishReason.CANCELLED, tuple(s.logprobs))
            for s in self._samples
        ]
        prompt_logprobs = tuple(self._prompt_logprobs)
        return Completion(tuple(samples), self.request.prompt, self.usage(), prompt_logprobs, self._prompt_text)
