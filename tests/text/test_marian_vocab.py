"""Tokens of Marian's files against transformers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from quire.text.errors import UnsupportedTokenizer
from quire.text.marian_vocab import read_pieces
from quire.text.tokenizer import Tokenizer

pytestmark = pytest.mark.pure
sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")
SOURCE = ["the quick brown fox jumps over the lazy dog", "a small frog asked his teacher for advice", "hello world"] * 9
TARGET = ["der schnelle braune fuchs springt", "ein kleiner frosch fragte seinen lehrer um rat", "hallo welt"] * 9
TEXTS = [
    "the quick fox",
    "  hello   world \n again",
    "a ﬁne ＦＯＸ … 日本 and ☺☺ x",
    ">>fra<< hello world",
    "der fuchs",
    "<unk> the dog",
    "a",
]


def train(texts: list[str], path: Path, **options: Any) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path.with_suffix("")), vocab_size=70, minloglevel=2,
        hard_vocab_limit=False, bos_id=-1, **options,
    )  # fmt: skip
    path.with_suffix(".model").replace(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    train(SOURCE, folder / "source.spm")
    train(TARGET, folder / "target.spm")
    pieces = [*read_pieces(folder / "source.spm").scores][3:], [*read_pieces(folder / "target.spm").scores]
    names = dict.fromkeys(["</s>", "<unk>", *pieces[0], *pieces[1], ">>fra<<", ">>deu<<", "<pad>"])
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package that it does not use
        return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", [text for text in TEXTS if "<unk>" not in text])
def test_tokens_are_those_of_transformers(folder, reference, text):
    assert Tokenizer.from_folder(folder).encode(text) == reference(text)["input_ids"]


def test_names_of_special_tokens_are_just_text(folder):
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("the dog </s>", add_eos=False).count(tokenizer.eos_id) == 0
    assert tokenizer.encode("the dog </s>", special=True, add_eos=False)[-1] == tokenizer.eos_id


def test_texts_of_tokens_are_those_of_transformers(folder, reference):
    tokenizer = Tokenizer.from_folder(folder)
    for text in (*TARGET[:3], "hallo ☺ fuchs"):
        ids = reference(text_target=text)["input_ids"]
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_many_texts_at_once_are_the_same(folder):
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode_many(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_files_that_are_not_supported_are_refused_with_the_reason(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "source.spm").write_bytes((folder / "source.spm").read_bytes()[:-3])
    with pytest.raises(UnsupportedTokenizer, match=r"source\.spm cannot be read"):
        Tokenizer.from_folder(copy)
    train(SOURCE, copy / "source.spm", model_type="bpe")
    with pytest.raises(UnsupportedTokenizer, match="not a unigram model"):
        Tokenizer.from_folder(copy)
    (copy / "vocab.json").write_text('{"</s>": 0, "<unk>": 5}')
    with pytest.raises(UnsupportedTokenizer, match="ids 0 to 1"):
        Tokenizer.from_folder(copy)
    (copy / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    with pytest.raises(UnsupportedTokenizer, match="separate_vocabs"):
        Tokenizer.from_folder(copy)
