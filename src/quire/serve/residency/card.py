"""The card of a model: what its files say, what the store says, and the engine that runs it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.engine.need import has_own_memory
from quire.serve.residency.contract import ModelRecord
from quire.text.model_text import ModelText
from quire.types.chat import ModelCard
from quire.types.kinds import RequestKind
from quire.weights.checkpoint import Checkpoint

MAX_FACT_CHARS = 4096
COMPLETION, TRANSCRIPTION = "completion", "transcription"  # names of capabilities
VECTOR_NAMES = {RequestKind.EMBED: "embedding", RequestKind.CLASSIFY: "classification"}
LICENSE_KEYS = ("general.license", "license")


def card_of_files(name: str, checkpoint: Checkpoint, model_text: ModelText) -> ModelCard:
    """What the files of a model say about it."""
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
        template="" if model_text.template.is_default else model_text.template.sources.get("default", ""),
        system=preset.system,
        parameters=preset.parameters,
        sampling_defaults=model_text.defaults,
        messages=preset.messages,
        license="\n\n".join(preset.licences)
        or next((str(text) for key in LICENSE_KEYS if (text := checkpoint.metadata.get(key))), ""),
        capabilities=_capabilities(model_text),
        metadata=_short_facts(checkpoint.metadata),
        is_loaded=False,
    )


def card_of_record(record: ModelRecord, of_files: ModelCard | None = None) -> ModelCard:
    """The card of a model; without `of_files`, as far as the store knows it."""
    card, facts, engine = of_files or ModelCard(record.name, is_loaded=False), record.facts, record.engine
    if facts is not None and of_files is None:
        card = replace(
            card,
            format=facts.format,
            quantization=facts.quantization,
            num_parameters=facts.num_parameters,
            license=facts.license,
        )
    if facts is not None:
        card = replace(card, created=facts.created, num_bytes=facts.num_bytes, digest=facts.digest)
    if engine is None:
        return card if of_files is None else replace(card, max_context=record.context)
    return replace(
        card,
        capabilities=_of_kinds(card.capabilities, engine.ready.kinds),
        is_loaded=True,
        loaded_bytes=engine.allowed_bytes,
        accelerator_bytes=engine.allowed_bytes if has_own_memory(engine.ready.device) else 0,
        shares_with=engine.shared_with,
        max_context=engine.ready.max_context,
        expires=engine.expires,
    )


def _architecture(checkpoint: Checkpoint) -> str:
    """The architecture as the file names it: "llama", not LlamaForCausalLM."""
    metadata = checkpoint.metadata
    named = metadata.get("general.architecture") or metadata.get("model_type")
    return str(named or next(iter(metadata.get("architectures") or ()), ""))


def _capabilities(model_text: ModelText) -> tuple[str, ...]:
    """Every model that answers accepts tools; "tools" says that its own template mentions them."""
    if model_text.speech is not None:
        return (TRANSCRIPTION,)
    found = [COMPLETION]
    if any("tools" in source.lower() for source in model_text.template.sources.values()):
        found.append("tools")
    if model_text.reasoning is not None:
        found.append("thinking")
    if model_text.infill is not None:
        found.append("insert")
    return tuple(found)


def _of_kinds(of_files: tuple[str, ...], kinds: Sequence[RequestKind]) -> tuple[str, ...]:
    """What the files say, and what the engine says: files do not tell how a server pools."""
    if TRANSCRIPTION in of_files:
        return of_files
    answers = of_files if RequestKind.GENERATE in kinds else ()
    return (*answers, *(name for kind, name in VECTOR_NAMES.items() if kind in kinds))


def _short_facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata without vocabularies and templates."""
    return {
        key: value
        for key, value in metadata.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_FACT_CHARS)
    }
