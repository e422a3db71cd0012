"""What `transformers` makes of a `tokenizer.json` whose configuration names `LlamaTokenizer`.

That class takes only vocabulary, merges and post-processor from the file, and handles spaces itself: each becomes a
mark, and one is put before the text (`legacy`: before each part between special tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from quire.text.checkpoint_files import read_object
from quire.text.pieces import MARK

NAMED = MappingProxyType({"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"})
_NAMES = ("LlamaTokenizer", "LlamaTokenizerFast")
_OTHERWISE_LOADED = ("mistral", "qwen2")  # model types for which transformers does not use the class that is named


def is_used(folder: Path, config: Mapping[str, Any], encoder: tokenizers.Tokenizer) -> bool:
    """Would `transformers` load this checkpoint's tokenizer as a `LlamaTokenizer`?"""
    model = read_object(folder / "config.json")
    if (config.get("tokenizer_class") or model.get("tokenizer_class")) not in _NAMES:
        return False
    if not isinstance(encoder.model, models.BPE) or model.get("model_type") in _OTHERWISE_LOADED:
        return False
    parts = (encoder.pre_tokenizer, encoder.decoder)
    return not any('"ByteLevel"' in part.__getstate__().decode() for part in parts if part is not None)


def apply(encoder: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Replace the parts that the class does not take from the file."""
    model = encoder.model
    model.fuse_unk, model.byte_fallback, model.unk_token, model.dropout = True, True, None, None
    prefixed = config.get("add_prefix_space") is not False
    scheme = "never" if not prefixed else "always" if config.get("legacy") is True else "first"
    encoder.normalizer = None
    encoder.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    encoder.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefixed else steps)
