"""Rules that cut text into words, against the `regex` package.

The patterns here are written out as the container's own implementation has them. They are applied one after the other
to every word so far: matches and the gaps between them are words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import pytest
import regex

from quire.text.pieces import BYTE_OF
from quire.text.pretokenizers import CUTTINGS, cutting
from tests.text.varied_texts import varied_texts

pytestmark = pytest.mark.pure

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
SUFFIX = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
WORD, OTHER = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = rf"{SUFFIX}|{WORD}|\p{{N}}{{1,3}}|{OTHER}|{ENDS}"
QWEN2 = rf"{SUFFIX}|{WORD}|\p{{N}}|{OTHER}|{ENDS}"
EDGE, UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
CASED = rf"{EDGE}{UPPER}*{LOWER}+%s|{EDGE}{UPPER}+{LOWER}*%s"
GPT4O = CASED.replace("%s", f"{SUFFIX}?") + rf"|\p{{N}}{{1,3}}|{PATH}|{ENDS}"
HAN = GPT4O.replace(UPPER, rf"(?!\p{{Han}}){UPPER}").replace(LOWER, rf"(?!\p{{Han}}){LOWER}")
for group in (UPPER, LOWER):
    HAN = HAN.replace(rf"(?!\p{{Han}}){group}", rf"(?:(?!\p{{Han}}){group})")
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{ENDS}"
)
LETTERS_WITH_CASE = r"[\p{Lu}\p{Ll}\p{Lt}]"
KANA, BLOOM = "[一-龥぀-ゟ゠-ヿ]+", r" ?[^(\s|.,!?…。，、।۔،)]+"
FALCON = [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9]+", "[0-9][0-9][0-9]"]

PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "trillion", "granite-docling", "gigachat", "exaone4"), (GPT2,)),
    **dict.fromkeys(("a.x-4.0", "mellum", "mpt", "olmo", "roberta-bpe", "modern-bert", "jina-v2-code"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", GPT2)),
    **dict.fromkeys(("minerva-7b", "mellum2"), (r"\p{N}", GPT2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), (CL100K,)),
    **dict.fromkeys(("lfm2", "smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), (CL100K,)),
    "jais-2": (
        CL100K.removesuffix(r"|\s+(?!\S)|\s+")
        + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
        + r"|\s{1,2}(?!\S)|\s{1}",),
    "minicpm5": (r"\p{N}{1,3}", CL100K.replace("{1,3}", "+")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"), (QWEN2,)),
    **dict.fromkeys(("solar-open", "kormo", "f2llmv2"), (QWEN2,)),
    "qwen35": (
        rf"{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{ENDS}",),
    "laguna": (r"[^\n]+|[\n]+", QWEN2),
    "seed-coder": (rf"{SUFFIX}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{ENDS}",),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{WORD}|\p{{N}}|{OTHER}|\s*[\r\n]|\s+(?!\S)|\s+",),
    ),
    "exaone-moe": (
        rf"{SUFFIX}|{EDGE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",),
    "tekken": (CASED.replace("%s", "") + rf"|\p{{N}}|{PATH}|{ENDS}",),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"), (GPT4O,)),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)),
    "youtu": (
        f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{KANA}",
        GPT4O.replace("{1,3}", ""),
    ),
    "kimi-k2": (rf"\p{{Han}}+|{HAN}".replace(PATH, OTHER),),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), (r"\p{N}{1,3}", KANA, DEEPSEEK3)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (BLOOM,)),
    "viking": (BLOOM, r"\p{N}"),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "chameleon": (
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]", GPT2,
    ),
}  # fmt: skip
WITH_BOUNDARY = ("tiny_aya", "cohere2moe")  # the two libraries differ on whether ½ belongs to a word
HARD = [
    "I'LL we'Re it's 'S'm'D don’t", "1234567 12 007 1,234.5 ١٢٣٤٥ ½Ⅷ ①② 1a22b333c4444",
    "日本語のテスト、中文 漢字カタカナ!",
    "한국어 문장 ㄱㄴ ㅏ", "สวัสดีครับ 123 ลาก่อน", "नमस्ते दुनिया বাংলা", "a\u0301b e\u0301\u0302 \u0301x",
    "👍🏽 👨‍👩‍👧‍👦! 🇩🇪x ❤️",
    "  two   three    four \t\ttab \n\n\n lines \r\n\r\n end  ", " " * 700 + "x" + " " * 130 + "\n" + " " * 6 + "y",
    "def f(x):\n    return x**2 # /path/to\n\tif(a!=b){}\n", "camelCaseHTTPServer iPhone McDonald ÉCOLE École ǅungla",
    "a b c d e f", "x=foo(bar)/baz", "…。，、।۔،!?(|)", "<sentinel:12> IMGIMGABCDZ IMGIMGZ",
    "「こんにちは」——“x”‘y’：；，",
]  # fmt: skip


def by_patterns(text: str, patterns: Sequence[str]) -> list[str]:
    """Cut by each pattern in turn."""
    words = [text] if text else []
    for pattern in patterns:
        parts: list[str] = []
        for word in words:
            place = 0
            for match in regex.finditer(pattern, word):
                parts += [word[place : match.start()], match[0]]
                place = match.end()
            parts.append(word[place:])
        words = [part for part in parts if part]
    return words


def cut(name: str, text: str) -> list[str]:
    words = [word for word, _ in CUTTINGS[name].build().pre_tokenize_str(text)]
    return [bytes(BYTE_OF[char] for char in word).decode() for word in words]


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_a_rule_cuts_like_the_patterns_of_its_name(name: str) -> None:
    for text in [*HARD, *varied_texts(400)]:
        unequal = ("Cn", "Co", "Nl", "No") if name in WITH_BOUNDARY else ("Cn", "Co")
        if all(unicodedata.category(char) not in unequal for char in text):
            assert cut(name, text) == by_patterns(text, PATTERNS[name]), text


def test_every_name_is_compared_or_has_a_reason() -> None:
    same = {"jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v5-nano"}  # as gpt-2, llama3
    own = {"falcon", "deepseek-llm"}  # below
    assert set(CUTTINGS) - set(PATTERNS) == same | own


def test_falcon_cuts_plain_text_like_the_patterns_of_its_name() -> None:
    """Its file looks for digits among spelled bytes, where parts of other scripts look like digits."""
    plain = [text for text in [*HARD, *varied_texts(400)] if text.isascii()]
    assert len(plain) > 50
    for text in plain:
        assert cut("falcon", text) == by_patterns(text, FALCON), text


def test_deepseek_llm_separates_scripts_and_digits() -> None:
    assert cut("deepseek-llm", "Hello мир 12,日本 ab\u0e2a\u0e27x\n \n") == [
        "Hello", " мир", " ", "1", "2", ",", "日本", " ab", "\u0e2a\u0e27", "x", "\n", " ", "\n",
    ]  # fmt: skip
    latin = [text for text in HARD if text.isascii() and not any(char.isdigit() for char in text)]
    patterns = ["[\r\n]", rf"\s?{LETTERS_WITH_CASE}+", r"\s?[!-/:-~]+", r"\s+$"]
    assert latin and all(cut("deepseek-llm", text) == by_patterns(text, patterns) for text in latin)


def test_a_name_with_merges_switched_off_or_a_first_token_is_as_published() -> None:
    llama = cutting("falcon3")
    assert llama.whole_words and llama.add_bos and cutting("tekken").whole_words and cutting("chameleon").add_bos
    assert not any(cutting(name).add_bos for name in ("glm4", "qwen2", "deepseek-llm", "smaug-bpe", "olmo"))
    composed = ("qwen2", "qwen35", "command-r", "olmo", "mpt", "seed-coder", "minimax-m2")
    assert all(cutting(name).normalizer().normalize_str("e\u0301ﬁ") == "éﬁ" for name in composed)
    assert cutting("exaone").normalizer().normalize_str("e\u0301ﬁ") == "éfi" and cutting("gpt-2").normalizer() is None
