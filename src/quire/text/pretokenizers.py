"""Rules that cut text into words before BPE merges, by their name in `tokenizer.ggml.pre`.

A GGUF file holds the vocabulary and the merges but only the *name* of the cutting rule. The rules below are those of
the `tokenizer.json` that each family of models was published with; "default" has no such file and means what the
container's own implementation does for it. A wrong rule still yields text, only worse, so an unknown name is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers
from tokenizers import pre_tokenizers as pre

from quire.text.errors import UnsupportedTokenizer

_SUFFIX = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE_SUFFIX = f"(?i:{_SUFFIX})"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_OTHER_OR_PATH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_EDGE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_GPT2 = rf"{_SUFFIX}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = rf"{_ANY_CASE_SUFFIX}|{_EDGE}\p{{L}}+|\p{{N}}{{1,3}}|{_OTHER}|{_LINES}|{_SPACES}"
_QWEN2 = rf"{_ANY_CASE_SUFFIX}|{_EDGE}\p{{L}}+|\p{{N}}|{_OTHER}|{_LINES}|{_SPACES}"
_TEKKEN = rf"{_EDGE}{_UPPER}*{_LOWER}+|{_EDGE}{_UPPER}+{_LOWER}*|\p{{N}}|{_OTHER_OR_PATH}|{_LINES}|{_SPACES}"
_GPT4O = (
    rf"{_EDGE}{_UPPER}*{_LOWER}+{_ANY_CASE_SUFFIX}?|{_EDGE}{_UPPER}+{_LOWER}*{_ANY_CASE_SUFFIX}?"
    rf"|\p{{N}}{{1,3}}|{_OTHER_OR_PATH}|{_LINES}|{_SPACES}"
)
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACES}"
)


def _splits(*patterns: str) -> Any:
    """Cut by each pattern in turn (both matches and gaps are words), then spell bytes."""
    cuts = [pre.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre.Sequence([*cuts, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> Any:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> Any:
    return pre.Sequence([pre.Digits(individual_digits=True), _gpt2()])


def _falcon() -> Any:
    threes = pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    return pre.Sequence([pre.Punctuation("contiguous"), _gpt2(), pre.Digits(individual_digits=False), threes])


def _deepseek_coder() -> Any:
    patterns = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"]
    cuts = [pre.Split(Regex(pattern), "isolated") for pattern in patterns]
    spell = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre.Sequence([*cuts, pre.Digits(individual_digits=True), spell])


@dataclass(frozen=True, slots=True)
class Cutting:
    """One rule. `whole_words`: a word that is a token is not merged from its parts."""

    build: Callable[[], Any]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False

    def normalizer(self) -> Any:
        return normalizers.NFC() if self.nfc else None


_BY_LLAMA3 = Cutting(lambda: _splits(_LLAMA3), whole_words=True, add_bos=True)
_BY_DIGITS = Cutting(_digits)
_BY_QWEN2 = Cutting(lambda: _splits(_QWEN2), nfc=True)

CUTTINGS: dict[str, Cutting] = {
    "default": Cutting(lambda: _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": Cutting(_gpt2),
    "phi-2": Cutting(_gpt2),
    "smollm": _BY_DIGITS,
    "starcoder": _BY_DIGITS,
    "refact": _BY_DIGITS,
    "command-r": Cutting(_digits, nfc=True),
    "falcon": Cutting(_falcon),
    "llama-bpe": _BY_LLAMA3,
    "llama3": _BY_LLAMA3,
    "llama-v3": _BY_LLAMA3,
    "smaug-bpe": Cutting(lambda: _splits(_LLAMA3)),
    "qwen2": _BY_QWEN2,
    "deepseek-r1-qwen": Cutting(lambda: _splits(_QWEN2)),
    "stablelm2": Cutting(lambda: _splits(_QWEN2)),
    "tekken": Cutting(lambda: _splits(_TEKKEN), whole_words=True, add_bos=True),
    "gpt-4o": Cutting(lambda: _splits(_GPT4O)),
    "deepseek-coder": Cutting(_deepseek_coder),
    "deepseek-v3": Cutting(lambda: _splits(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK3)),
}


def cutting(name: str) -> Cutting:
    """The rule of that name."""
    if name not in CUTTINGS:
        raise UnsupportedTokenizer(
            f"The model file names the pre-tokenizer {name!r}, which Quire does not know. Known: "
            f"{', '.join(sorted(CUTTINGS))}. Use a checkpoint folder with a tokenizer.json instead."
        )
    return CUTTINGS[name]
