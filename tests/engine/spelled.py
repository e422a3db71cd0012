"""A checkpoint on disk whose words are single characters: enough of a tokenizer for grammars and for text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Native
from tokenizers import decoders, models, pre_tokenizers

from quire.text.pieces import BYTE_OF

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|end|>"]
CHARS = {byte: char for char, byte in BYTE_OF.items()}
# The same tokens in a GGUF file, which has at least one merge: token 0 is two characters.
SPELLED_KEYS: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [CHARS[1] + CHARS[2], *(CHARS[byte] for byte in range(1, 128)), *SPECIAL],
    "tokenizer.ggml.token_type": [1] * 128 + [3] * 3,
    "tokenizer.ggml.merges": [f"{CHARS[1]} {CHARS[2]}"],
    "tokenizer.ggml.eos_token_id": 129,
}


def save_spelled(torch_model: Any, folder: Path) -> Path:
    """As save_pretrained writes it, with 131 tokens: 128 are ASCII characters, three are special."""
    torch_model.save_pretrained(folder)
    native = Native(models.BPE({CHARS[byte]: byte for byte in range(128)}, []))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    native.add_special_tokens(SPECIAL)
    native.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder
