"""Filling in the middle: each family's tokens are found, and its prompt is written in its own order."""

from __future__ import annotations

from typing import Any

import pytest

from quire.text.infill import find_infill
from quire.text.model_text import ModelText
from quire.text.template import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
BYTES = [*(chr(byte) for byte in range(33, 127)), "Ġ", "Ċ", "zz"]  # as byte-level vocabularies spell them


def byte_level(*names: str, **more: int) -> dict[str, Any]:
    tokens, types = [*BYTES, *names], [NORMAL] * len(BYTES) + [CONTROL] * len(names)
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": ["z z"], **more}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def scored(*names: str) -> dict[str, Any]:
    """SentencePiece, as Code Llama has it."""
    pieces = ["▁", "☺", "d", "e", "f", "▁d", "▁de", "▁def", "x"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *names]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *[CONTROL] * len(names)]
    scores = [0.0] * 259 + [-float(len(pieces) - place) for place in range(len(pieces))] + [0.0] * len(names)
    keys = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def filled(metadata: dict[str, Any], before: str, after: str) -> list[str]:
    tokenizer = Tokenizer.from_gguf(metadata)
    model_text = ModelText(tokenizer, ChatTemplate(None), (), infill=find_infill(tokenizer, metadata))
    return [metadata["tokenizer.ggml.tokens"][token] for token in model_text.encode_infill(before, after)]


@pytest.mark.parametrize(
    "marks",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_most_models_see_the_prefix_first(marks):
    prefix, suffix, middle = marks
    assert filled(byte_level(*marks), "ab", "c") == [prefix, "a", "b", suffix, "c", middle]


def test_codestral_sees_the_suffix_first_and_has_no_middle():
    data = byte_level("[PREFIX]", "[SUFFIX]", "[MIDDLE]")
    assert filled(data, "a", "b") == ["[SUFFIX]", "b", "[PREFIX]", "a"]


def test_code_llama_begins_the_suffix_without_a_space():
    data = scored("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
    assert filled(data, "def", "def x") == ["<s>", "▁<PRE>", "▁def", "▁<SUF>", "d", "e", "f", "▁", "x", "▁<MID>"]
    tokenizer = Tokenizer.from_gguf(data)
    assert tokenizer.token_id("▁<EOT>") in find_infill(tokenizer, data).ends


@pytest.mark.parametrize("keys", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_declared_tokens_win_over_known_names(keys):
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<own>", "<own2>", "<own3>", "<pad>")
    ids = {f"{key}_token_id": len(BYTES) + 3 + place for place, key in enumerate(keys)}
    data = byte_level(*marks, **ids, fim_pad_token_id=len(BYTES) + 6)
    assert filled(data, "a", "b") == ["<own>", "a", "<own2>", "b", "<own3>"]
    found = find_infill(Tokenizer.from_gguf(data), data)
    assert {len(BYTES) + place for place in (3, 4, 5, 6)} <= set(found.ends)


def test_marks_in_the_text_are_text():
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    assert filled(byte_level(*marks), "<|fim_suffix|>", "b").count("<|fim_suffix|>") == 1


def test_a_model_without_such_tokens_refuses_a_suffix():
    with pytest.raises(InvalidRequest, match="no tokens for filling in the middle") as refused:
        filled(byte_level("<|fim_prefix|>", "<|fim_suffix|>"), "a", "b")
    assert refused.value.field == "suffix"
