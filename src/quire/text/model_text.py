"""How text becomes a model's tokens and back: tokenizer, chat template, preset, ends, and marks of calls and thoughts.

All of this runs beside the engine, not in it: encoding, templates and detokenization cost the step loop nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.text.checkpoint_files import (
    GENERATION,
    MODEL_CONFIG,
    PREPROCESSOR,
    SOURCE_PIECES,
    SPEECH_EXTRACTOR,
    TIKTOKEN,
    TOKENIZER,
    read_object,
)
from quire.text.detokenize import Detokenizer
from quire.text.embedding_rules import EmbeddingRules, gguf_rules, read_rules
from quire.text.infill import Infill, find_infill
from quire.text.pair_prompts import pair_prompt_of
from quire.text.parsers.reasoning import Reasoning, reasoning_of
from quire.text.preset import read_preset
from quire.text.sampling_defaults import read_sampling_defaults
from quire.text.source_text import SourceText, greedy_unless_set, read_source_text, source_of_gguf
from quire.text.template import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.types.defaults import SamplingDefaults
from quire.types.errors import InvalidRequest, WrongKind
from quire.types.kinds import TRANSCRIBE, RequestKind
from quire.types.preset import Preset
from quire.types.request import SamplingParams

if TYPE_CHECKING:
    from quire.speech.model import SpeechModel
    from quire.text.go_chat import GoChatTemplate
    from quire.text.parsers.style import ToolStyle

NO_PRESET, NO_DEFAULTS = Preset(), SamplingDefaults()


class ModelText:
    """One model's text side. Without a tokenizer, prompts and answers are token ids."""

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
        self.template = _go_template(preset.template) if preset.template else template
        self.preset = preset
        self.defaults = defaults
        self.folder: Path | None = None  # of its files, if they are apart
        self.source: SourceText | None = None  # of models with an encoder
        self.embedding = EmbeddingRules()  # of models that make vectors
        self.eos_ids = tuple(sorted({*eos_ids, *(tokenizer.eos_ids if tokenizer else ())}))
        self._pack: Callable[[], bytes] | None = None  # makes the bundle of the files that it was read from

    @classmethod
    def from_files(
        cls, folder: Path, metadata: Mapping[str, Any], eos_ids: Sequence[int], *, is_gguf: bool, uses_defaults: bool
    ) -> ModelText:
        """Read a model's text side: from the metadata of a GGUF file, else from the files of its folder.

        The preset is read from the folder in both cases. `uses_defaults`: apply the model's own sampling defaults.
        """
        made = cls._from_files(folder, metadata, eos_ids, is_gguf=is_gguf, uses_defaults=uses_defaults)
        arguments = (folder, metadata, eos_ids)
        made._pack = lambda: _bundles().pack_text(*arguments, is_gguf=is_gguf, uses_defaults=uses_defaults)
        return made

    @classmethod
    def from_bundle(cls, data: bytes, folder: Path) -> ModelText:
        """Read the text side that another process has packed. `folder` gets its files."""
        bundle = _bundles().read_bundle(data)
        bundle.write_files(folder)
        more = {"is_gguf": bundle.is_gguf, "uses_defaults": bundle.uses_defaults}
        made = cls._from_files(folder, bundle.metadata, bundle.eos_ids, **more)
        made._pack = lambda: data
        return made

    @classmethod
    def _from_files(
        cls, folder: Path, metadata: Mapping[str, Any], eos_ids: Sequence[int], *, is_gguf: bool, uses_defaults: bool
    ) -> ModelText:
        preset = read_preset(folder)
        defaults = read_sampling_defaults(folder, metadata, preset, of_model=uses_defaults)
        if is_gguf:
            tokenizer = Tokenizer.from_gguf(metadata)
            template = ChatTemplate.from_gguf(metadata, tokenizer.named_tokens)
            made = cls(tokenizer, template, eos_ids, preset, defaults, find_infill(tokenizer, metadata))
            rules = gguf_rules(metadata)
            made.embedding = replace(rules, pair=pair_prompt_of(template, metadata, rules))
            made.source = source_of_gguf(metadata)
            return made if made.source is None else made._greedy({})
        if not any((folder / name).is_file() for name in (TOKENIZER, TIKTOKEN, SOURCE_PIECES)):
            return cls(None, ChatTemplate(None), eos_ids, preset, defaults)._with_rules(folder, metadata)
        ends = read_object(folder / GENERATION).get("eos_token_id") or []
        tokenizer = Tokenizer.from_folder(folder, ends if isinstance(ends, list) else [ends])
        template = ChatTemplate.from_folder(folder, tokenizer.named_tokens)
        made = cls(tokenizer, template, eos_ids, preset, defaults, find_infill(tokenizer, {}))
        return made._with_rules(folder, metadata)

    def _with_rules(self, folder: Path, metadata: Mapping[str, Any]) -> ModelText:
        rules = read_rules(folder, metadata)
        self.embedding = replace(rules, pair=pair_prompt_of(self.template, metadata, rules))
        generation = read_object(folder / GENERATION)
        self.folder, self.source = folder, read_source_text(metadata, generation)
        return self if self.source is None else self._greedy(generation)

    def _greedy(self, generation: Mapping[str, Any]) -> ModelText:
        self.defaults = greedy_unless_set(self.defaults, generation)
        return self

    @cached_property
    def bundle(self) -> bytes:
        """The files that it was read from, packed for a gateway; empty if it was not read from files."""
        return b"" if self._pack is None else self._pack()

    @cached_property
    def digest(self) -> str:
        """Equal digests make equal tokens. Takes up to 0.1 s at first: call it in a thread."""
        return str(_bundles().bundle_digest(self.bundle)) if self.bundle else ""

    @property
    def has_digest(self) -> bool:
        """Is its digest known already?"""
        return "digest" in self.__dict__

    @cached_property
    def style(self) -> ToolStyle:
        """How this model writes tool calls."""
        registry = import_module("quire.text.parsers.registry")  # at first use: most conversations have no tools
        style: ToolStyle = registry.style_of(self.template.sources.values())
        return style

    @cached_property
    def speech(self) -> SpeechModel | None:
        """How this model transcribes; None: it is no speech model."""
        preprocessor = {} if self.folder is None else read_object(self.folder / PREPROCESSOR)
        if self.folder is None or preprocessor.get("feature_extractor_type") != SPEECH_EXTRACTOR:
            return None
        files = (read_object(self.folder / name) for name in (GENERATION, MODEL_CONFIG))
        module = import_module("quire.speech.model")  # at first use: it needs numpy
        model: SpeechModel = module.read_speech_model(preprocessor, *files, self.tokenizer)
        return model

    def needed_speech(self, kinds: Iterable[RequestKind]) -> SpeechModel:
        """How this model transcribes; raises if it cannot, with what it can do instead: `kinds`."""
        if self.speech is None:
            raise WrongKind(TRANSCRIBE, kinds, "Use a Whisper model.")
        return self.speech

    @cached_property
    def reasoning(self) -> Reasoning | None:
        """How this model writes thoughts; None: it does not think."""
        return reasoning_of(self.template.sources.values())

    def mark_tokens(self, marks: Collection[str]) -> dict[str, int]:
        """Those of the marks that are tokens of the vocabulary, with their ids."""
        return {} if self.tokenizer is None else self.tokenizer.tokens_named(marks)

    def encode(self, prompt: str, framed: bool = True, max_tokens: int | None = None) -> tuple[int, ...]:
        """Encode a plain text. Names of special tokens in it are just text.

        `framed`: with the tokens that the model's own rule puts before and after a text.
        `max_tokens`: a text that is far longer is refused before all of it is encoded.
        """
        return tuple(self.needed_tokenizer().encode(prompt, add_bos=framed, add_eos=framed, max_tokens=max_tokens))

    def encode_infill(self, prefix: str | Sequence[int], suffix: str, max_tokens: int | None = None) -> tuple[int, ...]:
        """Encode a request for the text between the two."""
        tokenizer = self.needed_tokenizer()
        if self.infill is None:
            raise InvalidRequest(
                "suffix is not supported by this model: its vocabulary has no tokens for filling in the middle. Use a "
                "code model that has them, such as Qwen2.5-Coder, or leave suffix out.",
                field="suffix",
            )
        before = self.encode(prefix, framed=False, max_tokens=max_tokens) if isinstance(prefix, str) else tuple(prefix)
        tokens = self.infill.prompt(before, tokenizer.encode_after(suffix, max_tokens))
        return (*tokenizer.prefix, *tokens)

    def encode_rendered(self, text: str, max_tokens: int | None = None) -> tuple[int, ...]:
        """Encode what the template wrote: names of special tokens are these tokens. `max_tokens`: as in `encode`."""
        add_bos = not self.template.writes_bos
        encode = self.needed_tokenizer().encode
        return tuple(encode(text, special=True, add_bos=add_bos, add_eos=False, max_tokens=max_tokens))

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text, special tokens by name; empty without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(tokens, skip_special=False)

    def detokenizer(
        self, sampling: SamplingParams, *, continues: bool = False, shown: Collection[int] = ()
    ) -> Detokenizer | NullDetokenizer:
        """Make the detokenizer of one answer; the arguments are those of `Detokenizer`."""
        if self.tokenizer is None and not sampling.stop:
            return NullDetokenizer()
        stop, least = tuple(sampling.stop), sampling.min_tokens
        return Detokenizer(self.needed_tokenizer(), stop, min_tokens=least, continues=continues, shown=shown)

    def needed_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises if the model came without one."""
        if self.tokenizer is None:
            raise InvalidRequest("The model came without a tokenizer: give token ids, not text.", field="prompt")
        return self.tokenizer


class NullDetokenizer:
    """The detokenizer of a model without a tokenizer: it counts tokens and returns no text."""

    stopped_by: str | None = None

    def __init__(self) -> None:
        self.num_tokens = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Count the tokens."""
        self.num_tokens += len(tokens)
        return ""

    def flush(self) -> str:
        """Return nothing: no text is held back."""
        return ""


def _bundles() -> Any:
    return import_module("quire.text.bundle")  # at first use: only servers behind a gateway need it


def _go_template(source: str) -> GoChatTemplate:
    """Read a preset's template, which is in Go's dialect."""
    go_chat = import_module("quire.text.go_chat")  # at first use: most models have no such template
    template: GoChatTemplate = go_chat.GoChatTemplate(source)
    return template
