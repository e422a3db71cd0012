"""Can this model be run? Found out from its headers alone, in less than a second."""

from __future__ import annotations

from pathlib import Path

from quire.engine.model_files import read_model_text
from quire.models.draw import draw
from quire.weights.checkpoint import open_checkpoint


def check_supported(path: Path) -> None:
    """Raise a QuireError that names what of the model at this path is not supported or not sound."""
    checkpoint = open_checkpoint(path)
    draw(checkpoint)
    read_model_text(checkpoint)
