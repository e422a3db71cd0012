"""A checkpoint on disk whose words are single characters: enough of a tokenizer for grammars and for text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Native
from tokenizers import decoders, models, pre_tokenizers

from quire.text.pieces import BYTE_OF


def save_spelled(torch_model: Any, folder: Path) -> Path:
    """As save_pretrained writes it, with 131 tokens: 128 are ASCII characters, three are special."""
    torch_model.save_pretrained(folder)
    chars = {byte: char for char, byte in BYTE_OF.items()}
    native = Native(models.BPE({chars[byte]: byte for byte in range(128)}, []))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    native.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|end|>"])
    native.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder
