"""Rules that cut text into words before BPE merges, by their name in `tokenizer.ggml.pre`.

A GGUF file holds the vocabulary and the merges but only the *name* of the cutting rule. The rules below are those of
the `tokenizer.json` that each family of models was published with; "default" has no such file and means what the
container's own implementation does for it. A wrong rule still yields text, only worse, so an unknown name is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

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
_CHINESE_TO_KOREAN = "[一-龥ࠀ-一가-\ud7ff]+"
_CHINESE_OR_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
_CASED = (  # letters of the scripts with case, Georgian and Cherokee among them
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def _by_case(upper: str, lower: str, suffix: str) -> str:
    """Words with a capital letter only at their beginning."""
    return rf"{_EDGE}{upper}*{lower}+{suffix}|{_EDGE}{upper}+{lower}*{suffix}"


def _words(word: str = r"\p{L}+", number: str = r"\p{N}", other: str = _OTHER, spaces: str = _SPACES) -> str:
    """The rule of OpenAI's cl100k, whose parts others have changed."""
    return rf"{_ANY_CASE_SUFFIX}|{_EDGE}{word}|{number}|{other}|{_LINES}|{spaces}"


_GPT2 = rf"{_SUFFIX}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_THREE_DIGITS = r"\p{N}{1,3}"
_LLAMA3 = _words(number=_THREE_DIGITS)
_QWEN2 = _words()
_QWEN35 = _words(r"[\p{L}\p{M}]+", other=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_SEED = _words(other=r" ?[^\s\p{L}\p{N}\r\n]+")
_JAIS2 = _words(
    number=_THREE_DIGITS,
    spaces="|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s{1}",
)
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_EDGE}\p{{L}}+|\p{{N}}|{_OTHER}|\s*[\r\n]|{_SPACES}"
_EXAONE_MOE = (
    rf"{_ANY_CASE_SUFFIX}|{_EDGE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
_TEKKEN = rf"{_by_case(_UPPER, _LOWER, '')}|\p{{N}}|{_OTHER_OR_PATH}|{_LINES}|{_SPACES}"
_GPT4O = rf"{_by_case(_UPPER, _LOWER, f'{_ANY_CASE_SUFFIX}?')}|{_THREE_DIGITS}|{_OTHER_OR_PATH}|{_LINES}|{_SPACES}"
_YOUTU = _GPT4O.replace(_THREE_DIGITS, r"\p{N}")
_NOT_HAN_UPPER, _NOT_HAN_LOWER = (f"[{group[1:-1]}&&[^\\p{{Han}}]]" for group in (_UPPER, _LOWER))
_KIMI = (
    rf"\p{{Han}}+|{_by_case(_NOT_HAN_UPPER, _NOT_HAN_LOWER, f'{_ANY_CASE_SUFFIX}?')}|{_THREE_DIGITS}|{_OTHER}"
    rf"|{_LINES}|{_SPACES}"
)
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SCRIPTS = (  # Korean, full-width punctuation, Bopomofo, and Chinese with Japanese
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_CHINESE_OR_KANA}"
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


@dataclass(frozen=True, slots=True)
class Cutting:
    """One rule. `whole_words`: a word that is a token is not merged from its parts. `form`: text is brought into this
    normal form of Unicode first."""

    build: Callable[[], Any]
    whole_words: bool = False
    add_bos: bool = False
    form: Literal["NFC", "NFKC"] | None = None

    def normalizer(self) -> Any:
        return None if self.form is None else getattr(normalizers, self.form)()


def _by(*patterns: str, **options: Any) -> Cutting:
    return Cutting(lambda: _splits(*patterns), **options)


_RULES: dict[str, Cutting] = {  # by the names of the models that have each
    "default": _by(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2 phi-2 jais trillion granite-docling gigachat a.x-4.0 mellum exaone4 modern-bert roberta-bpe jina-es jina-de"
    " jina-v1-en jina-v2-es jina-v2-de jina-v2-code": Cutting(_gpt2),
    "mpt olmo": Cutting(_gpt2, form="NFC"),
    "smollm starcoder refact codeshell minerva-7b mellum2": Cutting(_digits),
    "exaone": Cutting(_digits, form="NFKC"),
    "command-r": Cutting(_digits, form="NFC"),
    "falcon": Cutting(_falcon),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _by(
        _LLAMA3, whole_words=True, add_bos=True
    ),
    "smaug-bpe dbrx glm4 chatglm-bpe": _by(_LLAMA3),
    "jais-2": _by(_JAIS2),
    "minicpm5": _by(_THREE_DIGITS, _words(number=r"\p{N}+"), whole_words=True),
    "qwen2": _by(_QWEN2, form="NFC"),
    "deepseek-r1-qwen stablelm2 hunyuan megrez grok-2 solar-open kormo f2llmv2": _by(_QWEN2),
    "qwen35": _by(_QWEN35, form="NFC"),
    "laguna": _by(r"\n+", _QWEN2),
    "seed-coder": _by(_SEED, form="NFC"),
    "bailingmoe bailingmoe2 llada-moe": _by(_BAILING),
    "exaone-moe": _by(_EXAONE_MOE),
    "tekken": _by(_TEKKEN, whole_words=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie": _by(_GPT4O),
    "minimax-m2": _by(_GPT4O, form="NFC"),
    "granite-embed-multi-97m": _by(_GPT4O, whole_words=True),
    "tiny_aya cohere2moe": _by(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O),
    "youtu": _by(_SCRIPTS, _YOUTU, whole_words=True),
    "kimi-k2": _by(_KIMI, whole_words=True),
    "deepseek-llm": _by(
        "[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CHINESE_TO_KOREAN, r"\p{N}"
    ),
    "deepseek-coder": _by("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_TO_KOREAN, r"\p{N}"),
    "deepseek-v3 hunyuan-dense joyai-llm": _by(_THREE_DIGITS, _CHINESE_OR_KANA, _DEEPSEEK3),
    "bloom poro-chat gpt3-finnish": _by(_BLOOM),
    "viking": _by(_BLOOM, r"\p{N}"),
    "superbpe": _by(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "chameleon": _by(
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]", _GPT2, add_bos=True,
    ),
}  # fmt: skip
CUTTINGS = {name: rule for names, rule in _RULES.items() for name in names.split()}


def cutting(name: str) -> Cutting:
    """The rule of that name."""
    if name not in CUTTINGS:
        raise UnsupportedTokenizer(
            f"The model file names the pre-tokenizer {name!r}, which Quire does not know. Known: "
            f"{', '.join(sorted(CUTTINGS))}. Use a checkpoint folder with a tokenizer.json instead."
        )
    return CUTTINGS[name]
