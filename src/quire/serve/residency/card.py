"""What a server says of a model: facts out of its files, and of the engine that runs it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from quire.text.model_text import ModelText
from quire.types.chat import ModelCard
from quire.weights.checkpoint import Checkpoint

MAX_FACT_CHARS = 4096
LICENSE_KEYS = ("general.license", "license")


def card_of(name: str, checkpoint: Checkpoint, model_text: ModelText, max_context: int) -> ModelCard:
    """The card of a model, whether it is loaded or not."""
    tensors = checkpoint.tensors.values()
    preset = model_text.preset
    by_format: Counter[str] = Counter()
    for tensor in tensors:
        by_format[tensor.format] += tensor.num_bytes
    return ModelCard(
        name=name,
        created=max((part.file.modified_ns for part in checkpoint.files), default=0) / 1e9,
        num_bytes=sum(part.file.num_bytes for part in checkpoint.files),
        digest=checkpoint.digest(),
        format=checkpoint.container,
        architecture=_architecture(checkpoint),
        num_parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        quantization=max(by_format, key=by_format.__getitem__, default="").upper(),
        max_context=max_context,
        template="" if model_text.template.is_default else model_text.template.sources.get("default", ""),
        system=preset.system,
        parameters=preset.parameters,
        sampling_defaults=model_text.defaults,
        messages=preset.messages,
        license="\n\n".join(preset.licences)
        or next((str(text) for key in LICENSE_KEYS if (text := checkpoint.metadata.get(key))), ""),
        capabilities=_capabilities(model_text),
        metadata=_plain(checkpoint.metadata),
        is_loaded=False,
    )


def _architecture(checkpoint: Checkpoint) -> str:
    """As the file spells it: "llama", where we say LlamaForCausalLM."""
    metadata = checkpoint.metadata
    named = metadata.get("general.architecture") or metadata.get("model_type")
    return str(named or next(iter(metadata.get("architectures") or ()), ""))


def _capabilities(model_text: ModelText) -> tuple[str, ...]:
    """Any model may be given tools; what is told is whether its own template knows them."""
    found = ["completion"]
    if any("tools" in source.lower() for source in model_text.template.sources.values()):
        found.append("tools")
    if model_text.reasoning is not None:
        found.append("thinking")
    if model_text.infill is not None:
        found.append("insert")
    return tuple(found)


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that fit on a page: no vocabularies, no templates."""
    return {
        key: value
        for key, value in metadata.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_FACT_CHARS)
    }
