"""The data of a tokenizer, whichever file it came from.

`gguf_vocab` and `json_vocab` make one of these; `Tokenizer` needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import tokenizers

from quire.text.pieces import PieceStyle, WordStyle

# Tokens that end a turn or a text in published chat models. Models name one of them as *the* end of sequence, and
# sample the others as well (a chat model ends a turn with <|im_end|> and a document with <|endoftext|>).
END_NAMES = (
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end|>", "<|return|>",
    "<|call|>", "<end_of_turn>", "<turn|>", "<|tool_response>", "<|END_OF_TURN_TOKEN|>", "<|EOT|>", "<EOT>",
    "<end_of_utterance>", "<|assistant_end|>", "[|endofturn|]", "<｜end▁of▁sentence｜>",
)  # fmt: skip


class PairFrame(NamedTuple):
    """The tokens around two texts that are read as one."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    marks_second: bool  # tokens of the second text have another type

    @property
    def num_tokens(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`added` tokens are found in text before all others; those that are `special` are never printed."""

    encoder: tokenizers.Tokenizer
    num_tokens: int
    piece: Callable[[int], str | None]
    style: PieceStyle | WordStyle | str  # a text says why tokens cannot be decoded one by one
    added: Mapping[int, str]
    special: frozenset[int]
    named: Mapping[str, str] = field(default_factory=dict)  # special tokens that templates read: bos_token, pad_token
    verbatim: Mapping[int, str] = field(default_factory=dict)  # tokens whose text is their name, undecoded
    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: frozenset[int] = field(default_factory=frozenset)
    prefix: tuple[int, ...] = ()  # tokens that the model's own rule puts before a text
    suffix: tuple[int, ...] = ()  # and after it
    pair: PairFrame | None = None  # around two texts; None: the model's rule says nothing about pairs
    unknown_from: tuple[int, int] | None = None  # ids of the encoder from the first on are the second: unknown


def end_ids(token_id: Callable[[str], int | None], declared: Iterable[int | None]) -> frozenset[int]:
    """Every token that ends a generation: those that the model declares, and those known by name."""
    named = {name: found for name in END_NAMES if (found := token_id(name)) is not None}
    if "<|return|>" in named and "<|call|>" in named:  # there <|end|> only ends a message within the answer
        named.pop("<|end|>", None)
    return frozenset(named.values()) | {token for token in declared if token is not None}
