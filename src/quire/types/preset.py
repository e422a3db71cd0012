"""What belongs to a model beside its weights: how it is spoken to and sampled unless a request says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.types.message import Message


@dataclass(frozen=True, slots=True)
class Preset:
    """What a Modelfile says of a model. Empty: nothing, and the model is as its weights' file has it."""

    template: str = ""  # in Go's dialect, as Ollama's are
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # in Ollama's words: types/parameters.py
    messages: tuple[Message, ...] = ()  # that every conversation begins with
    licences: tuple[str, ...] = ()
