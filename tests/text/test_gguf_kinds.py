"""SentencePiece kinds from GGUF metadata, on small vocabularies trained here.

Oracles: the original `tokenizers` unigram model; for "llama" SentencePiece's own rule in plain Python (join the best
scored neighbours, the leftmost first) and, where it is installed, the `sentencepiece` library itself.
"""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Native

from quire.text.errors import UnsupportedTokenizer
from quire.text.pretokenizers import CUTTINGS
from quire.text.tokenizer import Tokenizer
from tests.text.varied_texts import FRAGMENTS, SPECIAL_NAMES, varied_texts

pytestmark = pytest.mark.pure
CORPUS = [" ".join(FRAGMENTS[i:] + FRAGMENTS[:i]) for i in range(0, len(FRAGMENTS), 3)]
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def gguf(model: str, tokens: list[str], types: list[int], **more: Any) -> dict[str, Any]:
    keys = {"model": model, "tokens": tokens, "token_type": types, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


@pytest.fixture(scope="module")
def llama() -> dict[str, Any]:
    """Pieces learnt by BPE over marked words, scored by rank, with byte pieces: the layout of Llama 2."""
    native = Native(models.BPE())
    native.pre_tokenizer = pre_tokenizers.Metaspace()
    learnt = trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=150)
    native.train_from_iterator(CORPUS, learnt)
    pieces = [piece for piece, _ in sorted(native.get_vocab().items(), key=lambda item: item[1])]
    pieces = [p for p in pieces if len(p) > 1] + [p for p in pieces if len(p) == 1]  # single characters score worst
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<tool>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), USER]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [0.0]
    return gguf("llama", tokens, types, scores=scores)


