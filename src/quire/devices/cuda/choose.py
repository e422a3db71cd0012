"""Tokens are chosen where their logits are, and remembered there for the next step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.sample import Rules, Space, choose
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

    def __init__(self, max_rows: int, max_logits: int, vocab_size: int, device: torch.device) -> None:
        self.last_tokens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(max_logits, dtype=torch.int32, device=device)  # of a step
        self.vocab_size = vocab_size
        self._space = Space.of(max_logits, vocab_size, str(device))

    def choose(self, logits: Tensor, inputs: Inputs, mode: str, masks: Tensor | None) -> None:
        """For every entry of a step that has a row: into `tokens`, and into last_tokens."""
        draws = (inputs.rows, inputs.temperature, inputs.top_k, inputs.top_p, inputs.min_p, inputs.chance)
        rules = Rules(*draws, inputs.mask_at, masks)
        choose(logits, rules, self.tokens, self.last_tokens, self._space, is_greedy=mode == "greedy")
