"""Answers that follow a grammar, made token by token: llguidance says what may come, and chance chooses."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import llguidance
import numpy as np

from quire.text.tokenizer import Tokenizer
from quire.types.request import Constraint, ConstraintKind

KEY = "tokenizer.ggml."
CONTROL, USER_DEFINED = 3, 4
PATIENCE = 60  # tokens
# Tokens that bring a value to its end, so that a walk comes to its own.
ENDS = (b'"', b'"}', b"}", b"]", b'",', b'":', b'"]', b"}}")


def with_marks(metadata: Mapping[str, Any], marks: Sequence[str], kind: int) -> Tokenizer:
    """The model's tokenizer, as if it had been trained with these marks as tokens."""
    more = {
        f"{KEY}tokens": [*metadata[f"{KEY}tokens"], *marks],
        f"{KEY}token_type": [*metadata[f"{KEY}token_type"], *[kind] * len(marks)],
    }
    return Tokenizer.from_gguf({**metadata, **more})


class Guide:
    """A tokenizer as llguidance sees it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.num_tokens)]
        self._ends = np.array([token.strip() in ENDS for token in self.tokens])

    @cached_property
    def _native(self) -> llguidance.LLTokenizer:
        guide = self

        class Wrapped:
            eos_token_id, bos_token_id = guide.tokenizer.eos_id, guide.tokenizer.bos_id
            special_token_ids = sorted(guide.tokenizer.special_ids)
            tokens = guide.tokens

            def __call__(self, text: bytes) -> list[int]:
                return guide.tokenizer.encode(text.decode(), add_bos=False, add_eos=False)

        return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapped()), n_vocab=len(self.tokens))

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=True, add_bos=False, add_eos=False)

    def matcher(self, constraint: Constraint) -> llguidance.LLMatcher:
        assert constraint.kind is ConstraintKind.LARK
        matcher = llguidance.LLMatcher(
            self._native, llguidance.LLMatcher.grammar_from_lark(constraint.text), log_level=0
        )
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, constraint: Constraint, text: str) -> bool:
        """Is this, as a model would write it, a whole answer?"""
        matcher, ids = self.matcher(constraint), self.encode(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def walk(
        self, constraint: Constraint, chance: random.Random, begin: str = "", text_end: str | None = None
    ) -> list[int]:
        """The tokens of an answer that begins so. Whatever is allowed may come; later, first what ends a value.

        `text_end` is the mark that ends plain text. It is written where a newline may come, which is in no JSON string.
        """
        matcher, ids = self.matcher(constraint), self.encode(begin)
        assert matcher.try_consume_tokens(ids) == len(ids)
        (newline,), end = self.encode("\n"), self.encode(text_end or "")
        while True:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bits, bitorder="little")[: len(self.tokens)].astype(bool)
            if allowed[self.tokenizer.eos_id] and (len(ids) > PATIENCE or chance.random() < 0.5 or allowed.sum() == 1):
                return ids
            allowed[list(self.tokenizer.eos_ids)] = False
            if end and allowed[newline] and allowed.sum() > 1000 and chance.random() < 0.2:
                assert matcher.try_consume_tokens(end) == len(end)
                ids += end
                continue
            ending = allowed & self._ends
            hurries = ending.any() and (len(ids) > PATIENCE or chance.random() < 0.3)
            ids.append(int(chance.choice(np.flatnonzero(ending if hurries else allowed))))
            assert matcher.consume_token(ids[-1]), matcher.get_error()
            assert len(ids) < 3000, self.tokenizer.decode(ids)
