"""Reads a model's text side from its checkpoint."""

from __future__ import annotations

from quire.models.describe import describe
from quire.text.model_text import ModelText
from quire.weights.checkpoint import Checkpoint


def read_model_text(checkpoint: Checkpoint, sampling_defaults: str = "model") -> ModelText:
    """Read tokenizer, template, preset and ends of a checkpoint. `sampling_defaults` is the setting of this name."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    eos_ids = describe(checkpoint).config.eos_ids
    return ModelText.from_files(
        folder,
        checkpoint.metadata,
        eos_ids,
        is_gguf=checkpoint.container == "gguf",
        uses_defaults=sampling_defaults == "model",
    )
