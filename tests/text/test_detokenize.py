"""The incremental detokenizer: for any tokens, any split and any stop strings it equals the whole text, cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.detokenize import Detokenizer
from quire.text.tokenizer import Tokenizer
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

PIECES = ["a", "b", "ab", "ba", "aab", " a", "  ", "\n", "é", "日本", "👍", "END", "E", "ND", "STOP", "\ufffd"]


def _scored(**more: Any) -> Tokenizer:
    """A SentencePiece vocabulary with every byte."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁▁", "▁a", *PIECES]
    types = [2, 3, 3, *[6] * 256, *[1] * (3 + len(PIECES))]
    data = {"model": "llama", "tokens": tokens, "token_type": types, "scores": [0.0] * len(tokens), **more}
    return Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in data.items()})


def _byte_level() -> Tokenizer:
    """A byte-level vocabulary: every byte, some words, some cut characters, a special and a user-defined token."""
    from quire.text.pieces import BYTE_OF

    char_of = {byte: char for char, byte in BYTE_OF.items()}
    words = [*PIECES, "日本".encode()[:4], "👍".encode()[:3], "👍".encode()[1:]]
    spelled = ["".join(char_of[b] for b in (w.encode() if isinstance(w, str) else w)) for w in words]
    tokens = [*dict.fromkeys([*(char_of[b] for b in range(256)), *spelled]), "<|end|>", "<tool é>"]
    data = {"model": "gpt2", "tokens": tokens, "token_type": [1] * (len(tokens) - 2) + [3, 4], "merges": ["a b"]}
    return Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in {**data, "pre": "gpt-2"}.items()})


TOKENIZERS = [_byte_level(), _scored(), _scored(add_space_prefix=False)]
STOPS = st.lists(st.text("ab END\n\ufffdé", min_size=1, max_size=5), max_size=4).map(tuple)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Tokenizer, list[list[int]]]:
    tokenizer = draw(st.sampled_from(TOKENIZERS))
    ids = st.integers(0, tokenizer.num_tokens + 1) | st.integers(tokenizer.num_tokens - 22, tokenizer.num_tokens - 1)
    return tokenizer, draw(st.lists(st.lists(ids, max_size=6), max_size=8))


def first_stop(text: str, stops: tuple[str, ...], least: int = 0) -> tuple[int, str] | None:
    """Of all occurrences that end after `least` characters the one that ends first and, of those, the longest."""
    ends = [
        (end, -len(stop), stop)
        for stop in stops
        for end in range(max(least + 1, len(stop)), len(text) + 1)
        if text.endswith(stop, 0, end)
    ]
    return (min(ends)[0], min(ends)[2]) if ends else None


@settings(max_examples=400, deadline=None)
@given(streams(), st.booleans(), st.booleans())
def test_pushes_and_flush_are_the_whole_text(
    stream: tuple[Tokenizer, list[list[int]]], skip_special: bool, continues: bool
) -> None:
    tokenizer, pushes = stream
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special, continues=continues)
    text = "".join([detokenizer.push(ids) for ids in pushes]) + detokenizer.flush()
    ids = [i for push in pushes for i in push]
    assert text == tokenizer.decode(ids, skip_special=skip_special, continues=continues)
    assert detokenizer.num_tokens == len(ids)


@settings(max_examples=600, deadline=None)
@given(streams(), STOPS, st.integers(0, 9))
def test_the_text_ends_before_the_first_stop_string_beyond_min_tokens(
    stream: tuple[Tokenizer, list[list[int]]], stops: tuple[str, ...], min_tokens: int
) -> None:
    tokenizer, pushes = stream
    detokenizer = Detokenizer(tokenizer, stops, min_tokens=min_tokens)
    text = "".join([detokenizer.push(ids) for ids in pushes]) + detokenizer.flush()
    tokens = [i for push in pushes for i in push]
    whole = tokenizer.decode(tokens)
    least = len(Detokenizer(tokenizer).push(tokens[:min_tokens])) if len(tokens) > min_tokens else len(whole)
    found = first_stop(whole, stops, least)
    if found is None:
        assert text == whole and detokenizer.stopped_by is None
    else:
        end, stop = found
        assert text == whole[: end - len(stop)]
        assert detokenizer.num_tokens > min_tokens
        assert detokenizer.stopped_by == stop


@settings(max_examples=300, deadline=None)
@given(streams(), STOPS)
def test_what_was_given_out_is_never_taken_back_nor_kept_longer_than_needed(
    stream: tuple[Tokenizer, list[list[int]]], stops: tuple[str, ...]
) -> None:
    tokenizer, pushes = stream
    detokenizer = Detokenizer(tokenizer, stops, continues=True)
    given_out, data = "", b""
    for ids in pushes:
        given_out += detokenizer.push(ids)
        data += b"".join(tokenizer.token_bytes(i) for i in ids if i not in tokenizer.special_ids)
        if detokenizer.stopped_by is not None:
            return
        whole = data.decode("utf-8", "replace")
        assert whole.startswith(given_out)
        kept = whole[len(given_out) :].rstrip("\ufffd")
        assert not kept or any(kept in stop or stop.startswith(kept[:1]) for stop in stops)


def test_half_a_character_waits_for_its_other_half() -> None:
    tokenizer = TOKENIZERS[0]
    ids = [tokenizer.token_id(char) for char in "ðŁĳį"]
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([i]) for i in ids if i is not None] == ["", "", "", "👍"]
    assert detokenizer.push(ids[:2]) == "" and detokenizer.flush() == "\ufffd"  # type: ignore[arg-type]


def test_text_that_may_begin_a_stop_string_is_held_and_then_let_go() -> None:
    tokenizer = TOKENIZERS[1]
    ids = {piece: tokenizer.token_id(piece) or 0 for piece in PIECES}
    detokenizer = Detokenizer(tokenizer, ("END",))
    assert detokenizer.push([ids["a"], ids["E"]]) == "a"
    assert detokenizer.push([ids["E"]]) == "E"
    assert detokenizer.push([ids["ND"], ids["b"]]) == ""
    assert detokenizer.stopped_by == "END" and detokenizer.num_tokens == 4
    assert detokenizer.push([ids["b"]]) == "" and detokenizer.flush() == ""


@pytest.mark.parametrize("stops", [("",), ("a", "")])
def test_an_empty_stop_string_is_refused(stops: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="stop string"):
        Detokenizer(TOKENIZERS[0], stops)


def test_special_tokens_that_are_marks_can_be_shown() -> None:
    tokenizer = TOKENIZERS[0]
    end, a = tokenizer.token_id("<|end|>"), tokenizer.token_id("a")
    assert end in tokenizer.special_ids and a is not None
    hidden, shown = Detokenizer(tokenizer), Detokenizer(tokenizer, shown=frozenset({end, a}))
    assert [hidden.push([i]) for i in (a, end, a)] == ["a", "", "a"]
    assert [shown.push([i]) for i in (a, end, a)] == ["a", "<|end|>", "a"]
    stops = Detokenizer(tokenizer, ("<|end",), shown=[end])
    assert stops.push([a, end, a]) == "a" and stops.stopped_by == "<|end"


def test_of_names_those_that_are_tokens_are_found() -> None:
    found = TOKENIZERS[0].tokens_named(("<|end|>", "<tool é>", "<tool_call>"))
    assert found == {name: TOKENIZERS[0].token_id(name) for name in ("<|end|>", "<tool é>")}
