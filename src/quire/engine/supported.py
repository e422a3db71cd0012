"""Checks from a model's headers alone, in less than a second, whether it can be run."""

from __future__ import annotations

from pathlib import Path

from quire.engine.model_files import read_model_text
from quire.models.draw import draw
from quire.types.kinds import PoolKind
from quire.weights.checkpoint import open_checkpoint


def check_supported(path: Path) -> None:
    """Raise a QuireError that names what is unsupported or broken in the model at this path."""
    checkpoint = open_checkpoint(path)
    draw(checkpoint, pooling=PoolKind.MEAN)  # how it will be pooled makes no difference here
    read_model_text(checkpoint)
