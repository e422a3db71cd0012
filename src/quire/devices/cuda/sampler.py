"""Sampling on the device; the last token of every row stays there for the next step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.sample import DrawArrays, SampleBuffers, sample_tokens
from quire.ops.batch import Draws

from .inputs import Inputs


def sampling_mode(draws: Draws | None) -> str:
    """Return "none" if the host samples everything, "greedy" if all temperatures are 0, "masked" if grammar masks are
    to come, else "any"."""
    if draws is None:
        return "none"
    if draws.masked.any():
        return "masked"
    return "any" if np.any(draws.temperature) else "greedy"


class DeviceSampler:
    """Owns the last token of every row."""

    def __init__(self, max_rows: int, max_logits: int, vocab_size: int, device: torch.device) -> None:
        self.last_tokens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(max_logits, dtype=torch.int32, device=device)  # of a step
        self.vocab_size = vocab_size
        self._buffers = SampleBuffers.of(max_logits, vocab_size, str(device))

    def sample(self, logits: Tensor, inputs: Inputs, mode: str, masks: Tensor | None) -> None:
        """Sample every entry of a step that has a row, into `tokens` and `last_tokens`."""
        params = (inputs.rows, inputs.temperature, inputs.top_k, inputs.top_p, inputs.min_p, inputs.chance)
        draws = DrawArrays(*params, inputs.mask_at, masks)
        sample_tokens(logits, draws, self.tokens, self.last_tokens, self._buffers, is_greedy=mode == "greedy")
