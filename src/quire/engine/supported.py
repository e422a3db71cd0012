"""Checks from a model's headers alone, in less than a second, whether it can be run."""

from __future__ import annotations

from pathlib import Path

from quire.engine.text_side import TextSide
from quire.models.draw import draw
from quire.weights.checkpoint import open_checkpoint


def check_supported(path: Path) -> None:
    """Raise a QuireError that names what is unsupported or broken in the model at this path."""
    checkpoint = open_checkpoint(path)
    draw(checkpoint)
    TextSide.of(checkpoint)
