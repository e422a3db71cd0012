"""Fill in the middle: the tokens with which code models mark the text before and after the gap.

<prefix> text before <suffix> text after <middle>   most models
<suffix> text after <prefix> text before            Codestral
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.text.tokenizer import Tokenizer

NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral; its vocabulary has [MIDDLE] too, and its prompts do not
)
KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id"),
    ("tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id", "tokenizer.ggml.middle_token_id"),
)
# What a model writes once the gap is filled: then padding or another file follows.
END_NAMES = (
    *("<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<repo_name>", "<reponame>", "<|file_sep|>", "<file_sep>"),
    *("<filename>", "<|file_separator|>", "<EOT>", "▁<EOT>", "<|endoftext|>"),
)
END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eot", "fim_pad", "fim_rep", "fim_sep"))


@dataclass(frozen=True, slots=True)
class Infill:
    """The tokens of one model. `ends` end an answer, in addition to the model's own."""

    prefix: int
    suffix: int
    middle: int | None
    ends: tuple[int, ...]

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
        """The prompt that requests the text between the two."""
        if self.middle is None:
            return (self.suffix, *after, self.prefix, *before)
        return (self.prefix, *before, self.suffix, *after, self.middle)


def find_infill(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> Infill | None:
    """The tokens that a GGUF file declares, or those known by name. None: the model has none."""
    declared = ([metadata.get(key) for key in keys] for keys in KEYS)
    named = ([None if name is None else tokenizer.token_id(name) for name in names] for names in NAMES)
    for found, needs_middle in (*((ids, False) for ids in declared), *zip(named, map(all, NAMES), strict=True)):
        prefix, suffix, middle = (_id(token) for token in found)
        if prefix is not None and suffix is not None and (middle is not None or not needs_middle):
            return Infill(prefix, suffix, middle, _ends((prefix, suffix, middle), tokenizer, metadata))
    return None


def _ends(marks: Iterable[int | None], tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> tuple[int, ...]:
    named = (tokenizer.token_id(name) for name in END_NAMES)
    declared = (_id(metadata.get(key)) for key in END_KEYS)
    return tuple(sorted({token for token in (*marks, *named, *declared) if token is not None}))


def _id(value: Any) -> int | None:
    return None if value is None else int(value)
