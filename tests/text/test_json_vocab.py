"""What `tokenizer.json` and `tokenizer_config.json` say beyond the vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Native

from quire.text.errors import UnsupportedTokenizer
from quire.text.pieces import BYTE_OF
from quire.text.tokenizer import Tokenizer
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Byte-level, with tokens beyond the model's own and a post-processor that begins every text with one."""
    native = Native(models.BPE({char: i for i, char in enumerate(BYTE_OF)}, []))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    native.add_special_tokens(["<|begin|>", "<|end_of_text|>", "<|eot_id|>"])
    native.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    native.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 256)])
    native.enable_truncation(4)
    native.enable_padding(length=8)
    native.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def load(folder: Path, **config: Any) -> Tokenizer:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"bos_token": {"content": "<|begin|>"}, "eos_token": "<|end_of_text|>", **config}))
    return Tokenizer.from_folder(folder)


def test_a_text_begins_as_the_post_processor_says_even_if_nothing_else_names_the_token(folder: Path) -> None:
    expected = [256, load(folder).token_id("a")]
    assert load(folder).encode("a") == expected
    assert load(folder, add_bos_token=False, add_eos_token=True).encode("a") == expected
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer.from_folder(folder).encode("a") == expected


def test_a_post_processor_that_repeats_the_text_is_refused(folder: Path) -> None:
    native = Native.from_file(str(folder / "tokenizer.json"))
    native.post_processor = processors.TemplateProcessing(single="<|begin|> $A $A", special_tokens=[("<|begin|>", 256)])
    native.save(str(folder / "tokenizer.json"))
    with pytest.raises(UnsupportedTokenizer, match="post_processor"):
        load(folder)


def test_what_cannot_be_streamed_is_refused_by_its_name(folder: Path) -> None:
    corrupting = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    assert load(folder, clean_up_tokenization_spaces=True).decode([5])  # transformers does not do it for BPE either
    with pytest.raises(UnsupportedTokenizer, match="clean_up_tokenization_spaces"):
        load(folder, **{"clean_up_tokenization_spaces": True, corrupting: True}).decode([5])
    with pytest.raises(UnsupportedTokenizer, match="fast_tokenizer_files"):
        load(folder, fast_tokenizer_files=["tokenizer.json", "tokenizer.4.0.0.json"])


@pytest.mark.parametrize(
    "config, said",
    [
        ({"eos_token": 7}, "eos_token"),
        ({"added_tokens_decoder": [1]}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"1": {}}}, "added_tokens_decoder.1"),
        ({"extra_special_tokens": "a"}, "extra special tokens"),
    ],
)
def test_a_token_that_is_none_is_named(folder: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=said):
        load(folder, **config)


def test_every_end_is_known(folder: Path) -> None:
    assert load(folder).eos_ids == {257, 258}
    assert Tokenizer.from_folder(folder, extra_eos=[7]).eos_ids == {7, 257, 258}


def test_no_text_is_cut_or_padded_whatever_the_file_was_trained_with(folder: Path) -> None:
    assert len(load(folder).encode("a" * 50, add_bos=False)) == 50
    assert len(load(folder).encode("a", add_bos=False)) == 1


def test_added_tokens_beyond_the_model_keep_their_ids_in_plain_text(folder: Path) -> None:
    tokenizer = load(folder)
    assert tokenizer.num_tokens == 261 and tokenizer.special_ids == {256, 257, 258, 260}  # the last one pads
    assert tokenizer.encode("<tool_call>", add_bos=False) == [259]
    assert not tokenizer.special_ids & set(tokenizer.encode("<|eot_id|>", add_bos=False))
    assert tokenizer.encode("<|begin|>a", special=True).count(256) == 1


def test_text_that_is_not_unicode_is_refused_by_its_place(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="character 2"):
        load(folder).encode("ab\ud83d")


def test_a_decoder_that_we_cannot_stream_still_lets_encode(folder: Path) -> None:
    native = Native.from_file(str(folder / "tokenizer.json"))
    native.decoder = decoders.CTC()
    native.save(str(folder / "tokenizer.json"))
    tokenizer = load(folder)
    assert tokenizer.encode("a")
    with pytest.raises(UnsupportedTokenizer, match="CTC"):
        tokenizer.decode([5])


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_broken_is_named(folder: Path, name: str) -> None:
    load(folder)
    (folder / name).write_text("{")
    with pytest.raises(UnsupportedTokenizer, match=name):
        Tokenizer.from_folder(folder)
