"""A model's defaults beside its weights: template, system prompt and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.types.message import Message


@dataclass(frozen=True, slots=True)
class Preset:
    """What a Modelfile sets for a model. Empty fields: as in the weights' file."""

    template: str = ""  # a Go template, as in Ollama
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # with Ollama's names: types/parameters.py
    messages: tuple[Message, ...] = ()  # at the start of every conversation
    licences: tuple[str, ...] = ()