def by_score(text: str, data: dict[str, Any]) -> list[int]:
    """SentencePiece BPE by its definition."""
    tokens, scores, types = (data[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    usable = {token: (scores[i], i) for i, token in enumerate(tokens) if types[i] == NORMAL}
    parts = list(text and ("▁" + text).replace(" ", "▁"))
    while True:
        pairs = [(-usable[a + b][0], place) for place, (a, b) in enumerate(pairwise(parts)) if a + b in usable]
        if not pairs:
            break
        place = min(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [i for part in parts for i in ([usable[part][1]] if part in usable else [3 + b for b in part.encode()])]


def test_a_scored_vocabulary_joins_the_best_neighbours_first(llama: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(llama)
    for text in varied_texts():
        assert tokenizer.encode(text, add_bos=False) == by_score(text, llama), repr(text)


def test_a_scored_vocabulary_gives_every_text_back(llama: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(llama)
    for text in varied_texts():
        if "▁" not in text:  # the mark itself is a space to SentencePiece
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_scored_vocabulary_decodes_like_the_published_decoder(llama: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(llama)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    decoder = decoders.Sequence(steps)
    for text in varied_texts():
        ids = tokenizer.encode(text, add_bos=False)
        assert tokenizer.decode(ids) == decoder.decode([llama["tokenizer.ggml.tokens"][i] for i in ids])


def test_a_text_begins_as_the_file_says(llama: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(llama)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.prefix) == (1, 2, (1,)) and tokenizer.encode("a")[-1] != 2
    assert tokenizer.encode("a")[0] == 1 and tokenizer.encode("a", add_bos=False)[0] != 1
    assert tokenizer.encode("<s>a", special=True).count(1) == 1
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    other = Tokenizer.from_gguf(llama | flags)
    assert other.encode("a")[0] != 1 and other.encode("a")[-1] == 2
    bare = Tokenizer.from_gguf(llama | {"tokenizer.ggml.add_space_prefix": False})
    assert bare.decode(bare.encode(" a")) == " a" and bare.encode(" a") == tokenizer.encode("a")


def test_templates_read_the_special_tokens_that_the_file_names(llama: dict[str, Any]) -> None:
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert Tokenizer.from_gguf(llama).named_tokens == named
    padded = Tokenizer.from_gguf(llama | {"tokenizer.ggml.padding_token_id": 2, "tokenizer.ggml.mask_token_id": 0})
    assert padded.named_tokens == named | {"pad_token": "</s>", "mask_token": "<unk>"}


def test_an_answer_that_continues_a_text_keeps_its_first_space(llama: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(llama)
    ids = tokenizer.encode("world", add_bos=False)
    assert tokenizer.decode(ids) == "world" and tokenizer.decode(ids, continues=True) == " world"


def test_arrays_in_the_metadata_serve_as_well_as_lists(llama: dict[str, Any]) -> None:
    arrays = {"tokenizer.ggml.scores": np.float32, "tokenizer.ggml.token_type": np.int32}
    other = Tokenizer.from_gguf(llama | {key: np.array(llama[key], kind) for key, kind in arrays.items()})
    tokenizer = Tokenizer.from_gguf(llama)
    assert all(other.encode(text) == tokenizer.encode(text) for text in varied_texts(300))


def test_user_defined_tokens_are_found_in_any_text_and_printed(llama: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(llama)
    tool = tokenizer.token_id("<tool>")
    assert tool in tokenizer.encode("a<tool>b") and tool not in tokenizer.special_ids
    assert "<tool>" in tokenizer.decode(tokenizer.encode("a<tool>b"))


def _trained(sentencepiece: Any, kind: str) -> Any:
    """A model of SentencePiece's own making."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.replace("\n", " ").replace("\x00", "") for text in CORPUS]), model_writer=out,
        vocab_size=600, hard_vocab_limit=False, model_type=kind, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, minloglevel=2, max_sentence_length=100_000,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


@pytest.mark.parametrize("kind, model", [("bpe", "llama"), ("unigram", "t5")])
def test_the_sentencepiece_library_agrees(kind: str, model: str) -> None:
    """Unigram cuts of equal score are ties, which 32 and 64 bit sums break differently."""
    oracle = _trained(pytest.importorskip("sentencepiece"), kind)
    ids = range(oracle.get_piece_size())
    kinds = [(oracle.is_byte, BYTE), (oracle.is_control, CONTROL), (oracle.is_unknown, UNKNOWN)]
    types = [next((kind for is_kind, kind in kinds if is_kind(i)), NORMAL) for i in ids]
    scores = [oracle.get_score(i) for i in ids]
    settings = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "remove_extra_whitespaces": False}
    tokenizer = Tokenizer.from_gguf(gguf(model, [oracle.id_to_piece(i) for i in ids], types, scores=scores, **settings))
    num_ties = 0
    for text in varied_texts():
        if "\x00" not in text and not any(name in text for name in SPECIAL_NAMES):
            ours, theirs = tokenizer.encode(text, add_bos=False, add_eos=False), oracle.encode(text)
            assert tokenizer.decode(ours) == oracle.decode(theirs)
            if ours != theirs:
                num_ties += 1
                assert kind == "unigram", text
                assert sum(scores[i] for i in ours) == pytest.approx(sum(scores[i] for i in theirs), rel=1e-5), text
    assert num_ties < 100


@pytest.fixture(scope="module")
def unigram() -> tuple[Native, dict[str, Any]]:
    native = Native(models.Unigram())
    spaces = (Regex("^ +| +$"), ""), (Regex(" {2,}"), " ")
    native.normalizer = normalizers.Sequence([normalizers.Replace(*pair) for pair in spaces])
    native.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    native.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    special = ["<pad>", "</s>", "<unk>"]
    learnt = trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False)
    native.train_from_iterator(CORPUS, learnt)
    vocab = json.loads(native.to_str())["model"]["vocab"]
    types = [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * (len(vocab) - 3)]
    return native, gguf("t5", [piece for piece, _ in vocab], types, scores=[score for _, score in vocab])


def test_a_unigram_vocabulary_is_cut_like_the_original(unigram: tuple[Native, dict[str, Any]]) -> None:
    native, data = unigram
    tokenizer = Tokenizer.from_gguf(data)
    for text in varied_texts():
        if not any(part.startswith("▁") for part in re.split("</s>|<pad>|<unk>", text.strip(" "))):
            # (`Metaspace` puts no mark before a text that begins with one; SentencePiece does)
            expected = native.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, special=True, add_eos=False) == expected, repr(text)
    assert tokenizer.encode("a")[-1] == tokenizer.eos_id == 1


def test_no_unigram_score_turns_text_into_a_control_token(unigram: tuple[Native, dict[str, Any]]) -> None:
    tokenizer = Tokenizer.from_gguf(unigram[1])
    for text in ("</s>", "a</s>b", "<pad><pad>", " </s> "):
        assert not {0, 1} & set(tokenizer.encode(text, add_eos=False)), text
        assert {0, 1} & set(tokenizer.encode(text, add_eos=False, special=True)), text


def test_a_json_file_of_each_kind_gives_the_tokens_and_text_of_the_library(
    unigram: tuple[Native, dict[str, Any]], llama: dict[str, Any], tmp_path: Path
) -> None:
    scored = Tokenizer.from_gguf(llama)._vocabulary.encoder
    scored.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    for native in (unigram[0], scored):
        native.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer.from_folder(tmp_path)
        oracle = Native.from_file(str(tmp_path / "tokenizer.json"))
        for text in varied_texts(600, seed=5):
            ids = oracle.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, special=True) == ids
            assert tokenizer.decode(ids) == oracle.decode(ids)


def test_a_scored_vocabulary_removes_extra_spaces_if_the_file_says_so(llama: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(llama)
    trimmed = Tokenizer.from_gguf(llama | {"tokenizer.ggml.remove_extra_whitespaces": True})
    assert trimmed.encode("  the   world ") == tokenizer.encode("the world") != tokenizer.encode("  the   world ")


@pytest.fixture(scope="module")
def gemma() -> tuple[Native, dict[str, Any]]:
    """BPE with merges over marked text, as `transformers` builds Gemma's."""
    native = Native(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    native.normalizer = normalizers.Replace(" ", "▁")
    native.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learnt = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, show_progress=False, limit_alphabet=150, max_token_length=16
    )
    native.train_from_iterator(CORPUS, learnt)
    state = json.loads(native.to_str())["model"]
    tokens = [piece for piece, _ in sorted(state["vocab"].items(), key=lambda item: item[1])]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 260)]
    merges = [" ".join(merge) for merge in state["merges"]]
    ids = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3}
    plain = Native(models.BPE(state["vocab"], [tuple(m) for m in state["merges"]], unk_token="<unk>", fuse_unk=True,
                              byte_fallback=True))  # fmt: skip
    plain.normalizer, plain.pre_tokenizer = native.normalizer, native.pre_tokenizer
    return plain, gguf("gemma4", tokens, types, merges=merges, add_bos_token=False, **ids)


def test_marked_merges_are_applied_like_the_original(gemma: tuple[Native, dict[str, Any]]) -> None:
    native, data = gemma
    tokenizer = Tokenizer.from_gguf(data)
    for text in varied_texts():
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == native.encode(text, add_special_tokens=False).ids, repr(text)
        assert "▁" in text or tokenizer.decode(ids) == text
    assert tokenizer.encode("a")[0] == 2  # whatever the file says


def test_every_cutting_rule_builds_and_loses_nothing() -> None:
    for name, rule in CUTTINGS.items():
        cut, normalizer = rule.build(), rule.normalizer()
        spell = decoders.ByteLevel()
        for text in varied_texts(300):
            text = normalizer.normalize_str(text) if normalizer else text
            assert spell.decode([word for word, _ in cut.pre_tokenize_str(text)]) == text, (name, text)


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("gpt-2", "I'll pay 1234 now\n\n  x", ["I", "'ll", "Ġpay", "Ġ1234", "Ġnow", "ĊĊĠ", "Ġx"]),
        ("smollm", "pay 12\n 3", ["pay", "Ġ", "1", "2", "ĊĠ", "3"]),
        ("llama-bpe", "I'LL pay 1234(x)\n\n y", ["I", "'LL", "Ġpay", "Ġ", "123", "4", "(x", ")ĊĊ", "Ġy"]),
        ("qwen2", "pay 123\n", ["pay", "Ġ", "1", "2", "3", "Ċ"]),
        ("tekken", "camelCase HTTPServer 12 a/b", ["camel", "Case", "ĠHTTPServer", "Ġ", "1", "2", "Ġa", "/b"]),
        ("gpt-4o", "we'll Say 1234", ["we'll", "ĠSay", "Ġ", "123", "4"]),
        ("deepseek-v3", "x=foo 1234!", ["x", "=foo", "Ġ", "123", "4", "!"]),
        ("falcon", "a 12345!!", ["a", "Ġ", "123", "45", "!!"]),
    ],
)
def test_a_cutting_rule_cuts_as_its_family_does(name: str, text: str, words: list[str]) -> None:
    assert [word for word, _ in CUTTINGS[name].build().pre_tokenize_str(text)] == words


@pytest.mark.parametrize(
    "change, named",
    [
        ({"pre": "martian"}, "martian.*smollm"),
        *(({"model": kind}, f"{kind}.*gpt2, gemma4, llama, t5") for kind in ("rwkv", "plamo2", "whitespace")),
        ({"normalizer.lowercase": True}, "normalizer.lowercase"),
        ({"add_sep_token": True}, "add_sep_token"),
        ({"add_space_prefix": True}, "add_space_prefix.*'gpt2'"),
        ({"suppress_tokens": [1]}, "suppress_tokens"),
        ({"merges": ["a b"]}, "merges"),
        ({"merges": None}, "merges"),
        ({"tokens": []}, "tokens"),
        ({"token_type": [1]}, "token types"),
        ({"eos_token_id": 99}, "eos_token_id is 99"),
        ({"model": "llama"}, "scores"),
    ],
)
def test_an_error_names_what_is_wrong_with_a_file(change: dict[str, Any], named: str) -> None:
    data = gguf("gpt2", ["a", "c", "ac"], [1, 1, 1], merges=["a c"], pre="gpt-2", add_space_prefix=False)
    Tokenizer.from_gguf(data)
    with pytest.raises(UnsupportedTokenizer, match=named):
        Tokenizer.from_gguf(data | {f"tokenizer.ggml.{key}": value for key, value in change.items()})
