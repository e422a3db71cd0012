"""What a server says of a model: facts out of its files, and of the engine that runs it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from quire.engine.messages import Ready
from quire.serve.prompts import Speech
from quire.text.parsers.reasoning import reasoning_of
from quire.text.preset import read_preset
from quire.types.chat import ModelCard
from quire.types.library import Stored
from quire.types.preset import Preset
from quire.weights.checkpoint import Checkpoint, open_checkpoint

MAX_FACT_CHARS = 4096
MAX_READ = 256  # cards of models on disk that are remembered
LICENSE_KEYS = ("general.license", "license")


def card_of(name: str, checkpoint: Checkpoint, speech: Speech, ready: Ready) -> ModelCard:
    """The card of a model that is loaded."""
    sources = tuple(speech.side.template.sources.values())
    card = _card(name, checkpoint, speech.side.preset, sources)
    return replace(
        card,
        architecture=card.architecture or ready.architecture,
        max_context=ready.max_context,
        template=speech.side.template.sources.get("default", ""),
        loaded_bytes=sum(tensor.num_bytes for tensor in checkpoint.tensors.values()),
        is_loaded=True,
    )


def card_of_stored(stored: Stored, modelfile: str = "") -> ModelCard:
    """The card of a model on disk."""
    card = _read(stored.path)
    return replace(
        card,
        name=stored.name,
        created=stored.created,
        num_bytes=stored.num_bytes,
        digest=stored.digest,
        quantization=stored.quantization or card.quantization,
        license=card.license or stored.licence,
        modelfile=modelfile,
    )


@lru_cache(MAX_READ)
def _read(path: Path) -> ModelCard:
    """By path alone: what a store has at a path never changes."""
    checkpoint = open_checkpoint(path)
    preset = read_preset(path if path.is_dir() else path.parent)
    own = checkpoint.metadata.get("tokenizer.chat_template") or ""
    template = preset.template or (own if isinstance(own, str) else "")
    return replace(_card("", checkpoint, preset, (template,)), template=template)


def _card(name: str, checkpoint: Checkpoint, preset: Preset, sources: Sequence[str]) -> ModelCard:
    """What the files say."""
    tensors = checkpoint.tensors.values()
    by_format: Counter[str] = Counter()
    for tensor in tensors:
        by_format[tensor.format] += tensor.num_bytes
    metadata = checkpoint.metadata
    # As the file spells it: "llama", where we say LlamaForCausalLM.
    architecture = str(metadata.get("general.architecture") or metadata.get("model_type") or "")
    context = metadata.get(f"{architecture}.context_length") or metadata.get("max_position_embeddings") or 0
    return ModelCard(
        name=name,
        created=max(part.file.modified_ns for part in checkpoint.files) / 1e9,
        num_bytes=sum(part.file.num_bytes for part in checkpoint.files),
        digest=checkpoint.digest(),
        format=checkpoint.container,
        architecture=architecture,
        num_parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        quantization=max(by_format, key=by_format.__getitem__, default="").upper(),
        max_context=context if isinstance(context, int) else 0,
        system=preset.system,
        parameters=preset.parameters,
        messages=preset.messages,
        license="\n\n".join(preset.licences)
        or next((str(text) for key in LICENSE_KEYS if (text := metadata.get(key))), ""),
        capabilities=_capabilities(sources),
        metadata=_plain(metadata),
        is_loaded=False,
    )


def _capabilities(sources: Sequence[str]) -> tuple[str, ...]:
    """Any model may be given tools; what is told is whether its own template knows them."""
    found = ["completion"]
    if any("tools" in source.lower() for source in sources):
        found.append("tools")
    if reasoning_of(sources) is not None:
        found.append("thinking")
    return tuple(found)


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that fit on a page: no vocabularies, no templates."""
    return {
        key: value
        for key, value in metadata.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_FACT_CHARS)
    }
