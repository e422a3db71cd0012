"""Tokens are chosen where their logits are, and remembered there for the next step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.ops.batch import Draws

from .inputs import Inputs


def mode_of(draws: Draws | None) -> str:
    """none: the host chooses all; greedy: every entry its likeliest; any; masked: after grammars' masks have come."""
    if draws is None:
        return "none"
    if draws.masked.any():
        return "masked"
    return "any" if np.any(draws.temperature) else "greedy"


class Chooser:
    """Owns the last token of every row."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.last_tokens = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self.vocab_size = vocab_size

    def choose(self, logits: Tensor, inputs: Inputs, mode: str, masks: Tensor | None, out: Tensor) -> None:
        """Into `out` [L], and into last_tokens."""
        tokens = logits.argmax(-1).to(torch.int32)
        out[: len(tokens)] = tokens
        self.last_tokens[inputs.rows.long()] = tokens
