"""Text of every kind that a tokenizer meets, the same at every run."""

from __future__ import annotations

import random

SPECIAL_NAMES = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<|eot_id|>", "<0x0A>"]

FRAGMENTS = [
    "Hello", " world", "the", " The quick brown fox", "don't", "I'LL", "we've", "it's", "'S", "O'Brien", "naïve",
    "straße", "ﬁne", "Ω", "ﷺ", "İstanbul", "ǅ", "日本語", "中文字符", "你好，世界！", "한국어 문장", "สวัสดี",
    "مرحبا بالعالم",
    "שלום", "नमस्ते", "Привет, мир", "Ελλάδα", "é", "e\u0301", "n\u0303o", "a\u0300\u0301\u0302", "\u0301", "👍", "👍🏽",
    "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "𝓗𝓮𝓵𝓵𝓸", "𠀋", "\U0010ffff", "0", "1", "42", "007", "3.14159", "1,000,000",
    "2024-02-29", "٣٤٥", "½", "Ⅷ", "x²", "a1b2c3", "v1.2.3", " ", "  ", "   ", " " * 7, " " * 40, "\t", "\t\t", "\n",
    "\n\n", "\r\n", "\r", "\n \n", " \n", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\u2028", "\x00", "\x01",
    "\x04", "\x1b[31m", "\x7f", "\x85", "!", "?!", "...", "…", "—", "(", ")", "[]", "{}", "=>", "!=", "&&", "||", "//",
    "/*", "*/", "#", "$x", "@", "\\n", "\\", "`", "```python\n", "<", ">", "</div>", "<a href='x'>", "snake_case",
    "camelCase", "SCREAMING", "def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\t\n}",
    "SELECT * FROM t WHERE a='b';", '{"key": [1, 2.5, null]}', "https://example.com/a?b=c&d=%20e", "user@example.com",
    "C:\\Users\\x", "a" * 50, "ha" * 30, "=" * 80, "1" * 60, "é" * 20, "▁", "▁▁x", "Ġ", "Ċ", "\uffff", "\ufffd",
    *SPECIAL_NAMES,
]  # fmt: skip


def varied_texts(count: int = 1500, seed: int = 7) -> list[str]:
    """Each fragment alone, then random runs of fragments, then random characters of many scripts."""
    rng = random.Random(seed)
    texts = ["", *FRAGMENTS]
    while len(texts) < count * 3 // 4:
        texts.append("".join(rng.choices(FRAGMENTS, k=rng.randint(2, 12))))
    blocks = [(0, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x6FF), (0x900, 0xDFF), (0x1E00, 0x2BFF),
              (0x3000, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xFFFF), (0x10000, 0x1FAFF), (0x20000, 0x2A6DF)]  # fmt: skip
    while len(texts) < count:
        low, high = rng.choice(blocks)
        texts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 30))))
    return texts
