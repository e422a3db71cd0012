"""Answers without a model: random bytes that a grammar allows."""

from __future__ import annotations

import json
import random
from typing import Any

from quire.grammar.grammar import Grammar, GrammarVocabulary
from quire.grammar.guidance import Guidance
from quire.sampling.mask import allowed_ids, blank
from quire.text.tokenizer import Tokenizer
from quire.types.request import Constraint, ConstraintKind

END = 1
FEW = {*range(ord("a"), ord("f")), *range(ord("0"), ord("3")), *b'"}],'}  # letters that come often
CLOSING = set(b'"}]')


def byte_vocabulary() -> GrammarVocabulary:
    """A token for each byte."""
    names = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    keys = {"model": "llama", "tokens": names, "token_type": [2, 3] + [6] * 256, "scores": [0.0] * 258}
    return GrammarVocabulary(
        Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()}), 258, (END,)
    )


BYTES = byte_vocabulary()


def compiled(schema: Any, backend: Guidance, strict: bool = False) -> Grammar:
    return backend.compile(Constraint(ConstraintKind.SCHEMA, json.dumps(schema), strict=strict))


def takes(grammar: Grammar, text: str) -> bool:
    """May this text come, and may it end there?"""
    state = grammar.start()
    for byte in text.encode():
        if not _allows(state, byte + 2):
            return False
        state.accept([byte + 2])
    return state.must_stop or _allows(state, END)


def walk(grammar: Grammar, seed: int, most: int = 400) -> str | None:
    """One answer; None: it was not over after so many letters."""
    chance, state = random.Random(seed), grammar.start()
    text = bytearray()
    while not state.must_stop:
        bits = blank(1, BYTES.vocab_size)
        state.fill_mask(bits)
        allowed = [token - 2 if token != END else END - 2 for token in allowed_ids(bits[0], BYTES.vocab_size).tolist()]
        assert allowed and state.error is None, f"nothing can come after {bytes(text)!r}"
        ends = [byte for byte in allowed if byte in CLOSING or byte < 0]
        often = [byte for byte in allowed if byte in FEW or byte < 0]
        byte = chance.choice((ends if len(text) > 60 else []) or often or allowed)
        if byte < 0:
            break
        state.accept([byte + 2])
        text.append(byte)
        if len(text) > most:
            return None
    return text.decode()


def _allows(state: Any, token: int) -> bool:
    bits = blank(1, BYTES.vocab_size)
    state.fill_mask(bits)
    return token in allowed_ids(bits[0], BYTES.vocab_size).tolist()
