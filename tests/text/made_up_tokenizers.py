"""Small tokenizers of every kind as checkpoints on disk, and what `transformers` makes of the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Native

from quire.text.pieces import BYTE_OF

BOS, EOS, PAD, CALL = "<s>", "</s>", "<pad>", "<call>"
WORDS = ["hello", "world", "the", "a", "b", "run", "##ning", "##s", ".", ",", "n't", "'s", "do", "not", "é", "日本"]
TEXTS = [
    "",
    "a",
    " hello world",
    "hello  the world. do n't run, running's é 日本 👍\n",
    "The HELLO ﬁ Å",
]
MARKED = [  # with special and added tokens
    "<s>hello</s>",
    "<s> hello <call> a </call>world <pad><pad>\n",
    "hello<|late|>the <|late|> world</s><mask>",
    " <s>\n<|extra|>b<image>",
]


def byte_level() -> Native:
    """BPE over bytes, as Llama 3 and Qwen have it."""
    vocab = {char: place for place, char in enumerate(BYTE_OF)}
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("Ġw", "o"), ("n", "n")]
    for left, right in pairs:
        vocab[left + right] = len(vocab)
    native = Native(models.BPE(vocab | {EOS: len(vocab)}, pairs))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    return native


def marked() -> Native:
    """BPE with marks for spaces and bytes for what has no piece, as Llama 2 has it."""
    pieces = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrdabtn.,'s"]
    vocab = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    pairs = [("▁", "h"), ("▁h", "e"), ("l", "l"), ("▁he", "ll"), ("▁", "▁"), ("▁", "w")]
    for left, right in pairs:
        vocab[left + right] = len(vocab)
    native = Native(models.BPE(vocab, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    native.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    native.decoder = decoders.Sequence(steps)
    return native


def unigram() -> Native:
    """SentencePiece's other model, with its normalizer."""
    pieces = [("<unk>", 0.0), (BOS, 0.0), (EOS, 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -3.0 - place) for place, word in enumerate(WORDS)]
    pieces += [(char, -9.0) for char in sorted(set("".join(WORDS))) if char not in WORDS]
    native = Native(models.Unigram(pieces, unk_id=0))
    native.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    native.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    native.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return native


def words() -> Native:
    """Whole words, without a decoder."""
    vocab = {word: place for place, word in enumerate(["<unk>", BOS, EOS, *WORDS])}
    native = Native(models.WordLevel(vocab, unk_token="<unk>"))
    native.normalizer = normalizers.Lowercase()
    native.pre_tokenizer = pre_tokenizers.Whitespace()
    return native


def word_pieces() -> Native:
    """As BERT has it."""
    vocab = {word: place for place, word in enumerate(["<unk>", BOS, EOS, *WORDS])}
    native = Native(models.WordPiece(vocab, unk_token="<unk>"))
    native.normalizer = normalizers.BertNormalizer()
    native.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    native.decoder = decoders.WordPiece("##", cleanup=True)
    return native


MODELS = {"byte level": byte_level, "marked": marked, "unigram": unigram, "words": words, "word pieces": word_pieces}


def _template(single: str, ids: Mapping[str, int]) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=list(ids.items()))


def frames(bos: int, eos: int) -> dict[str, Any]:
    """Post-processors."""
    both = {BOS: bos, EOS: eos}
    bytes_ = processors.ByteLevel(trim_offsets=True)
    return {
        "none": None,
        "bytes": bytes_,
        "begin": _template(f"{BOS} $A", both),
        "end": _template(f"$A {EOS}", both),
        "both": _template(f"{BOS}:0 $A:0 {EOS}:0", both),
        "many": _template(f"{EOS} {BOS} $A {EOS} {EOS}", both),
        "sequence": processors.Sequence([bytes_, _template(f"{BOS} $A", both)]),
        "bert": processors.BertProcessing((EOS, eos), (BOS, bos)),
        "roberta": processors.RobertaProcessing((EOS, eos), (BOS, bos)),
    }


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"content": content, **plain, **flags}


DECODER = {"600": token(CALL), "601": token("</call>", rstrip=True), "602": token("<|late|>", special=True)}
# What stands beside tokenizer.json, by the name of the file.
BESIDE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "an end that only the configuration names": {"tokenizer_config": {"eos_token": EOS}},
    "tokens that no vocabulary has": {
        "tokenizer_config": {
            "eos_token": "<|late|>", "pad_token": PAD, "mask_token": "<mask>", "image_token": "<image>",
        }
    },
    "named tokens and flags": {
        "tokenizer_config": {
            "bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": True,
            "clean_up_tokenization_spaces": False, "model_max_length": 4, "padding_side": "left", "legacy": False,
            "add_prefix_space": True, "truncation_side": "left",
        }
    },
    "flags that say no": {
        "tokenizer_config": {"bos_token": BOS, "eos_token": EOS, "add_bos_token": False, "add_eos_token": False}
    },
    "tokens that only the configuration adds": {
        "tokenizer_config": {"eos_token": EOS, "added_tokens_decoder": DECODER, "bos_token": BOS}
    },
    "a named token that is added as ordinary": {
        "tokenizer_config": {"eos_token": "</call>", "added_tokens_decoder": DECODER, "pad_token": None}
    },
    "a list of extra tokens": {
        "tokenizer_config": {"additional_special_tokens": ["<|extra|>", PAD], "added_tokens_decoder": {}}
    },
    "extra tokens by name": {
        "tokenizer_config": {
            "eos_token": EOS, "extra_special_tokens": {"image_token": "<image>", "boi_token": "<mask>"},
        }
    },
    "older files": {
        "tokenizer_config": {"bos_token": "<wrong>", "pad_token": PAD},
        "special_tokens_map": {
            "bos_token": token(BOS), "eos_token": token(EOS, lstrip=True), "additional_special_tokens": ["<|extra|>"]
        },
        "added_tokens": {"<mask>": 700, "<image>": 701, "<|extra|>": 702},
    },
    "older files that do not count": {
        "tokenizer_config": {"eos_token": EOS, "added_tokens_decoder": DECODER},
        "special_tokens_map": {"bos_token": "<image>", "eos_token": "<mask>"},
        "added_tokens": {"<|extra|>": 700},
    },
    "special tokens that are split": {
        "tokenizer_config": {"eos_token": EOS, "split_special_tokens": True, "added_tokens_decoder": DECODER}
    },
}  # fmt: skip


def save(folder: Path, native: Native, beside: Mapping[str, Any], model_type: str = "llama") -> Path:
    """A checkpoint without weights."""
    native.enable_truncation(3)
    native.enable_padding(length=8)
    native.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **beside.get("tokenizer_config", {})}
    files = {**beside, "tokenizer_config": config, "config": {"model_type": model_type}}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def with_added(native: Native) -> Native:
    """The same with tokens of its own in tokenizer.json."""
    native.add_special_tokens([AddedToken(BOS, special=True), AddedToken(CALL, rstrip=True, special=True)])
    native.add_tokens([AddedToken("</call>", lstrip=True, normalized=False), AddedToken("RUN", normalized=True)])
    return native
