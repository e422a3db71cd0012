"""What a speech model's files say: its front end, its special tokens, and the tokens that it must not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from quire.speech.mel import MelFrontEnd
from quire.types.errors import InvalidRequest

START, PREVIOUS, END = "<|startoftranscript|>", "<|startofprev|>", "<|endoftext|>"
TRANSCRIBE, TRANSLATE, NO_TIMES = "<|transcribe|>", "<|translate|>", "<|notimestamps|>"
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # new files, old files
SECONDS_PER_STEP = 0.02  # between two timestamps
MEDIAN_WIDTH = 7  # unless config.json says otherwise
MAX_INITIAL = 50  # the first segment begins within a second, unless generation_config.json says otherwise


class TextCoder(Protocol):
    """The part of a tokenizer that is needed."""

    def encode(self, text: str, *, add_bos: bool, add_eos: bool) -> Sequence[int]: ...
    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str: ...
    def tokens_named(self, names: Any) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class SpeechModel:
    """One speech model. Tokens are ids of its vocabulary."""

    front_end: MelFrontEnd
    coder: TextCoder
    special: Mapping[str, int]
    languages: Mapping[str, int]  # by code, such as "en"; empty: the model knows English alone
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    max_initial: int | None
    max_text: int  # tokens that the decoder holds: prompt and answer
    num_aligned: int = 0  # heads by whose attention words are found; 0: the files name none
    head_dim: int = 64
    median_width: int = MEDIAN_WIDTH  # steps over which their attention is smoothed

    @property
    def is_multilingual(self) -> bool:
        """Does it know several languages, and how to translate?"""
        return bool(self.languages) and TRANSLATE in self.special

    @property
    def first_timestamp(self) -> int:
        """The token of 0.00 s; those of later times follow it."""
        return self.special[NO_TIMES] + 1

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return self.special[END]

    @property
    def no_speech(self) -> int | None:
        """The token for silence; None: the model has none."""
        return next((self.special[name] for name in NO_SPEECH if name in self.special), None)

    def language_token(self, code: str) -> int:
        """Return the token of a language. An unknown one is refused with those that are known."""
        if not self.languages and code == "en":
            raise ValueError("a model of one language has no token for it")
        if code not in self.languages:
            known = ", ".join(sorted(self.languages)) or "en"
            raise InvalidRequest(f"language is {code!r}; this model knows {known}.", field="language")
        return self.languages[code]


def read_speech_model(
    preprocessor: Mapping[str, Any], generation: Mapping[str, Any], config: Mapping[str, Any], coder: TextCoder
) -> SpeechModel:
    """Read preprocessor_config.json, generation_config.json and config.json."""
    names = (START, PREVIOUS, END, TRANSCRIBE, TRANSLATE, NO_TIMES, *NO_SPEECH)
    special = coder.tokens_named(names)
    if missing := [name for name in (START, END, NO_TIMES) if name not in special]:
        raise InvalidRequest(f"The tokenizer lacks {', '.join(missing)}: this is not a speech model.", field="model")
    declared = generation.get("lang_to_id")
    codes = [f"<|{code}|>" for code in LANGUAGES] if not isinstance(declared, Mapping) else list(declared)
    languages = {name.strip("<|>"): token for name, token in coder.tokens_named(codes).items()}
    if TRANSLATE not in special or generation.get("is_multilingual") is False:
        languages = {}
    return SpeechModel(
        MelFrontEnd.read(preprocessor),
        coder,
        special,
        languages,
        _ids(generation.get("suppress_tokens") or config.get("suppress_tokens")),
        _ids(generation.get("begin_suppress_tokens") or config.get("begin_suppress_tokens")),
        generation.get("max_initial_timestamp_index", MAX_INITIAL),
        int(config.get("max_target_positions", 448)),
        len({tuple(pair) for pair in generation.get("alignment_heads") or config.get("alignment_heads") or ()}),
        int(config.get("d_model", 0)) // max(1, int(config.get("decoder_attention_heads", 1))),
        int(config.get("median_filter_width", MEDIAN_WIDTH)),
    )


def _ids(given: Any) -> tuple[int, ...]:
    return tuple(int(token) for token in given if int(token) >= 0) if isinstance(given, Sequence) else ()


# Codes of the languages that Whisper was trained on.
_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = tuple(_CODES.split(" "))
