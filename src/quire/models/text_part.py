"""The language model inside a model of text and images: a view of the checkpoint with that model alone.

Requests have text only, and without images these classes compute what their language model computes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.graph.weight import StoredTensor
from quire.models.config import CheckpointSource
from quire.models.values import Values

logger = logging.getLogger("quire.models")

# Classes of transformers that hold a `text_config` and a language model. Each is compared with its class in a test.
WITH_TEXT = frozenset(
    f"{name}ForConditionalGeneration" for name in ("Gemma3", "Gemma4", "Llama4", "Mistral3", "Qwen3_5", "Qwen3_5Moe")
)
_NAMES = re.compile(r"^(?:language_model\.model|model\.language_model)\.")  # before and since transformers 5
_HEAD = re.compile(r"^language_model\.lm_head\.")
_OTHER_PARTS = re.compile(
    r"^(?:model\.)?(?:visual|vision_tower|vision_model|audio_tower|multi_modal_projector|embed_vision|embed_audio)\."
)
# Keys of the outer configuration that are about the language model too, unless that has its own.
_OUTER_KEYS = ("eos_token_id", "quantization_config", "tie_word_embeddings")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A checkpoint with the tensors and the configuration of the language model."""

    container: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def text_part(checkpoint: CheckpointSource, names_by_type: Callable[[], Mapping[str, str]]) -> CheckpointSource:
    """Return the language model of a model of text and images, or the checkpoint itself if it is none.

    `names_by_type` returns the names of architectures by their model_type.
    """
    outer = checkpoint.metadata
    whole, inner = Values(outer).texts("architectures"), outer.get("text_config")
    if checkpoint.container == "gguf" or not WITH_TEXT.intersection(whole or ()) or not isinstance(inner, Mapping):
        return checkpoint
    name = names_by_type().get(str(inner.get("model_type")))
    if name is None:
        return checkpoint
    logger.info("%s is loaded as %s, without its parts for images and sound", ", ".join(whole or ()), name)
    shared = {key: outer[key] for key in _OUTER_KEYS if outer.get(key) is not None}
    config = {**shared, **{key: value for key, value in inner.items() if value is not None}, "architectures": [name]}
    tensors = {
        _NAMES.sub("model.", _HEAD.sub("lm_head.", name)): tensor
        for name, tensor in checkpoint.tensors.items()
        if not _OTHER_PARTS.match(name)
    }
    return TextPart(checkpoint.container, config, tensors)
