"""Encodes models as Ollama lists and shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.serve.dialects.ollama.writer import time_of
from quire.types.chat import ModelCard
from quire.types.parameters import modelfile_lines

_NEVER = "9999-12-31T23:59:59Z"  # for a model that never expires
_TEMPLATE = "tokenizer.chat_template"  # has a field of its own


def encode_tags(cards: Sequence[ModelCard]) -> bytes:
    """Encode all models."""
    return msgspec.json.encode({"models": [_listed(card) for card in cards]})


def encode_running(cards: Sequence[ModelCard]) -> bytes:
    """Encode the models in memory, the one with the latest expiry first."""
    stays = sorted(cards, key=lambda card: -float("inf") if card.expires is None else -card.expires)
    return msgspec.json.encode({"models": [_running(card) for card in stays]})


def encode_model(card: ModelCard) -> bytes:
    """Encode one model, with all its facts."""
    facts: dict[str, Any] = {
        "general.architecture": card.architecture,
        "general.parameter_count": card.num_parameters,
        f"{card.architecture}.context_length": card.max_context,
    }
    facts |= {name: value for name, value in card.metadata.items() if name != _TEMPLATE}
    return msgspec.json.encode(
        {
            "license": card.license,
            "modelfile": _modelfile(card),
            "parameters": "\n".join(f"{name:<30} {value}" for name, value in modelfile_lines(card.parameters)),
            "template": card.template,
            "system": card.system,
            "messages": [{"role": message.role, "content": message.text} for message in card.messages],
            "details": _details(card),
            "model_info": facts,
            "capabilities": card.capabilities,
            "sampling_defaults": card.sampling_defaults.values,
            "modified_at": time_of(card.created),
        }
    )


def encode_version(number: str) -> bytes:
    """Encode the server's version."""
    return msgspec.json.encode({"version": number})


def human_number(number: int) -> str:
    """A count as Ollama shortens it: 134.52M, 7.6B; 7M and 8B if they are exact."""
    for size, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if number >= size:
            return f"{number / size:.{0 if number % size == 0 else digits}f}{letter}"
    return str(number)


def _details(card: ModelCard) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": card.format,
        "family": card.architecture,
        "families": [card.architecture] if card.architecture else [],
        "parameter_size": human_number(card.num_parameters),
        "quantization_level": card.quantization,
    }


def _listed(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "model": card.name,
        "modified_at": time_of(card.created),
        "size": card.num_bytes,
        "digest": card.digest.removeprefix("sha256:"),
        "details": _details(card),
        "capabilities": card.capabilities,
    }


def _running(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "model": card.name,
        "size": card.loaded_bytes or card.num_bytes,
        "size_used": card.used_bytes,
        "shares_with": card.shares_with,
        "digest": card.digest.removeprefix("sha256:"),
        "details": _details(card),
        "expires_at": _NEVER if card.expires is None else time_of(card.expires),
        "size_vram": card.accelerator_bytes,
        "context_length": card.max_context,
    }


def _modelfile(card: ModelCard) -> str:
    if card.modelfile:
        return card.modelfile
    template = f'TEMPLATE """{card.template}"""\n' if card.template else ""
    return f"# How this server has it; its template is Jinja's.\nFROM {card.name}\n{template}"
