"""What a checkpoint is: its architecture and its configuration. Reads no tensor."""

from __future__ import annotations

from typing import NamedTuple

from quire.models.config import CheckpointSource, ModelConfig, read_config
from quire.models.registry import Architecture, all_architectures, find_architecture
from quire.models.text_part import text_part


class Description(NamedTuple):
    """An architecture with its configuration."""

    checkpoint: CheckpointSource  # of the language model: a part of a model of text and images
    architecture: Architecture
    config: ModelConfig


def describe(checkpoint: CheckpointSource) -> Description:
    """Find the architecture of a checkpoint and read its configuration."""
    found = text_part(checkpoint, _names_by_type) if "text_config" in checkpoint.metadata else checkpoint
    architecture = find_architecture(found)
    return Description(found, architecture, read_config(found, architecture.keys, architecture.config))


def _names_by_type() -> dict[str, str]:
    """Return the names of the decoders by model_type."""
    decoders = [arch for arch in all_architectures() if "head" in arch.names.entries]
    return {each: arch.name for arch in decoders for each in arch.model_types}
